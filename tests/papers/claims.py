"""Numbers that a paper prints and that follow from its nets or its own tables, and whether ours agree as recorded.

PAPER.yaml has them as text, so that they keep the printed digits: `facts`, `tables`, `size_slips` (why a row label of
`sizes_of` is not its net's rounded size), and `cells`, more of what the grid file prints. A number of ours that does
not round to the printed digits is on record as `ours`, in the same unit, so that a changed net is noticed there, too:
with `slip`, the paper's mistake, or `not_reproduced`.
"""

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
from fedmpi.results.printed import Cell, cells_of

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
    said: Mapping[str, str]
    """Beside these: `slip` or `not_reproduced`, `ours`, `within` (the largest difference, as a share of ours)."""

    @property
    def agrees(self) -> bool:
        return not self.said.get("slip") and not self.said.get("not_reproduced")


@cache
def grid(paper: str) -> grid_file.Grid:
    return grid_file.read(CONFIGS / "papers" / f"{paper}.yaml")


@cache
def document(paper: str) -> dict[str, Any]:
    return yaml.load(Path(__file__).with_name(f"{paper}.yaml").read_text(), yaml.BaseLoader)


def facts(paper: str) -> Iterator[Claim]:
    for key, said in document(paper)["facts"].items():
        yield Claim(key, said["printed"], said.get("unit", ""), said)


def own_tables(paper: str) -> Iterator[tuple[Claim, str, str, str]]:
    """Yields the cells of the tables of PAPER.yaml, with table, column and row."""
    for table, columns in document(paper).get("tables", {}).items():
        for column, cells in columns.items():
            for row, value in cells.items():
                said = {**cells.get("all", {}), **(value if isinstance(value, dict) else {"printed": value})}
                if row != "all":
                    unit = column.partition("(")[2][:-1]
                    yield Claim(f"{table}/{column}/{row}", said["printed"], unit, said), table, column, row


def cells(paper: str, table: str) -> Iterator[tuple[Claim, Cell]]:
    """Yields the printed cells of a table of the grid file that have a run."""
    tables = grid(paper).printed
    for one in cells_of(tables, table):
        key = "/".join((table, one.block, one.column, one.row))
        said = {"slip": one.slip, "not_reproduced": one.not_reproduced, **document(paper)["cells"].get(key, {})}
        if one.value and one.run:
            yield Claim(key, one.value, tables[table].unit, said), one


def sizes(paper: str) -> Iterator[tuple[Claim, list[Cell]]]:
    """Yields each size in a row label once per data set and column, with all cells that have it."""
    uses: dict[str, list[Cell]] = {}
    for table in document(paper).get("sizes_of", ()):
        for one in cells_of(grid(paper).printed, table):
            if (size := re.match(r"([\d.]+M)\b", one.row)) and one.run:
                uses.setdefault(f"{one.block.partition(' ')[0]} {one.column} {size[1]}", []).append(one)
    for key, those in uses.items():
        yield Claim(key, key.rpartition(" ")[2][:-1], "M", document(paper)["size_slips"].get(key, {})), those


def problem(claim: Claim, ours: Ours) -> str:
    """Returns in what the claim is not as recorded, '' if it is."""
    if is_printed(claim.printed, claim.unit, ours) != claim.agrees:
        return f"{claim.key}: paper {claim.printed} {claim.unit}, ours {shown(claim, ours)}, on record {claim.said}"
    if claim.agrees:
        return ""
    if not is_printed(claim.said["ours"], claim.unit, ours):
        return f"{claim.key}: ours was {claim.said['ours']}, is {shown(claim, ours)}"
    if "within" in claim.said and not isinstance(ours, list):
        difference = abs(float(claim.printed) * UNITS[claim.unit] - ours)
        if difference > float(claim.said["within"]) * abs(ours):
            return f"{claim.key}: paper {claim.printed} is not that near to ours, {shown(claim, ours)}"
    return ""


def shown(claim: Claim, ours: Ours) -> str:
    return str([value for _, value in ours]) if isinstance(ours, list) else f"{ours / UNITS[claim.unit]:.6f}"


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
