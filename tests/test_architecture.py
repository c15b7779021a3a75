"""The shape of fedmpi: what neither import-linter (setup.cfg) nor ruff (pyproject.toml) can say."""

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from fedmpi.mpi.communicator import Collectives

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = sorted((ROOT / "fedmpi").rglob("*.py"))


def room(path: Path) -> str:
    """Returns the folder of fedmpi, or of the tests, that a file belongs to; '.' for the root of the package."""
    parts = path.relative_to(ROOT).parts
    if parts[0] == "tests":
        return "tests"
    return parts[1] if len(parts) > 2 else "."


def test_no_room_is_larger_than_its_budget() -> None:
    tomllib = pytest.importorskip("tomllib")  # of Python 3.11
    budget = tomllib.loads((ROOT / "tests" / "budget.toml").read_text())["lines"]
    lines: dict[str, int] = {}
    for path in [*PACKAGE, *(ROOT / "tests").rglob("*.py")]:
        lines[room(path)] = lines.get(room(path), 0) + len(path.read_text().splitlines())
    too_large = {name: count for name, count in lines.items() if count > budget.get(name, 0)}
    assert not too_large, "a commit that raises a number of tests/budget.toml says why"


# Contract 6: no collective inside a branch or loop that depends on the rank. `is_root` may select a value, never a
# call: otherwise one rank waits for ever for a call that another never makes.
COLLECTIVES = {name for name in vars(Collectives) if not name.startswith("_")} | {"together"}
COLLECTIVE_WORDS = set("bcast broadcast reduce allreduce gather allgather scatter alltoall barrier exchange".split())
RANK_NAMES = {"rank", "is_root", "here"}
SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ClassDef)
LEAVES = (ast.Return, ast.Continue, ast.Break)


def misplaced_collectives(tree: ast.AST) -> Iterator[int]:
    """Yields the line of each collective that not every rank may reach."""
    for node in ast.walk(tree):
        for part in rank_dependent_parts(node):
            yield from (call.lineno for call in filter(is_collective, ast.walk(part)))
        if isinstance(node, ast.FunctionDef):
            own = list(walk_own(node))
            branches = [part for part in own if isinstance(part, ast.If) and mentions_rank(part.test)]
            ends = [part.end_lineno for part in branches if any(isinstance(inner, LEAVES) for inner in walk_own(part))]
            yield from (call.lineno for call in filter(is_collective, own) if ends and call.lineno > min(ends))


def rank_dependent_parts(node: ast.AST) -> list[ast.AST]:
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


def walk_own(node: ast.AST) -> Iterator[ast.AST]:
    """Yields the nodes below `node`, without those of functions and classes defined in it."""
    for child in ast.iter_child_nodes(node):
        if not isinstance(child, SCOPES):
            yield child
            yield from walk_own(child)


def name_of(node: ast.AST) -> str:
    return getattr(node, "id", None) or getattr(node, "attr", None) or ""


def mentions_rank(node: ast.AST) -> bool:
    return any(name_of(inner) in RANK_NAMES for inner in ast.walk(node))


def is_collective(node: ast.AST) -> bool:
    if not isinstance(node, ast.Call):
        return False
    name = name_of(node.func)
    return name in COLLECTIVES or bool(COLLECTIVE_WORDS & set(name.lower().split("_")))


def test_every_rank_reaches_each_collective() -> None:
    for path in PACKAGE:
        if path.parent.name != "mpi":
            assert list(misplaced_collectives(ast.parse(path.read_text()))) == [], path


@pytest.mark.parametrize(
    "source",
    [
        "if comm.rank == 0:\n    comm.bcast(x)",
        "if comm.is_root:\n    pass\nelse:\n    comm.reduce_sum(x)",
        "y = comm.allgather_object(x) if is_root else None",
        "while rank < 3:\n    comm.wait_for_all()",
        "if comm.is_root:\n    together(comm, action)",
        "is_root and comm.bcast(x)",
        "for client in plan.of(comm.rank):\n    comm.start_send(x)",
        "[comm.bcast(x) for client in plan if client % rank]",
        "def f():\n    if not comm.is_root:\n        return\n    comm.agree(x)",
    ],
)
def test_a_misplaced_collective_is_seen(source: str) -> None:
    assert list(misplaced_collectives(ast.parse(source)))
    assert not list(misplaced_collectives(ast.parse("x = y if comm.is_root else None\ncomm.bcast(x)")))


def test_every_collective_of_mpi_is_in_the_protocol() -> None:
    guarded = re.findall(r"@_may_lose_ranks\n    def ([a-z]\w+)", (ROOT / "fedmpi" / "mpi" / "comm.py").read_text())
    assert len(guarded) == 8 and {*guarded} <= COLLECTIVES


def test_train_round_imports_few_modules() -> None:
    script = "import sys, fedmpi.train_round; print(sum(name.split('.')[0] == 'fedmpi' for name in sys.modules))"
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=True)
    assert int(done.stdout) <= 40


def test_the_engine_names_no_method() -> None:
    """What a method needs is in the protocol."""
    engine = ("train_round.py", "experiment.py", "rounds/", "running/", "mpi/", "learning/")
    names = {path.stem for path in (ROOT / "fedmpi" / "methods").glob("*.py")}
    methods = names - {"__init__", "aggregate", "protocol", "values", "widths", "standalone"}
    pattern = re.compile("|".join(sorted(methods)), re.IGNORECASE)
    for path in PACKAGE:
        if str(path.relative_to(ROOT / "fedmpi")).startswith(engine):
            assert pattern.findall(path.read_text()) == [], path
