"""Puts our numbers beside a paper's, in tables and figures. Our number in a cell is the mean over the finished runs. A
panel of a figure is a block of the table, and the paper's numbers are crosses.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import pandas as pd

from fedmpi.report import table_text
from fedmpi.results import figure, frame
from fedmpi.results.archive import RunRecord
from fedmpi.results.evidence import mean_std
from fedmpi.results.figure import Draw, Line
from fedmpi.results.grid_file import Grid, Measure
from fedmpi.results.printed import Axes as Labels
from fedmpi.results.printed import Cell, Table, baseline_of, cells_of
from fedmpi.store.units import as_number

if TYPE_CHECKING:
    from matplotlib.axes import Axes

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

    def markdown(self) -> str:
        table = table_text.markdown_lines(self.heads, self.lines, self.num_left)
        return "\n\n".join("\n".join(lines) for lines in (self.above, table) if lines)


def results(grid: Grid, name: str, runs: Sequence[RunRecord]) -> pd.DataFrame:
    """Returns a line for each cell of a table: the fields of `Cell`; `paper`, the printed number; `ours`, the mean over
    the seeds, `ours_std` and `difference` in the table's unit; the `seeds` that have it; `notes` for a reader; the
    finished `runs` by seed; and the mean `cost`: the bytes of each run over those of its baseline.

    A curve's number is that of its last (or best) point.
    """
    table = grid.printed[name]
    cells = cells_of(grid.printed, name)
    by_name: dict[str, dict[int, RunRecord]] = {}
    for run in runs:
        by_name.setdefault(f"{run.run.setting}/{run.run.method}", {})[run.run.seed] = run
    lines = []
    for cell in cells:
        own = by_name.get(cell.run, {})
        quantity = _MEASURED.get(table.quantity, table.quantity)
        numbers = _numbers(table, cell, own, quantity)
        cost = None
        if (other := baseline_of(table, cells, cell)) is not None:
            baseline = by_name.get(other.run, {})
            moved = _numbers(table, other, baseline, "bytes").replace(0.0, float("nan"))
            ratios = (_numbers(table, cell, own, "bytes") / moved).dropna()
            cost = mean_std(ratios.tolist())[0]
            if table.quantity == "relative_cost":
                numbers = ratios
            elif table.quantity == "accuracy_drop":
                numbers = (_numbers(table, other, baseline, quantity) - numbers).dropna()
        ours, std = mean_std((scale(table) * numbers).tolist())
        line = {
            **cell.model_dump(),
            "paper": cell.paper,
            "ours": ours,
            "ours_std": std,
            "difference": None if ours is None or cell.paper is None else ours - cell.paper,
            "seeds": numbers.index.tolist(),
            "notes": _notes(cell, len(numbers), len(own)),
            "runs": own,
            "cost": cost,
        }
        lines.append(line)
    return pd.DataFrame(lines, dtype=object)


def _numbers(table: Table, cell: Cell, runs: Mapping[int, RunRecord], quantity: str) -> pd.Series:
    """Returns this quantity of the runs that have it, by seed."""
    is_to_target = quantity.endswith("_to_target")
    target = table.targets.get(cell.block) if is_to_target else None
    measure = Measure.model_validate({"quantity": quantity, "net": cell.net, "of": table.of, "target": target})
    return pd.Series({seed: frame.value(run, measure) for seed, run in runs.items()}, dtype=float).dropna()


def _notes(cell: Cell, num_numbers: int, num_runs: int) -> str:
    """Returns what a reader must know of the printed value and of ours."""
    notes = {
        f"the paper's slip: {cell.slip}": cell.slip,
        f"not reproduced: {cell.not_reproduced}": cell.not_reproduced,
        "the paper's text has lost this value": cell.value == "lost",
        "there is no config for it": not cell.run,
        f"{num_numbers} of {num_runs} seeds have this number": num_numbers < num_runs,
    }
    return "; ".join(note for note, is_so in notes.items() if is_so)


def scale(table: Table) -> float:
    """Returns what our numbers are multiplied by to have the table's unit."""
    is_percent = table.quantity in ("accuracy", "accuracy_drop") and table.unit == "%"
    return (100 if is_percent else 1) / table.scale


def table(grid: Grid, name: str, runs: Sequence[RunRecord]) -> TextTable:
    """Returns a paper's table with our numbers."""
    shown = grid.printed[name]
    found = results(grid, name, runs)
    printed = found["value"][found["paper"].notna()]
    places = int(printed.str.partition(".")[2].str.len().max()) if len(printed) else 2
    lines = [_texts(row, places) for row in found.itertuples()]
    of = f", {shown.of} round" if shown.quantity in ("accuracy", "accuracy_drop", "train_loss") else ""
    unit = f" in {shown.unit}" if shown.unit else ""
    ours = f"a cell is {shown.quantity.replace('_', ' ')}{unit}{of}; ours is the mean over seeds (standard deviation)"
    above = [f"- {line}" for line in (grid.source, ours, shown.note) if line]
    return TextTable(f"{name}: {shown.title}", _HEADS, lines, 3, above)


