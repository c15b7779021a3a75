"""Puts our numbers beside those that a paper prints. Our number of a cell is the mean over its finished runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import NamedTuple

from fedmpi.report import table_text
from fedmpi.results import frame
from fedmpi.results.archive import RunRecord
from fedmpi.results.evidence import mean_std
from fedmpi.results.grid_file import GridFile, Measure
from fedmpi.results.printed import Cell, Table, baseline_of, cells_of

_HEADS = ("", "column", "row", "paper", "ours", "difference", "seeds", "rounds", "notes")
_MEASURED = {"accuracy_drop": "accuracy", "relative_cost": "bytes"}
"""The quantity of both runs that a comparison is of."""


class TextTable(NamedTuple):
    """A table of a report, whose first `num_left` columns are text."""

    title: str
    heads: Sequence[str]
    lines: Sequence[Sequence[str]]
    num_left: int
    above: Sequence[str] = ()
    below: Sequence[str] = ()

    def markdown(self) -> str:
        table = table_text.markdown_lines(self.heads, self.lines, self.num_left)
        return "\n\n".join("\n".join(lines) for lines in (self.above, table, self.below) if lines)


@dataclass(frozen=True)
class Result:
    """A cell and our runs of it, by seed, with their numbers in the table's unit."""

    cell: Cell
    runs: Mapping[int, RunRecord]
    numbers: Mapping[int, float]
    cost: float | None = None
    """The mean of the bytes of each run over those of its baseline."""

    @property
    def ours(self) -> float | None:
        """Returns the mean over the seeds."""
        return mean_std(list(self.numbers.values()))[0]

    @property
    def std(self) -> float | None:
        """Returns the sample standard deviation, None for a single seed."""
        return mean_std(list(self.numbers.values()))[1]

    @property
    def difference(self) -> float | None:
        """Returns ours minus the paper's."""
        return None if self.ours is None or self.cell.paper is None else self.ours - self.cell.paper

    @property
    def notes(self) -> list[str]:
        """Returns what a reader must know of the printed value and of ours."""
        cell = self.cell
        notes = {
            f"the paper's slip: {cell.slip}": cell.slip,
            f"not reproduced: {cell.not_reproduced}": cell.not_reproduced,
            "the paper's text has lost this value": cell.value == "lost",
            "there is no config for it": not cell.run,
            f"{len(self.numbers)} of {len(self.runs)} seeds have this number": len(self.numbers) < len(self.runs),
        }
        return [note for note, is_so in notes.items() if is_so]


def results(content: GridFile, name: str, runs: Sequence[RunRecord]) -> list[Result]:
    """Returns a result for each cell of a table; a curve's is that of its last (or best) point."""
    table = content.printed[name]
    cells = cells_of(content.printed, name)
    by_name: dict[str, dict[int, RunRecord]] = {}
    for run in runs:
        by_name.setdefault(f"{run.run.setting}/{run.run.method}", {})[run.run.seed] = run
    measured = _MEASURED.get(table.quantity, table.quantity)
    found = []
    for cell in cells:
        own = by_name.get(cell.run, {})
        numbers = _values(table, cell, own, measured)
        cost = None
        if (other := baseline_of(table, cells, cell)) is not None:
            baseline = by_name.get(other.run, {})
            costs = _pairs(_values(table, cell, own, "bytes"), _values(table, other, baseline, "bytes"))
            ratios = {seed: ours / theirs for seed, (ours, theirs) in costs.items()}
            cost = mean_std(list(ratios.values()))[0]
            if table.quantity == "relative_cost":
                numbers = ratios
            elif table.quantity == "accuracy_drop":
                pairs = _pairs(numbers, _values(table, other, baseline, measured))
                numbers = {seed: theirs - ours for seed, (ours, theirs) in pairs.items()}
        found.append(Result(cell, own, {seed: scale(table) * number for seed, number in numbers.items()}, cost))
    return found


