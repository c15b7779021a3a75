"""What is claimed, how ours is found, and whether the two agree as recorded."""

from __future__ import annotations

import ast
import math
import operator
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial

from fedmpi.papers import Cell, Fact, Paper, Table

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


@dataclass(frozen=True)
class Checks:
    """The functions of a paper: of facts by id, of the cells of a table by its name, and of readings.

    A reading reproduces the paper's own mistake: where the printed number is wrong, it must match the reading instead.
    """

    facts: Mapping[str, Callable[[], Ours]] = field(default_factory=dict)
    cells: Mapping[str, Callable[[Cell], float]] = field(default_factory=dict)
    readings: Mapping[str, Callable[[], float]] = field(default_factory=dict)


@dataclass(frozen=True)
class Claim:
    """A printed number with the verdict on record (of a cell, too, as a fact), and how ours is computed."""

    fact: Fact
    ours: Callable[[], Ours]
    reading: Callable[[], float] | None = None


@dataclass(frozen=True)
class Checked:
    """A claim with our number (empty if it is unchecked). `problem` is empty where all is as recorded."""

    claim: Claim
    ours: str
    problem: str = ""


def claims(paper: Paper, checks: Checks, params: Callable[[Cell], float]) -> list[Claim]:
    """All claims of a paper, in its order; `params` is the size of a cell's net."""
    found = [_of_fact(paper, fact, checks) for fact in paper.facts.values()]
    for table in paper.tables.values():
        if table.name in checks.cells:
            found += [_of_cell(table, cell, checks) for cell in table.cells if is_checked(table, cell)]
    return found + list(_sizes(paper, checks, params))


def is_checked(table: Table, cell: Cell) -> bool:
    """Whether the cell says a number that a plan can be asked for, or says why it cannot."""
    return bool(cell.printed) and (table.quantity == "computed" or cell.run is not None or bool(cell.unchecked))


def _of_fact(paper: Paper, fact: Fact, checks: Checks) -> Claim:
    key = fact.name
    if fact.same_as:
        unit = paper.tables[fact.same_as.partition("/")[0]].unit
        fact = fact.model_copy(update={"printed": paper.cell(fact.same_as).printed, "unit": unit})
    return Claim(fact, lambda: checks.facts[key](), checks.readings.get(key))


def _of_cell(table: Table, cell: Cell, checks: Checks) -> Claim:
    named = _UNIT.search(cell.column)
    unit = named[1] if named and named[1] in UNITS else table.unit
    key = "/".join((table.name, cell.block, cell.column, cell.row))
    fact = Fact.model_construct(
        name=key,
        where=_heading(table.name),
        what=", ".join(dict.fromkeys((cell.block, cell.column.removesuffix(f"({unit})").strip(), cell.row))),
        unit=unit,
        why=cell.slip or cell.not_reproduced,
        **{of: getattr(cell, of) for of in ("printed", "verdict", "ours", "within", "unchecked")},
    )
    return Claim(fact, partial(checks.cells[table.name], cell), checks.readings.get(key))


def _heading(name: str) -> str:
    """`Table 3` of table3."""
    return re.sub(r"(?<=[a-z])(?=\d)", " ", name).capitalize()


def _sizes(paper: Paper, checks: Checks, params: Callable[[Cell], float]) -> Iterator[Claim]:
    """Each size in a row label once per data set and column, whatever the number of tables that repeat it."""
    uses: dict[tuple[str, str], list[tuple[str, Cell]]] = {}
    for table in paper.tables.values():
        for cell in table.cells if table.rows == "params" else ():
            if (found := _SIZE.match(cell.row)) and cell.run is not None:
                of = f"{cell.block.partition(' ')[0]} {cell.column}"
                uses.setdefault((of, found[1]), []).append((_heading(table.name), cell))
    for (of, size), places in uses.items():
        key = f"{of} {size}M"
        where, what = ", ".join(dict.fromkeys(name for name, _ in places)), f"parameters of {of}"
        fact = Fact(name=key, where=where, what=what, printed=size, unit="M")
        if slip := paper.size_slips.get(key):
            fact = fact.model_copy(update={"verdict": "slip", "why": slip.why, "ours": slip.ours})
        yield Claim(fact, partial(_common_size, params, [cell for _, cell in places]), checks.readings.get(key))


def _common_size(params: Callable[[Cell], float], cells: Iterable[Cell]) -> float:
    """The size that the nets of all these cells have; NaN, which equals nothing, where they differ or are missing."""
    sizes = [params(cell) for cell in cells]
    return sizes[0] if len(set(sizes)) == 1 else math.nan


def check(claim: Claim) -> Checked:
    """Computes ours and compares."""
    if claim.fact.unchecked:
        return Checked(claim, "")
    ours = claim.ours()
    return Checked(claim, _show(claim.fact, ours), _problem(claim, ours))


def _problem(claim: Claim, ours: Ours) -> str:
    """The way in which it is not as recorded."""
    fact, reading = claim.fact, claim.reading
    agrees = _agrees(fact.printed, fact.unit, ours)
    if agrees and fact.verdict != "equal":
        return f"recorded as {fact.verdict}, but ours is what is printed"
    if not agrees and fact.verdict == "equal":
        return "recorded as equal, but ours is another"
    if fact.verdict != "equal" and not fact.ours:
        return "recorded without `ours`, so that a change would not be noticed"
    if fact.ours and not _agrees(fact.ours, fact.unit, ours):
        return f"ours was another when this was recorded: {fact.ours}"
    if reading is not None and not _agrees(fact.printed, fact.unit, reading()):
        return f"recorded as: {fact.why}; but that gives {_show(fact, reading())}"
    if fact.within is None:
        return ""
    assert not isinstance(ours, tuple)
    is_within = abs(float(fact.printed) * UNITS[fact.unit] - ours) <= fact.within * abs(ours)
    return "" if is_within else f"recorded as within {fact.within:g} of ours, but it is not"


def _agrees(number: str, unit: str, ours: Ours) -> bool:
    """Whether ours rounds to the number's digits, or is what the formula gives."""
    if isinstance(ours, tuple):
        return all(evaluate(number, sample.at) == sample.measured for sample in ours)
    in_unit = ours / UNITS[unit]
    if number.startswith(">"):
        return in_unit > float(number[1:])
    return abs(round(in_unit, _decimals(number)) - float(number)) < _ROUNDING


def _decimals(printed: str) -> int:
    return len(printed.partition(".")[2])


def _show(fact: Fact, ours: Ours) -> str:
    """The value with two digits more than the paper has, or as many as on record; a formula by its samples."""
    if isinstance(ours, tuple):
        return ", ".join(f"{sample.measured:,g}" for sample in ours)
    number = ours / UNITS[fact.unit]
    if math.isnan(number):
        return "no common value"
    more = max(_decimals(fact.printed) + 2, _decimals(fact.ours))
    digits = 0 if number.is_integer() and not fact.unit else more
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
