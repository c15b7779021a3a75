"""The rules that `test_architecture.py` keeps, each a function from a module's source to its problems.

A rule's docstring is the rule in words: it is what a failing test prints first.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from set_rule import check_sets

from fedmpi.mpi.communicator import Collectives

# Bottom first; modules of one layer do not know each other, and inside a package anything goes. Each with what it is.
LEAVES = (*("disk", "seeds", "tensors", "clock", "costs", "registry", "papers"), *("config.schema", "config.keywords"))
PEERS = ("exactsum", "config", "data", "models", "lowrank", "mpi", "store")
LAYERS = (
    # The version; what a user is told; values of two configs; what the fields of a config are made of, and do.
    ("fedmpi", "fedmpi.errors", "fedmpi.config.comparing", "fedmpi.config.fields", "fedmpi.config.described"),
    tuple(f"fedmpi.{name}" for name in LEAVES),  # small things that know nothing of each other
    tuple(f"fedmpi.{name}" for name in PEERS),  # one part of the subject each
    ("fedmpi.federation", "fedmpi.learning", "fedmpi.report"),  # who takes part; how a client trains; what people read
    ("fedmpi.methods", "fedmpi.pages"),  # both halves of each method; a run as a page and as figures
    ("fedmpi.rounds",),  # the parts of a round
    ("fedmpi.train_round",),  # one round
    ("fedmpi.running",),  # how a run begins, continues and ends
    ("fedmpi.experiment",),  # the run
    ("fedmpi.command",),  # the parts of commands
    ("fedmpi.main", "fedmpi.verify", "fedmpi.export"),  # the commands; trained nets as files
    ("fedmpi.results", "fedmpi.data.__main__"),  # many runs
    ("fedmpi.check", "fedmpi.library"),  # what a user brings, put to the tests; what a user calls from Python
    ("fedmpi.doctor", "fedmpi.__main__"),  # whether a machine is ready; the command of all these
)
LEVELS = {module: level for level, layer in enumerate(LAYERS) for module in layer}

MAX_MODULE_LINES = 350
MAX_FUNCTION_LINES = 40

HEAVY = ("numpy", "torch", "torchvision", "h5py", "sklearn", "PIL")
PURE = ("fedmpi.methods", "fedmpi.learning", "fedmpi.lowrank", "fedmpi.models", "fedmpi.data")
FORBIDDEN_IN_PURE = {
    "os": {"environ", "getenv", "environb"},
    "time": {"time", "perf_counter", "monotonic", "process_time", "time_ns", "perf_counter_ns", "monotonic_ns"},
    "datetime": {"now", "today", "utcnow"},
}

# Parts of the names that collectives have here: bcast, reduce_sum, start_gather, wait_for_all, exchange_wave ...
COLLECTIVE_WORDS = {
    *"bcast ibcast broadcast reduce ireduce allreduce gather igather gatherv allgather scatter alltoall".split(),
    *"barrier ibarrier exchange".split(),
}
# All that the protocol lists, and what calls one of them at once.
COLLECTIVE_NAMES = {name for name in vars(Collectives) if not name.startswith("_")} | {"together"}
RANK_NAMES = {"rank", "local_rank", "is_root", "is_server", "server_here"}
# Modules of the package methods that are not methods.
METHOD_HELPERS = {"fedmpi.methods", *(f"fedmpi.methods.{name}" for name in ("fedopt", "protocol", "values", "widths"))}

ENGINE = ("fedmpi.train_round", "fedmpi.experiment", "fedmpi.rounds", "fedmpi.running", "fedmpi.mpi", "fedmpi.learning")
METHOD_WORDS = re.compile(
    r"fedavg|fed-?hm|hetero-?fl|fjord|split-?mix|prism|orthdrop|origdrop|hermes|per-?fedavg|lg-?fedavg|top-?k\b"
    r"|standalone|fdnnc|cefo|fedprox|scaffold|fed-?rolex|fed-?opt|fed-?adam|fed-?yogi",
    re.IGNORECASE,
)

Function = ast.FunctionDef | ast.AsyncFunctionDef
SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ClassDef)


@dataclass
class Source:
    """A module: its dotted name, its text, and the tree made of it."""

    name: str
    text: str
    is_package: bool = False
    tree: ast.Module = field(init=False)

    def __post_init__(self) -> None:
        self.tree = ast.parse(self.text, self.name)

    def at(self, node: ast.AST, problem: str) -> str:
        return f"{self.name}:{getattr(node, 'lineno', 1)}: {problem}"

    def within(self, *packages: str) -> bool:
        return any(self.name == package or self.name.startswith(package + ".") for package in packages)

    def imports(self, *, run_at_import: bool = False) -> Iterator[tuple[ast.stmt, str]]:
        """Every imported name, dotted and absolute; `run_at_import` leaves out functions and TYPE_CHECKING."""
        for node in walk_at_import(self.tree) if run_at_import else ast.walk(self.tree):
            if isinstance(node, ast.Import):
                yield from ((node, alias.name) for alias in node.names)
            elif isinstance(node, ast.ImportFrom):
                yield from ((node, f"{self._base(node)}.{alias.name}") for alias in node.names)

    def _base(self, node: ast.ImportFrom) -> str:
        if not node.level:
            return node.module or ""
        parts = self.name.split(".")
        parts = parts[: len(parts) - node.level + self.is_package]
        return ".".join([*parts, *([node.module] if node.module else [])])


def walk_at_import(node: ast.AST) -> Iterator[ast.AST]:
    """The nodes that run when a module is imported."""
    yield node
    if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)):
        return
    if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
        for child in node.orelse:
            yield from walk_at_import(child)
        return
    for child in ast.iter_child_nodes(node):
        yield from walk_at_import(child)


def owner(dotted: str) -> str:
    """The entry of the layer table that a dotted name belongs to; '' for one that is in no layer."""
    parts = dotted.replace("fedmpi.studies", "fedmpi.results").split(".")  # the one moves into the other
    for length in range(len(parts), 1, -1):
        if ".".join(parts[:length]) in LEVELS:
            return ".".join(parts[:length])
    # `from fedmpi import __version__` is about the package itself; `fedmpi.unknown` is a module without a layer.
    return "fedmpi" if len(parts) == 1 or parts[1].startswith("__") else ""


def check_layers(source: Source) -> Iterator[str]:
    """A module imports only from lower layers, and peers (data, models, lowrank, mpi, store) know nothing of
    each other; every module has its place in LAYERS of tests/architecture_rules.py."""
    here = owner(source.name)
    if not here:
        yield source.at(source.tree, "has no layer")
        return
    # The package itself loads what it offers on demand, and names it for type checkers only.
    for node, name in source.imports(run_at_import=here == "fedmpi"):
        if name.split(".")[0] != "fedmpi":
            continue
        there = owner(name)
        if there != here and (not there or LEVELS[there] >= LEVELS[here]):
            yield source.at(node, f"imports {name}")


def check_mpi4py(source: Source) -> Iterator[str]:
    """mpi4py is imported only in fedmpi/mpi."""
    for node, name in source.imports():
        if name.split(".")[0] == "mpi4py" and not source.within("fedmpi.mpi"):
            yield source.at(node, f"imports {name}")


def check_torch_is_lazy(source: Source) -> Iterator[str]:
    """config/*, methods/*, data/__init__, data sets, partitions and models/__init__ import nothing heavy (numpy, torch,
    HDF5 ...) when they load: a config is validated before that."""
    light = ("fedmpi.config", "fedmpi.methods", "fedmpi.data.sets", "fedmpi.data.partitions")
    if not source.within(*light) and source.name not in ("fedmpi.data", "fedmpi.models"):
        return
    for node, name in source.imports(run_at_import=True):
        if name.split(".")[0] in HEAVY or name.startswith("urllib.request"):
            yield source.at(node, f"imports {name} when it loads")


def check_methods_are_apart(source: Source) -> Iterator[str]:
    """No method imports another: what two of them share belongs to a lower layer or to the protocol."""
    if not source.within("fedmpi.methods") or source.name in METHOD_HELPERS:
        return
    for node, name in source.imports():
        if name.startswith("fedmpi.methods.") and ".".join(name.split(".")[:3]) not in {*METHOD_HELPERS, source.name}:
            yield source.at(node, f"imports {name}")


def check_collectives(source: Source) -> Iterator[str]:
    """No collective inside a branch or loop that depends on the rank (contract 6): is_root may select a value,
    never a call. Otherwise one rank waits for ever for a call that another never makes."""
    if source.within("fedmpi.mpi"):
        return
    for node in ast.walk(source.tree):
        for branch in rank_dependent_parts(node):
            for call in filter(is_collective, ast.walk(branch)):
                yield source.at(call, f"calls {ast.unparse(call.func)} under a condition on the rank")
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            yield from calls_after_rank_dependent_exit(source, node)


def rank_dependent_parts(node: ast.AST) -> list[ast.AST]:
    """The parts of `node` that run, or run again, depending on the rank."""
    match node:
        case ast.If(test=test) | ast.While(test=test) if mentions_rank(test):
            return [*node.body, *node.orelse]
        case ast.IfExp(test=test) if mentions_rank(test):
            return [node.body, node.orelse]
        case ast.For(iter=iterable) if mentions_rank(iterable):
            return [*node.body, *node.orelse]
        case ast.BoolOp(values=[first, *rest]) if mentions_rank(first):
            return list(rest)
        case ast.ListComp() | ast.SetComp() | ast.GeneratorExp() | ast.DictComp():
            conditions = [part for loop in node.generators for part in (loop.iter, *loop.ifs)]
            return [node] if any(map(mentions_rank, conditions)) else []
    return []


def calls_after_rank_dependent_exit(source: Source, function: Function) -> Iterator[str]:
    """Collectives below an `if rank...: return` (or continue, break) of the same function."""
    own = list(walk_own(function))
    ends = [
        node.end_lineno
        for node in own
        if isinstance(node, ast.If) and mentions_rank(node.test)
        if any(isinstance(inner, (ast.Return, ast.Continue, ast.Break)) for inner in walk_own(node))
    ]
    for call in filter(is_collective, own):
        if ends and call.lineno > min(ends):
            yield source.at(call, f"calls {ast.unparse(call.func)} after ranks may have left {function.name}")


def walk_own(node: ast.AST) -> Iterator[ast.AST]:
    """The nodes below `node`, without those of functions and classes defined in it."""
    for child in ast.iter_child_nodes(node):
        if not isinstance(child, SCOPES):
            yield child
            yield from walk_own(child)


def mentions_rank(node: ast.AST) -> bool:
    names = {getattr(inner, "id", None) or getattr(inner, "attr", None) for inner in ast.walk(node)}
    return bool(names & RANK_NAMES)


def is_collective(node: ast.AST) -> bool:
    if not isinstance(node, ast.Call):
        return False
    name = getattr(node.func, "id", None) or getattr(node.func, "attr", "")
    return name in COLLECTIVE_NAMES or bool(COLLECTIVE_WORDS & set(name.lower().split("_")))


def check_purity(source: Source) -> Iterator[str]:
    """methods, learning, lowrank, models and data never see an environment variable or the clock."""
    if not source.within(*PURE):
        return
    for node, name in source.imports():
        module, _, attribute = name.rpartition(".")
        if attribute in FORBIDDEN_IN_PURE.get(module, ()):
            yield source.at(node, f"imports {name}")
    for node in ast.walk(source.tree):
        if isinstance(node, ast.Attribute):
            module = ast.unparse(node.value).split(".")[-1]
            if node.attr in FORBIDDEN_IN_PURE.get(module, ()):
                yield source.at(node, f"uses {module}.{node.attr}")


def check_no_communicator(source: Source) -> Iterator[str]:
    """methods, learning, lowrank, models and data never see a communicator or a path of the run."""
    if not source.within(*PURE):
        return
    for node, name in source.imports():
        if name.startswith(("fedmpi.mpi", "fedmpi.store")):
            yield source.at(node, f"imports {name}")
    for node in ast.walk(source.tree):
        if isinstance(node, ast.arg) and node.arg in ("comm", "run_dir"):
            yield source.at(node, f"takes an argument {node.arg}")


def check_engine_knows_no_method(source: Source) -> Iterator[str]:
    """The engine (train_round and its steps, experiment, mpi, learning) names no method, not even in words: what a
    method needs is in the protocol."""
    if not source.within(*ENGINE):
        return
    for number, line in enumerate(source.text.splitlines(), 1):
        for word in METHOD_WORDS.findall(line):
            yield f"{source.name}:{number}: says {word}"


def check_rank_means_mpi_rank(source: Source) -> Iterator[str]:
    """`rank` means an MPI rank; in lowrank, where a matrix has one too, that is `r` or `rank_ratio`."""
    if not source.within("fedmpi.lowrank"):
        return
    for node in ast.walk(source.tree):
        if "rank" in (getattr(node, "id", ""), getattr(node, "arg", "")):
            yield source.at(node, "uses the bare name rank")


def check_sizes(source: Source) -> Iterator[str]:
    """Modules have at most 350 lines, functions at most 40 without their docstring."""
    num_lines = len(source.text.splitlines())
    if num_lines > MAX_MODULE_LINES:
        yield source.at(source.tree, f"the module has {num_lines} lines")
    for node in ast.walk(source.tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and body_lines(node) > MAX_FUNCTION_LINES:
            yield source.at(node, f"{node.name} has {body_lines(node)} lines")


def body_lines(function: Function) -> int:
    first = function.body[0]
    has_docstring = ast.get_docstring(function, clean=False) is not None
    docstring_lines = first.end_lineno - first.lineno + 1 if has_docstring else 0
    return function.end_lineno - function.lineno + 1 - docstring_lines


RULES = (
    check_layers,
    check_mpi4py,
    check_torch_is_lazy,
    check_methods_are_apart,
    check_collectives,
    check_purity,
    check_no_communicator,
    check_engine_knows_no_method,
    check_rank_means_mpi_rank,
    check_sets,
    check_sizes,
)