def _texts(row: Any, places: int) -> Sequence[str]:
    paper = row.value or "-"
    paper += "" if row.std is None else f" ({row.std:g})"
    ours = "-" if row.ours is None else f"{row.ours:.{places}f}"
    ours += "" if row.ours_std is None else f" ({row.ours_std:.{places}f})"
    # Adding 0 turns the -0.0 of a rounded difference into 0.0.
    difference = "-" if row.difference is None else f"{round(row.difference, places) + 0.0:+.{places}f}"
    rounds = sorted({run.rounds for run in row.runs.values()})
    seeds = ",".join(map(str, row.seeds)) or "-"
    last = (seeds, ",".join(map(str, rounds)) or "-", row.notes)
    return row.block, row.column, row.row, paper, ours, difference, *last


def comma_separated(grid: Grid, runs: Sequence[RunRecord]) -> str:
    """Returns all tables as one CSV, with exact numbers: what the grid file says of each cell, then ours."""
    tables = []
    for name, table in grid.printed.items():
        found = results(grid, name, runs).drop(columns=["paper", "runs", "cost"])
        found["seeds"] = [" ".join(map(str, seeds)) for seeds in found["seeds"]]
        tables.append(found.assign(table=name, quantity=table.quantity, unit=table.unit))
    whole = pd.concat(tables)
    return str(whole[[*whole.columns[-3:], *whole.columns[:-3]]].to_csv(index=False))


# Figures.


def panels_of_paper(grid: Grid, name: str, runs: Sequence[RunRecord]) -> list[Draw]:
    """Returns the panels of a paper's figure; [] for a table, and for a figure without runs."""
    shown = grid.printed[name]
    found = results(grid, name, runs)
    if shown.axes is None or not any(found["runs"]):
        return []
    if shown.quantity == "accuracy_drop":  # the baseline is the line at zero
        found = found[found["column"] != shown.baseline]
    columns = found["column"].unique().tolist()
    blocks = found.groupby("block", sort=False)
    return [partial(_draw_block, shown, shown.axes, columns, block) for _, block in blocks]


def _draw_block(table: Table, labels: Labels, columns: Sequence[str], found: pd.DataFrame, axes: Axes) -> None:
    """Draws a line or points for each column, in the colour that the column has in all panels."""
    rows = found["row"].unique().tolist()
    ticks = rows if labels.x == "row" and None in map(as_number, rows) else []
    for column, own in found.groupby("column", sort=False):
        place = columns.index(column)
        first = own.iloc[0]
        if first["row"] == "" and first["runs"]:
            records = [run.records for run in first["runs"].values()]
            line = frame.curve(column, records, first["net"], table.quantity, labels.x, scale(table))
            figure.draw_line(axes, line, place)
        at = own.assign(x=[_place(row, ticks, labels) for row in own.itertuples()])
        is_joined = labels.x == "row" and not ticks
        _draw_points(axes, column, place, at.dropna(subset="x").sort_values("x", kind="stable"), is_joined=is_joined)
    axes.set_title(found["block"].iloc[0])
    axes.set_xlabel(labels.x_label)
    axes.set_ylabel(labels.y_label)
    if ticks:
        axes.set_xticks(range(len(ticks)), ticks)
    else:
        figure.format_numbers(axes.xaxis, labels.x)


def _draw_points(axes: Axes, column: str, place: int, at: pd.DataFrame, *, is_joined: bool) -> None:
    """Draws the cells of a column at their x: our means with their standard deviations, and the paper's crosses."""
    colour = figure.colour_of(place)
    ours = at.dropna(subset="ours")
    if len(ours):
        xs = ours["x"].tolist()
        ys = ours["ours"].tolist()
        figure.draw_line(axes, Line(column, xs, ys), place, is_joined=is_joined)
        if ours["ours_std"].any():
            axes.errorbar(xs, ys, yerr=ours["ours_std"].fillna(0.0), color=colour, linestyle="none")
    for x, paper in at.dropna(subset="paper")[["x", "paper"]].to_numpy():
        axes.plot([x], [paper], color=colour, marker="x", linestyle="none", label="paper")


def _place(row: Any, ticks: Sequence[str], labels: Labels) -> float | None:
    """Returns the x of a cell, None as long as its run does not say."""
    if labels.x == "relative_cost":
        return row.cost
    if labels.x == "params":
        sizes = [net["params"] for run in row.runs.values() for net in run.nets if net["name"] == row.net]
        return float(sizes[0]) if sizes else None
    return float(ticks.index(row.row)) if row.row in ticks else as_number(row.row)
