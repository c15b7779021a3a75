"""Draws the figures of a grid: accuracy by round and by bytes, the energy that each tier lacks of methods whose tiers
have ranks, and the figures of a paper, where a panel is a block of the table and the paper's numbers are crosses.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import pandas as pd

from fedmpi.report.records import net_scores
from fedmpi.results import figure, frame, printed_report
from fedmpi.results.answers import Results
from fedmpi.results.archive import RunRecord
from fedmpi.results.figure import Draw, Line, Panel
from fedmpi.results.grid_file import GridFile
from fedmpi.results.printed import Axes as Labels
from fedmpi.results.printed import Table
from fedmpi.store.units import as_number

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def figures_of(results: Results) -> dict[str, Sequence[Draw]]:
    """Returns the panels of each figure, by the name of its file."""
    content = results.grid.content
    figures: dict[str, Sequence[Draw]] = {}
    for name in content.printed:
        figures[f"{name}.svg"] = panels_of_paper(content, name, results.runs)
    for setting in () if content.printed else content.settings:
        figures[f"{setting}-curves.svg"] = _curves(results, setting)
        energies = [_energy(run) for run in results.finals(setting)]
        figures[f"{setting}-energy.svg"] = [panel for panel in energies if len(panel.lines) > 1]
    return {name: panels for name, panels in figures.items() if panels}


def _curves(results: Results, setting: str) -> list[Panel]:
    """Returns panels of the largest and the smallest net by round, and of the largest by bytes."""
    runs = results.finals(setting)
    if not runs:
        return []
    nets = {"clients": "clients' own nets"}
    if all(any(map(net_scores, run.records)) for run in runs):
        nets = {"largest": "largest net", "smallest": "smallest net"}
    axes = [*((net, "rounds") for net in nets), (next(iter(nets)), "bytes")]
    panels = []
    for net, x in axes:
        lines = {}
        for place, method in enumerate(results.grid.content.methods):
            if own := results.finals(setting, method):
                lines[place] = frame.curve(method, [run.records for run in own], net, x=x)
        panels.append(Panel(lines, x, "accuracy", title=nets[net], label="test accuracy"))
    return panels


def _energy(run: RunRecord) -> Panel:
    """Draws what each tier lacks whose records have several rounds."""
    lines = [line for line in frame.tier_curves(run.records, "spectrum", "beyond") if len(line.x) > 1]
    title = f"{run.run.method}, seed {run.run.seed}"
    return Panel(dict(enumerate(lines)), y="lacking", title=title, label="energy beyond a tier's rank")


def panels_of_paper(content: GridFile, name: str, runs: Sequence[RunRecord]) -> list[Draw]:
    """Returns the panels of a paper's figure; [] for a table, and for a figure without runs."""
    table = content.printed[name]
    found = printed_report.results(content, name, runs)
    if table.axes is None or not any(found["runs"]):
        return []
    if table.quantity == "accuracy_drop":  # the baseline is the line at zero
        found = found[found["column"] != table.baseline]
    columns = found["column"].unique().tolist()
    blocks = found.groupby("block", sort=False)
    return [partial(_draw_block, table, table.axes, columns, block) for _, block in blocks]


def _draw_block(table: Table, labels: Labels, columns: Sequence[str], found: pd.DataFrame, axes: Axes) -> None:
    """Draws a line or points for each column, in the colour that the column has in all panels."""
    rows = found["row"].unique().tolist()
    ticks = rows if labels.x == "row" and None in map(as_number, rows) else []
    for column, own in found.groupby("column", sort=False):
        place = columns.index(column)
        first = own.iloc[0]
        if first["row"] == "" and first["runs"]:
            records = [run.records for run in first["runs"].values()]
            scale = printed_report.scale(table)
            figure.draw_line(axes, frame.curve(column, records, first["net"], table.quantity, labels.x, scale), place)
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
