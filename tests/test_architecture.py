"""The shape of fedmpi, kept true: layers, what may not load or see what, contract 6, sizes.

The rules are in `tests/architecture_rules.py`; here they meet the code, and each is fed a bad source
first, so that a rule that cannot fail is noticed.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import pytest
from architecture_rules import COLLECTIVE_NAMES, LAYERS, RULES, Source, check_layers, check_sizes

Rule = Callable[[Source], Iterator[str]]

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = sorted((ROOT / "fedmpi").rglob("*.py"))
ALL_CODE = [path for folder in ("fedmpi", "jobs", "tests") for path in sorted((ROOT / folder).rglob("*.py"))]


@cache
def read(path: Path) -> Source:
    name = ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
    return Source(name, path.read_text(), is_package=path.name == "__init__.py")


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_package_keeps(rule: Rule) -> None:
    problems = [problem for path in PACKAGE for problem in rule(read(path))]
    assert not problems, report(rule, problems)


def test_code_keeps_size_limits() -> None:
    problems = [problem for path in ALL_CODE for problem in check_sizes(read(path))]
    assert not problems, report(check_sizes, problems)


def report(rule: Rule, problems: list[str]) -> str:
    return "\n".join([" ".join(rule.__doc__.split()), *problems])


LONG_BODY = "".join(f"    x{i} = {i}\n" for i in range(40))

# (rule, module it stands in, source that breaks it)
BAD = [
    ("check_layers", "fedmpi.seeds", "import fedmpi.main"),
    ("check_layers", "fedmpi.seeds", "from fedmpi import experiment"),
    ("check_layers", "fedmpi.data.batches", "from fedmpi.models import build"),
    ("check_layers", "fedmpi.data.batches", "def f():\n    from ..models import build"),
    ("check_layers", "fedmpi.federation.assignment", "from fedmpi import learning"),
    ("check_layers", "fedmpi.new_module", "x = 1"),
    ("check_layers", "fedmpi.seeds", "import fedmpi.no_such_module"),
    ("check_mpi4py", "fedmpi.experiment", "from mpi4py import MPI"),
    ("check_mpi4py", "fedmpi.learning.local", "def f():\n    import mpi4py.MPI"),
    ("check_torch_is_lazy", "fedmpi.config.load", "import torch"),
    ("check_torch_is_lazy", "fedmpi.data.sets.digits", "import numpy as np"),
    ("check_torch_is_lazy", "fedmpi.methods.fedhm", "try:\n    from torch import nn\nexcept ImportError: pass"),
    ("check_torch_is_lazy", "fedmpi.data", "import torchvision.transforms"),
    ("check_methods_are_apart", "fedmpi.methods.fedhm", "from fedmpi.methods.fedavg import FedAvg"),
    ("check_methods_are_apart", "fedmpi.methods.fedhm", "from fedmpi.methods import fedavg"),
    ("check_methods_are_apart", "fedmpi.methods.fedhm", "from .fedavg import FedAvg"),
    ("check_collectives", "fedmpi.rounds.exchange", "if comm.rank == 0:\n    comm.bcast(x)"),
    ("check_collectives", "fedmpi.rounds.exchange", "if comm.is_root:\n    pass\nelse:\n    comm.reduce_sum(x)"),
    ("check_collectives", "fedmpi.rounds.exchange", "y = comm.gather_rows(x) if is_root else None"),
    ("check_collectives", "fedmpi.rounds.exchange", "while rank < 3:\n    comm.wait_for_all()"),
    ("check_collectives", "fedmpi.rounds.exchange", "if comm.is_root:\n    comm.agree()"),
    ("check_collectives", "fedmpi.running.start", "if comm.is_root:\n    together(comm, action)"),
    ("check_collectives", "fedmpi.rounds.exchange", "is_root and comm.bcast(x)"),
    ("check_collectives", "fedmpi.rounds.exchange", "for client in plan.of(comm.rank):\n    comm.start_gather(x)"),
    ("check_collectives", "fedmpi.rounds.exchange", "[comm.bcast(x) for client in plan if client % rank]"),
    ("check_collectives", "fedmpi.rounds.exchange", "if comm.rank:\n    for x in y:\n        exchange_wave(x)"),
    (
        "check_collectives",
        "fedmpi.running.start",
        "def f():\n    if not comm.is_root:\n        return\n    comm.bcast(x)",
    ),
    ("check_purity", "fedmpi.methods.fedhm", "import os\nx = os.environ['A']"),
    ("check_purity", "fedmpi.learning.local", "import time\nx = time.perf_counter()"),
    ("check_purity", "fedmpi.models.nets.resnet", "from time import time"),
    ("check_purity", "fedmpi.learning.local", "from datetime import datetime\nx = datetime.now()"),
    ("check_no_communicator", "fedmpi.methods.fedhm", "from fedmpi import mpi"),
    ("check_no_communicator", "fedmpi.learning.evaluate", "def f(net, comm): ..."),
    ("check_rank_means_mpi_rank", "fedmpi.lowrank.svd", "def f(matrix, rank): ..."),
    ("check_rank_means_mpi_rank", "fedmpi.lowrank.svd", "rank = 3"),
    ("check_engine_knows_no_method", "fedmpi.rounds.state", "x = 1  # as FedHM wants it"),
    ("check_engine_knows_no_method", "fedmpi.mpi.comm", "if method.name == 'topk': pass"),
    ("check_sets", "fedmpi.methods.lgfedavg", "def f() -> frozenset[str]: ...\nx = {name: 1 for name in f()}"),
    ("check_sets", "fedmpi.methods.lgfedavg", "class A:\n    @property\n    def b(self) -> set[str]: ...\n[*a.b]"),
    ("check_sets", "fedmpi.models.surgery.groups", "class A:\n    b: frozenset[str] = field()\nfor x in a.b: pass"),
    ("check_sets", "fedmpi.models.surgery.groups", "def f(x: frozenset[str]):\n    return next(iter(x))"),
    ("check_sets", "fedmpi.models.surgery.groups", "def f(x: set[str] | None):\n    return ', '.join(x or ())"),
    ("check_sets", "fedmpi.rounds.state", "for x in {1, 2}: pass"),
    ("check_sets", "fedmpi.rounds.state", "x = {1, *y}\nx |= z\na, b = x"),
    ("check_sets", "fedmpi.rounds.state", "x = list(a.keys() & b.keys())"),
    ("check_sets", "fedmpi.rounds.state", "x = [y for y in set(a) - set(b)]"),
    ("check_sets", "fedmpi.rounds.state", "x: set[str] = f()\ny = x.pop()"),
    ("check_sets", "fedmpi.rounds.state", "json.dumps({'a': 1} | {'b': 2}, default=x)\njson.dump(frozenset(y), z)"),
    ("check_sets", "fedmpi.rounds.state", "x = sum({a, b})"),
    ("check_sets", "fedmpi.rounds.state", "f(*a.union(b))"),
    ("check_sets", "fedmpi.rounds.state", "x = f'{set(y)}'"),
    ("check_sizes", "fedmpi.experiment", "x = 1\n" * 351),
    ("check_sizes", "fedmpi.experiment", f"def f():\n    '''Says what.'''\n{LONG_BODY}"),
]

# The same constructs where they are right: no rule may complain.
GOOD = [
    ("fedmpi.rounds.exchange", "from fedmpi import mpi, __version__\nfrom fedmpi.methods import NAMES"),
    ("fedmpi.exactsum", "from fedmpi.tensors import Layout"),
    ("fedmpi.data", "from fedmpi.data.options import DataInfo\nif TYPE_CHECKING:\n    import torch"),
    ("fedmpi.mpi.comm", "from mpi4py import MPI\nif comm.rank == 0:\n    comm.bcast(x)"),
    ("fedmpi.methods.fedhm", "from fedmpi.methods.protocol import Method\ndef f():\n    import torch"),
    ("fedmpi.rounds.state", "x = {1, *y}\nfor z in sorted(x): print(len(x), z in x, min(x), y in {*x})"),
    ("fedmpi.rounds.state", "def f(x: set[str]): return any(y for y in x)\ndef g(x: list[str]): return [y for y in x]"),
    ("fedmpi.rounds.state", "a = {'b': 1}\nfor x in a.keys(): pass\nfor x in a | {'c': 2}: pass\nx.pop()\nx.pop('a')"),
    ("fedmpi.rounds.exchange", "x = y if comm.is_root else None\ncomm.bcast(x)"),
    ("fedmpi.rounds.exchange", "for c in plan.mine(comm.rank):\n    train(c)\ncomm.bcast(y)"),
    ("fedmpi.rounds.exchange", "def f():\n    comm.bcast(x)\n    if comm.is_root:\n        return 1\n    return 2"),
    (
        "fedmpi.running.start",
        "def f():\n    if comm.is_root:\n        def g():\n            return 1\n    comm.bcast(x)",
    ),
    ("fedmpi.store.run_dir", "import os, time\nx = os.environ, time.time()"),
    ("fedmpi.lowrank.svd", "def f(matrix, r, rank_ratio): ..."),
    ("fedmpi.experiment", f"def f():\n    '''One.\n{chr(10) * 30}    '''\n{LONG_BODY[: LONG_BODY.index('    x39')]}"),
]


@pytest.mark.parametrize(("rule", "module", "text"), BAD)
def test_rule_sees_bad_source(rule: str, module: str, text: str) -> None:
    functions = {function.__name__: function for function in RULES}
    is_package = module in ("fedmpi.data", "fedmpi.methods")
    assert list(functions[rule](Source(module, text, is_package=is_package)))


@pytest.mark.parametrize(("module", "text"), GOOD)
def test_rules_let_good_source_pass(module: str, text: str) -> None:
    source = Source(module, text, is_package=module == "fedmpi.data")
    assert [problem for rule in RULES for problem in rule(source)] == []


def test_every_rule_is_fed_a_bad_source() -> None:
    assert {rule.__name__ for rule in RULES} == {name for name, _, _ in BAD}


# Of one meaning each, in several packages.
SAME_NAMES = {
    "brought": "what users bring, as a model or data",
    "options": "what every data set's options have, and every model's",
    "evaluate": "the tests after a round, and of one net",
    "launch": "how this process was started, and how others are",
}


def test_no_module_name_has_two_meanings() -> None:
    names = Counter(path.stem for path in PACKAGE if not path.stem.startswith("__"))
    assert {name for name, count in names.items() if count > 1} <= SAME_NAMES.keys()


def test_the_root_is_small() -> None:
    modules = [path.stem for path in (ROOT / "fedmpi").glob("*.py") if not path.stem.startswith("__")]
    assert len(modules) <= 11 and len(LAYERS) <= 14


def test_jobs_only_call_the_package() -> None:
    """But for the tutorial, which is a text to read."""
    programs = [path for path in (ROOT / "jobs").glob("*.py") if path.stem != "tutorial"]
    assert all(len(path.read_text().splitlines()) <= 20 for path in programs)


def test_only_the_installed_command_changes_the_path() -> None:
    """It finds modules in the current folder, as `python -m` does."""
    changed = [path for path in ALL_CODE if path != Path(__file__) and "sys.path" + ".insert" in path.read_text()]
    assert changed == [ROOT / "fedmpi" / "__main__.py"]


def test_layer_table_names_no_module_that_is_gone() -> None:
    names = {read(path).name for path in PACKAGE}
    assert {module for layer in LAYERS for module in layer} <= names


def test_every_collective_of_mpi_is_in_the_protocol() -> None:
    """What `Comm` guards against losses is what ranks do together."""
    guarded = re.findall(r"@_may_lose_ranks\n    def ([a-z]\w+)", (ROOT / "fedmpi" / "mpi" / "comm.py").read_text())
    assert len(guarded) == 9 and {*guarded} <= COLLECTIVE_NAMES


def test_a_config_can_be_checked_without_torch_and_mpi() -> None:
    """What `main` loads before it has a valid config: in a fresh interpreter, heavy modules stay out."""
    script = (
        "import sys, fedmpi.main, fedmpi.config.load, fedmpi.data, fedmpi.models, fedmpi.methods\n"
        "fedmpi.config.load.load(None, ['train.lr=1e-3'])\n"
        "print(sorted({'torch', 'torchvision', 'mpi4py', 'sklearn', 'h5py'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, cwd=ROOT)
    assert (done.stdout.strip(), done.returncode) == ("[]", 0), done.stderr


def test_messages_quote_the_rule_in_words() -> None:
    problem = next(iter(check_layers(Source("fedmpi.seeds", "import fedmpi.main"))))
    assert problem == "fedmpi.seeds:1: imports fedmpi.main"
    assert report(check_layers, [problem]).startswith("A module imports only from lower layers")
