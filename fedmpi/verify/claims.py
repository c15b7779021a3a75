"""What is claimed, how ours is found, and whether the two agree as recorded."""

from __future__ import annotations

import ast
import math
import operator
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar

from fedmpi.papers import Cell, Fact, Paper, Table, Verdict

UNITS = {"": 1.0, "%": 0.01, "x": 1.0, "M": 1e6, "G": 1e9, "MB": 1e6, "GB": 1e9, "TB": 1e12}
_ROUNDING = 1e-9
_SIZE = re.compile(r"([\d.]+)M\b")
_UNIT = re.compile(r"\((.+)\)")


@dataclass(frozen=True)
class Sample:
    """A formula's names with their values, and what was measured there."""

    at: Mapping[str, int]
    measured: float


Ours = float | tuple[Sample, ...]
"""In units of 1 (parameters, MACs, bytes, shares), or samples of what a formula gives."""


Function = TypeVar("Function", bound=Callable[..., object])


@dataclass
class Checks:
    """The functions of a paper: of facts by id, of the cells of a table by its name, and of readings.

    A reading computes what the paper has done where its number is not what it should be; then the
    two must agree.
    """

    facts: dict[str, Callable[[], Ours]] = field(default_factory=dict)
    cells: dict[str, Callable[[Cell], float]] = field(default_factory=dict)
    readings: dict[str, Callable[[], float]] = field(default_factory=dict)

    def fact(self, key: str) -> Callable[[Function], Function]:
        return lambda function: _enter(self.facts, key, function)

    def table(self, name: str) -> Callable[[Function], Function]:
        return lambda function: _enter(self.cells, name, function)

    def reading(self, key: str) -> Callable[[Function], Function]:
        return lambda function: _enter(self.readings, key, function)


def _enter(table: dict[str, Any], key: str, function: Function) -> Function:
    """Nothing is registered twice."""
    assert key not in table, key
    table[key] = function
    return function


@dataclass(frozen=True)
class Claim:
    """A printed number, the verdict on record, and how ours is computed."""

    key: str
    where: str
    what: str
    printed: str
    unit: str
    verdict: Verdict
    why: str
    ours: Callable[[], Ours]
    reading: Callable[[], float] | None = None


@dataclass(frozen=True)
class Checked:
    """A claim with our number. `problem` is empty where both agree, or disagree, as recorded."""

    claim: Claim
    ours: str
    problem: str = ""


def claims(paper: Paper, checks: Checks, params: Callable[[Cell], float]) -> list[Claim]:
    """All claims of a paper, in its order; `params` is the size of a cell's net."""
    found = [_of_fact(paper, fact, checks) for fact in paper.facts]
    for table in paper.tables.values():
        if table.name in checks.cells:
            found += [_of_cell(table, cell, checks) for cell in table.cells if is_checked(table, cell)]
    return found + list(_sizes(paper, checks, params))


def is_checked(table: Table, cell: Cell) -> bool:
    """Whether the cell says a number that a plan can be asked for."""
    return bool(cell.printed) and (table.quantity == "computed" or cell.run is not None)


def _of_fact(paper: Paper, fact: Fact, checks: Checks) -> Claim:
    printed, unit = fact.printed, fact.unit
    if fact.same_as:
        printed, unit = paper.cell(fact.same_as).printed, paper.tables[fact.same_as.partition("/")[0]].unit
    return Claim(
        fact.id, fact.where, fact.what, printed, unit, fact.verdict, fact.why,
        checks.facts[fact.id], checks.readings.get(fact.id),
    )  # fmt: skip


def _of_cell(table: Table, cell: Cell, checks: Checks) -> Claim:
    named = _UNIT.search(cell.column)
    unit = named[1] if named and named[1] in UNITS else table.unit
    key = "/".join((table.name, cell.block, cell.column, cell.row))
    what = ", ".join(dict.fromkeys((cell.block, cell.column.removesuffix(f"({unit})").strip(), cell.row)))
    return Claim(
        key, _heading(table.name), what, cell.printed, unit, cell.verdict,
        cell.slip or cell.not_reproduced, lambda: checks.cells[table.name](cell), checks.readings.get(key),
    )  # fmt: skip


