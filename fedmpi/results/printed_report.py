"""Puts our numbers beside those that a paper prints, as tables and as figures with the paper's axes.

Our number of a cell is the mean over its finished runs. In a figure a panel is a block of the table, and the paper's
numbers are crosses.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from typing import TYPE_CHECKING, NamedTuple

from fedmpi.report import table_text
from fedmpi.results import figure, measures
from fedmpi.results.archive import RunRecord
from fedmpi.results.evidence import mean_std
from fedmpi.results.figure import Draw, Line
from fedmpi.results.grid_file import GridFile, Measure
from fedmpi.results.printed import Axes as Labels
from fedmpi.results.printed import Cell, Table, baseline_of, cells_of
from fedmpi.store.units import as_number

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_HEADS = ("", "column", "row", "paper", "ours", "difference", "seeds", "rounds", "notes")
_MEASURED = {"accuracy_drop": "accuracy", "relative_cost": "bytes"}
"""The quantity of both runs that a comparison is of."""
_WHOLE = ("round", "kernel", "clients_per_round", "local_epochs", "samples")


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
    costs: Sequence[float] = ()
    """The bytes of each run over those of its baseline."""

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
        reasons = {"the paper's slip: ": self.cell.slip, "not reproduced: ": self.cell.given.not_reproduced}
        found = [start + reason for start, reason in reasons.items() if reason]
        if self.cell.given.value == "lost":
            found.append("the paper's text has lost this value")
        if not self.cell.run:
            found.append("there is no config for it")
        if len(self.numbers) < len(self.runs):
            found.append(f"{len(self.numbers)} of {len(self.runs)} seeds have this number")
        return found


def results(content: GridFile, name: str, runs: Sequence[RunRecord]) -> list[Result]:
    """Returns a result for each cell of a table; a curve's is that of its last (or best) point."""
    table = content.printed[name]
    cells = cells_of(content.printed, name)
    by_name: dict[str, dict[int, RunRecord]] = {}
    for run in runs:
        by_name.setdefault(f"{run.run.setting}/{run.run.method}", {})[run.run.seed] = run
    found = []
    for cell in cells:
        own = by_name.get(cell.run, {})
        other = baseline_of(table, cells, cell)
        baselines = by_name.get(other.run, {}) if other is not None else {}
        measure = _measure(table, cell)
        numbers = {seed: measures.value(run, measure) for seed, run in own.items()}
        if other is not None and table.quantity in _MEASURED:
            base = _measure(table, other)
            theirs = {seed: measures.value(run, base) for seed, run in baselines.items()}
            numbers = {seed: _compared(table, number, theirs.get(seed)) for seed, number in numbers.items()}
        known = {seed: _scale(table) * number for seed, number in numbers.items() if number is not None}
        found.append(Result(cell, own, known, list(_costs(own, baselines))))
    return found


def _measure(table: Table, cell: Cell) -> Measure:
    quantity = _MEASURED.get(table.quantity, table.quantity)
    given = {"quantity": quantity, "net": cell.given.net, "of": table.of, "target": table.targets.get(cell.block)}
    return Measure.model_validate(given)


def _compared(table: Table, ours: float | None, theirs: float | None) -> float | None:
    if ours is None or theirs is None:
        return None
    return theirs - ours if table.quantity == "accuracy_drop" else ours / theirs


def _costs(runs: Mapping[int, RunRecord], baselines: Mapping[int, RunRecord]) -> Iterator[float]:
    for seed in runs.keys() & baselines.keys():
        ours, theirs = (measures.value(of[seed], Measure(quantity="bytes")) for of in (runs, baselines))
        if ours is not None and theirs:
            yield ours / theirs


def _scale(table: Table) -> float:
    """Returns what our numbers are multiplied by to have the table's unit."""
    is_percent = table.quantity in ("accuracy", "accuracy_drop") and table.unit == "%"
    return (100 if is_percent else 1) / table.scale


def table(content: GridFile, name: str, runs: Sequence[RunRecord]) -> TextTable:
    """Returns a paper's table with our numbers, each block's name once, and footnotes."""
    shown = content.printed[name]
    found = results(content, name, runs)
    footnotes = list(dict.fromkeys(note for result in found for note in result.notes))
    decimals = [len(result.cell.given.value.partition(".")[2]) for result in found if result.cell.paper is not None]
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
    paper = cell.given.value or "-"
    paper += "" if cell.given.std is None else f" ({cell.given.std:g})"
    ours = "-" if result.ours is None else f"{result.ours:.{places}f}"
    ours += "" if result.std is None else f" ({result.std:.{places}f})"
    # Adding 0 turns the -0.0 of a rounded difference into 0.0.
    difference = "-" if result.difference is None else f"{round(result.difference, places) + 0.0:+.{places}f}"
    rounds = sorted({run.rounds for run in result.runs.values()})
    seeds = ",".join(map(str, result.numbers)) or "-"
    return cell.column, cell.row, paper, ours, difference, seeds, ",".join(map(str, rounds)) or "-"


