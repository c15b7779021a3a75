"""Numbers that a paper prints and that follow from its nets or its own tables, and whether ours agree as recorded.

PAPER.yaml has them as text, so that they keep the printed digits: `facts`, `tables` (block -> column -> row -> [net,
value] or a mapping), `size_slips` (why a row label of `sizes_of` is not its net's rounded size), and `cells`, more of
what the grid file prints. A verdict is `equal` (ours rounds to the printed digits), `slip` (the paper's mistake) or
`not_reproduced`. For the last two `ours` is on record, in the same unit, so that a changed net is noticed there, too.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from fedmpi.config.address import CONFIGS
from fedmpi.results import grid_file
from fedmpi.results.printed import Cell, Given, cells_of

UNITS = {"": 1.0, "%": 0.01, "x": 1.0, "M": 1e6, "G": 1e9, "MB": 1e6, "GB": 1e9, "TB": 1e12}
Sample = tuple[Mapping[str, int], float]
"""The values of a formula's names, and what was measured there."""
Ours = float | list[Sample]
"""In units of 1 (parameters, MACs, bytes, shares), or samples of what a formula gives."""


@dataclass(frozen=True)
class Claim:
    key: str
    printed: str
    unit: str
    verdict: str = "equal"
    ours: str = ""
    within: float | None = None
    """The printed number differs from ours by no more than this share of ours."""
    unchecked: str = ""


@cache
def grid(paper: str) -> grid_file.Grid:
    return grid_file.read(CONFIGS / "papers" / f"{paper}.yaml")


@cache
def document(paper: str) -> dict[str, Any]:
    return yaml.load(Path(__file__).with_name(f"{paper}.yaml").read_text(), yaml.BaseLoader)


def cell(paper: str, key: str) -> str:
    """Returns the printed value of a cell, `table/block/column/row`."""
    return next(claim.printed for claim, _ in cells(paper, key.partition("/")[0]) if claim.key == key)


def cells(paper: str, table: str) -> Iterator[tuple[Claim, Cell]]:
    """Yields the cells of a table of PAPER.yaml or of the grid file."""
    own = document(paper).get("tables", {}).get(table)
    if own is None:
        more = document(paper).get("cells", {})
        for one in cells_of(grid(paper).content.printed, table):
            key = "/".join((table, one.block, one.column, one.row))
            reasons = {"slip": one.slip, "not_reproduced": one.given.not_reproduced}
            unit = grid(paper).content.printed[table].unit
            yield _claim(key, one.given.value, unit, reasons | more.get(key, {})), one
        return
    for block, columns in own["blocks"].items():
        for column, shared in columns.items():
            for row, value in shared["cells"].items():
                given = {"net": value[0], "paper": value[1]} if isinstance(value, list) else value
                key = "/".join((table, block, column, row))
                named = re.search(r"\((.+)\)", column)
                unit = named[1] if named else own.get("unit", "")
                yield (
                    _claim(key, given["paper"], unit, {**shared, **given}),
                    Cell(block, column, row, "", Given(net=given.get("net", "")), ""),
                )


def _claim(key: str, printed: str, unit: str, said: Mapping[str, str]) -> Claim:
    verdict = next((name for name in ("slip", "not_reproduced") if said.get(name)), said.get("verdict", "equal"))
    within = float(said["within"]) if "within" in said else None
    return Claim(key, printed, unit, verdict, said.get("ours", ""), within, said.get("unchecked", ""))


def facts(paper: str) -> Iterator[Claim]:
    for key, fact in document(paper)["facts"].items():
        if "same_as" in fact:
            yield _claim(key, cell(paper, fact["same_as"]), "MB", fact)
        else:
            yield _claim(key, fact["printed"], fact.get("unit", ""), fact)


def sizes(paper: str) -> Iterator[tuple[Claim, list[Cell]]]:
    """Yields each size in a row label once per data set and column, with all cells that have it."""
    uses: dict[str, list[Cell]] = {}
    for table in document(paper).get("sizes_of", ()):
        for one in cells_of(grid(paper).content.printed, table):
            if (size := re.match(r"([\d.]+M)\b", one.row)) and one.run:
                uses.setdefault(f"{one.block.partition(' ')[0]} {one.column} {size[1]}", []).append(one)
    for key, those in uses.items():
        slip = document(paper)["size_slips"].get(key, {})
        yield _claim(key, key.rpartition(" ")[2][:-1], "M", {"slip": slip.get("why", ""), **slip}), those


def problem(claim: Claim, ours: Ours) -> str:
    """Returns in what the claim is not as recorded, '' if it is."""
    agrees = is_printed(claim.printed, claim.unit, ours)
    shown = [value for _, value in ours] if isinstance(ours, list) else f"{ours / UNITS[claim.unit]:.6f}"
    if agrees != (claim.verdict == "equal"):
        return f"{claim.key}: {claim.verdict} on record, but paper {claim.printed} {claim.unit}, ours {shown}"
    if claim.verdict == "equal":
        return ""
    if not claim.ours or not is_printed(claim.ours, claim.unit, ours):
        return f"{claim.key}: ours was {claim.ours or 'not recorded'}, is {shown}"
    if claim.within is not None and not isinstance(ours, list):
        difference = abs(float(claim.printed) * UNITS[claim.unit] - ours)
        if difference > claim.within * abs(ours):
            return f"{claim.key}: paper {claim.printed} is not within {claim.within:g} of ours, {shown}"
    return ""


def is_printed(number: str, unit: str, ours: Ours) -> bool:
    """Says whether ours rounds to the number's digits, or is what the formula gives."""
    if isinstance(ours, list):
        return all(eval(number, {}, dict(at)) == measured for at, measured in ours)  # a formula of ours, in PAPER.yaml
    in_unit = ours / UNITS[unit]
    if number.startswith(">"):
        return in_unit > float(number[1:])
    return abs(round(in_unit, len(number.partition(".")[2])) - float(number)) < 1e-9


def common(values: list[float]) -> float:
    """Returns the value that all have; NaN, which equals nothing, if they differ."""
    return values[0] if len(set(values)) == 1 else math.nan