def _heading(name: str) -> str:
    """`Table 3` of table3."""
    return re.sub(r"(?<=[a-z])(?=\d)", " ", name).capitalize()


def _sizes(paper: Paper, checks: Checks, params: Callable[[Cell], float]) -> Iterator[Claim]:
    """Each size in a row label once per data set and column, whatever the number of tables that repeat it."""
    cells: dict[str, list[tuple[str, Cell]]] = {}
    for table in paper.tables.values():
        for cell in table.cells if table.rows == "params" else ():
            if _SIZE.match(cell.row) and cell.run is not None:
                data = cell.block.partition(" ")[0]
                key = f"{data} {cell.column} {_SIZE.match(cell.row)[0]}"  # type: ignore[index]
                cells.setdefault(key, []).append((table.name, cell))
    for key, uses in cells.items():
        tables = ", ".join(dict.fromkeys(_heading(name) for name, _ in uses))
        printed, why = _SIZE.match(uses[0][1].row)[1], paper.size_slips.get(key, "")  # type: ignore[index]
        yield Claim(
            key, tables, f"parameters of {key.rpartition(' ')[0]}", printed, "M", "slip" if why else "equal", why,
            partial(_common_size, params, [cell for _, cell in uses]), checks.readings.get(key),
        )  # fmt: skip


def _common_size(params: Callable[[Cell], float], cells: Iterable[Cell]) -> float:
    """The size that the nets of all these cells have; NaN, which equals nothing, where they differ or are missing."""
    sizes = {params(cell) for cell in cells}
    return sizes.pop() if len(sizes) == 1 else math.nan


def check(claim: Claim) -> Checked:
    """Computes ours and compares."""
    ours = claim.ours()
    agrees = _agrees(claim, ours)
    if agrees and claim.verdict != "equal":
        problem = f"recorded as {claim.verdict}, but ours is what is printed"
    elif not agrees and claim.verdict == "equal":
        problem = "recorded as equal, but ours is another"
    elif claim.reading is not None and not _agrees(claim, claim.reading()):
        problem = f"recorded as: {claim.why}; but that gives {_show(claim, claim.reading())}"
    else:
        problem = ""
    return Checked(claim, _show(claim, ours), problem)


def _agrees(claim: Claim, ours: Ours) -> bool:
    if isinstance(ours, tuple):
        return all(evaluate(claim.printed, sample.at) == sample.measured for sample in ours)
    number = ours / UNITS[claim.unit]
    if claim.printed.startswith(">"):
        return number > float(claim.printed[1:])
    return abs(round(number, _decimals(claim.printed)) - float(claim.printed)) < _ROUNDING


def _decimals(printed: str) -> int:
    return len(printed.partition(".")[2])


def _show(claim: Claim, ours: Ours) -> str:
    """With two digits more than the paper has; a formula by its samples."""
    if isinstance(ours, tuple):
        return ", ".join(f"{sample.measured:,g}" for sample in ours)
    number = ours / UNITS[claim.unit]
    if math.isnan(number):
        return "no common value"
    digits = 0 if number.is_integer() and not claim.unit else _decimals(claim.printed) + 2
    return f"{number:,.{digits}f}"


_OPERATORS: dict[type[ast.operator], Callable[[float, float], float]] = {
    ast.Add: operator.add,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.Pow: operator.pow,
}


def evaluate(formula: str, at: Mapping[str, int]) -> float:
    """A formula of names, numbers, `+ * / **` and parentheses. Raises ValueError for anything else."""

    def value(node: ast.expr) -> float:
        if isinstance(node, ast.BinOp) and type(node.op) in _OPERATORS:
            return _OPERATORS[type(node.op)](value(node.left), value(node.right))
        if isinstance(node, ast.Name) and node.id in at:
            return at[node.id]
        if isinstance(node, ast.Constant) and isinstance(node.value, int):
            return node.value
        raise ValueError(f"{formula!r} is no formula of {', '.join(at)}")

    return value(ast.parse(formula, mode="eval").body)