def _values(table: Table, cell: Cell, runs: Mapping[int, RunRecord], quantity: str) -> dict[int, float]:
    """Returns this quantity of the runs that have it, by seed."""
    is_to_target = quantity.endswith("_to_target")
    target = table.targets.get(cell.block) if is_to_target else None
    measure = Measure.model_validate({"quantity": quantity, "net": cell.net, "of": table.of, "target": target})
    numbers = {seed: frame.value(run, measure) for seed, run in runs.items()}
    return {seed: number for seed, number in numbers.items() if number is not None}


def _pairs(ours: Mapping[int, float], theirs: Mapping[int, float]) -> dict[int, tuple[float, float]]:
    """Returns both numbers of each seed whose baseline has one that can be divided by."""
    return {seed: (number, theirs[seed]) for seed, number in ours.items() if theirs.get(seed)}


def scale(table: Table) -> float:
    """Returns what our numbers are multiplied by to have the table's unit."""
    is_percent = table.quantity in ("accuracy", "accuracy_drop") and table.unit == "%"
    return (100 if is_percent else 1) / table.scale


def table(content: GridFile, name: str, runs: Sequence[RunRecord]) -> TextTable:
    """Returns a paper's table with our numbers, each block's name once, and footnotes."""
    shown = content.printed[name]
    found = results(content, name, runs)
    footnotes = list(dict.fromkeys(note for result in found for note in result.notes))
    decimals = [len(result.cell.value.partition(".")[2]) for result in found if result.cell.paper is not None]
    lines = []
    for block, of_block in groupby(found, key=lambda result: result.cell.block):
        for number, result in enumerate(of_block):
            marks = "".join(f"[{footnotes.index(note) + 1}]" for note in result.notes)
            lines.append((block if number == 0 else "", *_texts(result, max(decimals, default=2)), marks))
    of = f", {shown.of} round" if shown.quantity in ("accuracy", "accuracy_drop", "train_loss") else ""
    unit = f" in {shown.unit}" if shown.unit else ""
    ours = f"a cell is {shown.quantity.replace('_', ' ')}{unit}{of}; ours is the mean over seeds (standard deviation)"
    above = [f"- {line}" for line in (content.source, ours, shown.note) if line]
    below = [f"- [{number}] {note}" for number, note in enumerate(footnotes, 1)]
    return TextTable(f"{name}: {shown.title}", _HEADS, lines, 3, above, below)


def _texts(result: Result, places: int) -> Sequence[str]:
    cell = result.cell
    paper = cell.value or "-"
    paper += "" if cell.std is None else f" ({cell.std:g})"
    ours = "-" if result.ours is None else f"{result.ours:.{places}f}"
    ours += "" if result.std is None else f" ({result.std:.{places}f})"
    # Adding 0 turns the -0.0 of a rounded difference into 0.0.
    difference = "-" if result.difference is None else f"{round(result.difference, places) + 0.0:+.{places}f}"
    rounds = sorted({run.rounds for run in result.runs.values()})
    seeds = ",".join(map(str, result.numbers)) or "-"
    return cell.column, cell.row, paper, ours, difference, seeds, ",".join(map(str, rounds)) or "-"


def comma_separated(content: GridFile, runs: Sequence[RunRecord]) -> str:
    """Returns all tables as one CSV, with exact numbers: what the grid file says of each cell, then ours."""
    rows: list[dict[str, object]] = []
    for name, table in content.printed.items():
        for result in results(content, name, runs):
            rows.append(
                {
                    "table": name,
                    "quantity": table.quantity,
                    "unit": table.unit,
                    **result.cell.model_dump(),
                    "ours": result.ours,
                    "ours_std": result.std,
                    "difference": result.difference,
                    "seeds": " ".join(map(str, result.numbers)),
                    "notes": "; ".join(result.notes),
                }
            )
    return table_text.comma_separated(rows)
