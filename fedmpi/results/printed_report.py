"""Puts our numbers beside a paper's: in a cell of a table the mean over the finished runs, in a figure a panel for each
block.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import pandas as pd

from fedmpi.report import table_text
from fedmpi.results import frame
from fedmpi.results.archive import RunRecord
from fedmpi.results.evidence import mean_std
from fedmpi.results.figure import Line, Panel
from fedmpi.results.grid_file import Grid, Measure
from fedmpi.results.printed import Cell, Table, baseline_of, cells_of

_HEADS = ("", "column", "row", "paper", "ours", "difference", "seeds", "rounds", "notes")
_MEASURED = {"accuracy_drop": "accuracy", "relative_cost": "bytes"}
"""The quantity of both runs that a comparison is of."""
_Runs = Mapping[int, RunRecord]
"""The finished runs of a cell, by seed."""


class TextTable(NamedTuple):
    """A table of a report, whose first `num_left` columns are text."""

    title: str
    heads: Sequence[str]
    lines: Sequence[Sequence[str]]
    num_left: int
    above: Sequence[str] = ()

    def markdown(self) -> str:
        table = table_text.markdown_lines(self.heads, self.lines, self.num_left)
        return "\n\n".join("\n".join(lines) for lines in (self.above, table) if lines)


def table(grid: Grid, name: str, runs: Sequence[RunRecord]) -> TextTable:
    """Returns a paper's table with our numbers. A curve's number is that of its last (or best) point."""
    shown = grid.printed[name]
    cells = cells_of(grid.printed, name)
    by_address: dict[str, dict[int, RunRecord]] = {}
    for run in runs:
        by_address.setdefault(run.run.address, {})[run.run.seed] = run
    places = max((len(cell.value.partition(".")[2]) for cell in cells if cell.paper is not None), default=2)
    lines = []
    for cell in cells:
        own = by_address.get(cell.run, {})
        numbers = _numbers(shown, cell, own, by_address.get(baseline_of(shown, cell), {}))
        lines.append(_texts(cell, own, numbers, places))
    of = f", {shown.of} round" if shown.quantity in ("accuracy", "accuracy_drop", "train_loss") else ""
    unit = f" in {shown.unit}" if shown.unit else ""
    ours = f"a cell is {shown.quantity.replace('_', ' ')}{unit}{of}; ours is the mean over seeds (standard deviation)"
    above = [f"- {line}" for line in (grid.source, ours, shown.note) if line]
    return TextTable(f"{name}: {shown.title}", _HEADS, lines, 3, above)


def _numbers(table: Table, cell: Cell, runs: _Runs, baseline: _Runs) -> pd.Series:
    """Returns the cell's number of the runs that have it, by seed, in the table's unit."""
    numbers = _measured(table, cell.block, cell.net, runs)
    others = _measured(table, cell.block, table.baseline_net, baseline)
    if table.quantity == "relative_cost":
        numbers = (numbers / others).dropna()
    elif table.quantity == "accuracy_drop":
        numbers = (others - numbers).dropna()
    is_percent = table.quantity in ("accuracy", "accuracy_drop") and table.unit == "%"
    return numbers * (100 if is_percent else 1) / table.scale


def _measured(table: Table, block: str, net: str, runs: _Runs) -> pd.Series:
    quantity = _MEASURED.get(table.quantity, table.quantity)
    target = table.targets.get(block)
    measure = Measure.model_validate({"quantity": quantity, "net": net, "of": table.of, "target": target})
    return pd.Series({seed: frame.value(run, measure) for seed, run in runs.items()}, dtype=float).dropna()


def _texts(cell: Cell, runs: _Runs, numbers: pd.Series, places: int) -> Sequence[str]:
    """Returns the line of a cell, under `_HEADS`."""
    printed = cell.value or "-"
    printed += "" if cell.std is None else f" ({cell.std:g})"
    mean, std = mean_std(numbers.tolist())
    ours = "-" if mean is None else f"{mean:.{places}f}"
    ours += "" if std is None else f" ({std:.{places}f})"
    difference = "-"
    if mean is not None and cell.paper is not None:
        # Adding 0 turns the -0.0 of a rounded difference into 0.0.
        difference = f"{round(mean - cell.paper, places) + 0.0:+.{places}f}"
    seeds = ",".join(map(str, numbers.index)) or "-"
    rounds = ",".join(map(str, sorted({run.rounds for run in runs.values()}))) or "-"
    notes = {
        f"the paper's slip: {cell.slip}": cell.slip,
        f"not reproduced: {cell.not_reproduced}": cell.not_reproduced,
        "the paper's text has lost this value": cell.value == "lost",
        "there is no config for it": not cell.run,
        f"{len(numbers)} of {len(runs)} seeds have this number": len(numbers) < len(runs),
    }
    note = "; ".join(note for note, is_so in notes.items() if is_so)
    return cell.block, cell.column, cell.row, printed, ours, difference, seeds, rounds, note


def panels_of_paper(grid: Grid, name: str, runs: Sequence[RunRecord]) -> list[Panel]:
    """Returns the panels of a paper's figure that have a curve; [] for a table. A column has one colour in all."""
    shown = grid.printed[name]
    cells = cells_of(grid.printed, name) if shown.x else []
    columns = list(dict.fromkeys(cell.column for cell in cells))
    panels: dict[str, dict[int, Line]] = {}
    for cell in cells:
        records = [run.records for run in runs if run.run.address == cell.run]
        line = frame.curve(cell.column, records, cell.net, shown.quantity, shown.x)
        if line.x:
            panels.setdefault(cell.block, {})[columns.index(cell.column)] = line
    label = shown.quantity.replace("_", " ")
    return [Panel(lines, shown.x, shown.quantity, block, label) for block, lines in panels.items()]