def comma_separated(content: GridFile, runs: Sequence[RunRecord]) -> str:
    """Returns all tables as one CSV, with exact numbers."""
    rows: list[dict[str, object]] = []
    for name, table in content.printed.items():
        for result in results(content, name, runs):
            cell = result.cell
            row: dict[str, object] = {"table": name, "block": cell.block, "column": cell.column, "row": cell.row}
            row |= {"run": cell.run, "net": cell.given.net, "quantity": table.quantity, "unit": table.unit}
            row |= {"paper": cell.given.value, "paper_std": cell.given.std, "ours": result.ours, "ours_std": result.std}
            row |= {"difference": result.difference, "seeds": " ".join(map(str, result.numbers))}
            rows.append(row | {"notes": "; ".join(result.notes)})
    return table_text.comma_separated(rows)


def panels(content: GridFile, name: str, runs: Sequence[RunRecord]) -> list[Draw]:
    """Returns the panels of a figure; [] for a table, and for a figure without runs."""
    table = content.printed[name]
    found = results(content, name, runs)
    if table.axes is None or not any(result.runs for result in found):
        return []
    if table.quantity == "accuracy_drop":  # the baseline is the line at zero
        found = [result for result in found if result.cell.column != table.baseline]
    columns = list(dict.fromkeys(result.cell.column for result in found))
    return [
        partial(_draw_panel, table, table.axes, columns, list(of_block))
        for _, of_block in groupby(found, key=lambda result: result.cell.block)
    ]


def _draw_panel(table: Table, labels: Labels, columns: Sequence[str], results: Sequence[Result], axes: Axes) -> None:
    """Draws a line or points for each column, in the colour that the column has in all panels."""
    rows = list(dict.fromkeys(result.cell.row for result in results))
    has_words = rows != [""] and None in map(as_number, rows)
    ticks = rows if table.kind == "bars" or (table.kind == "curves" and has_words) else []
    for column, of_column in groupby(results, key=lambda result: result.cell.column):
        own = list(of_column)
        if own[0].cell.row == "" and own[0].runs:
            measure = _measure(table, own[0].cell)
            curve = measures.curve(column, list(own[0].runs.values()), measure, labels.x, _scale(table))
            figure.draw_line(axes, curve, columns.index(column))
        at = [(x, result) for result in own if (x := _place(result, ticks, labels)) is not None]
        _draw_points(axes, table.kind, columns.index(column), sorted(at, key=lambda one: one[0]))
    axes.set_title(results[0].cell.block)
    axes.set_xlabel(labels.x_label or labels.x.replace("_", " "))
    axes.set_ylabel(labels.y_label or table.quantity.replace("_", " "))
    if ticks:
        axes.set_xticks(range(len(ticks)), ticks)
    elif labels.x in _WHOLE:
        figure.whole_numbers(axes)


def _draw_points(axes: Axes, kind: str, place: int, at: Sequence[tuple[float, Result]]) -> None:
    """Draws the cells of a column at their x: our means with their standard deviations, and the paper's crosses."""
    colour = figure.colour_of(place)
    ours = [(x, result.ours, result.std or 0.0) for x, result in at if result.ours is not None]
    if ours:
        xs, ys, errors = zip(*ours, strict=True)
        figure.draw_line(axes, Line(at[0][1].cell.column, xs, ys), place, is_joined=kind == "curves")
        if any(errors):
            axes.errorbar(xs, ys, yerr=errors, color=colour, linestyle="none")
    for x, result in at:
        if result.cell.paper is not None:
            axes.plot([x], [result.cell.paper], color=colour, marker="x", linestyle="none", label="paper")


def _place(result: Result, ticks: Sequence[str], labels: Labels) -> float | None:
    """Returns the x of a cell, None as long as its run does not say."""
    cell = result.cell
    if cell.row in ticks:
        return float(ticks.index(cell.row))
    if labels.x == "params":
        sizes = [net["params"] for run in result.runs.values() for net in run.nets if net["name"] == cell.given.net]
        return float(sizes[0]) if sizes else None
    if labels.x == "relative_cost":
        return mean_std(result.costs)[0]
    return as_number(cell.row)
