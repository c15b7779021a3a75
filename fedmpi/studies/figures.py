"""A paper's figure from our runs, with the paper's axes, for `jobs/reproduce.py`: pictures and the points in them.

Three kinds, whatever the figure shows: curves (a line for each method: by round, by what was moved, or over a setting),
bars (a group for each setting), scatter. A panel is a block of `fedmpi.papers`; what the paper prints is drawn as
crosses. Curves of several seeds are their mean, with a band of one standard deviation, over the rounds that all have.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING

from fedmpi import papers
from fedmpi.report import table_text
from fedmpi.results import figure
from fedmpi.store.files import write_text
from fedmpi.store.units import as_number
from fedmpi.studies import measures
from fedmpi.studies.runs import History, mean_std
from fedmpi.studies.tables import Archive, Result, collect, in_unit

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_BARS_TAKE = 0.8
_COUNTED = ("keep_ratio", "clients_per_round", "local_epochs", "samples")
"""Axes on which a row's label is a number."""
_WHOLE = ("round", "kernel", "clients_per_round", "local_epochs", "samples")


@dataclass(frozen=True)
class Line:
    """One method in one panel: points (x, y, standard deviation), and what the paper prints, (x, y)."""

    label: str
    ours: tuple[tuple[float, float, float | None], ...] = ()
    paper: tuple[tuple[float, float], ...] = ()


@dataclass(frozen=True)
class Panel:
    """`ticks` are the words on the x axis, at 0, 1, 2 ...; without them it has numbers."""

    title: str
    lines: tuple[Line, ...]
    ticks: tuple[str, ...] = ()


def draw(archive: Archive, folder: Path) -> list[str]:
    """Writes the pictures and figure.csv; the pictures' names, none if there is nothing to show yet."""
    panels = panels_of(archive)
    if not any(line.ours for panel in panels for line in panel.lines):
        return []
    names = ["figure.png", "figure.svg"]
    for name in names:
        figure.save(picture(archive.table, panels, archive.request.made_with), folder / name)
    write_text(folder / "figure.csv", comma_separated(panels))
    return names


def panels_of(archive: Archive) -> list[Panel]:
    """A panel for each block, a line for each of its columns; computed columns have units, and panels, of their own."""
    table, results = archive.table, collect(archive)
    if table.quantity == "accuracy_drop":  # the baseline is what the others fall short of: a line at zero
        results = [result for result in results if result.cell.column != table.baseline]

    def title(result: Result) -> str:
        return result.cell.block + f", {result.cell.column}" * (table.quantity == "computed")

    return [_panel(name, list(those), archive) for name, those in groupby(results, key=title)]


def _panel(title: str, results: Sequence[Result], archive: Archive) -> Panel:
    table, rows = archive.table, tuple(dict.fromkeys(result.cell.row for result in results if result.cell.row))
    is_counted = table.axes is not None and table.axes.x in _COUNTED and None not in map(as_number, rows)
    ticks = rows if table.kind == "bars" or (table.kind == "curves" and not is_counted) else ()
    lines = []
    for column, of_column in groupby(results, key=lambda result: result.cell.column):
        own = list(of_column)
        points = [(_place(result, ticks, archive), result) for result in own if result.cell.row]
        lines += [_curve(result.cell, archive) for result in own if not result.cell.row]
        lines += [_points(column, points)] if points else []
    return Panel(title, tuple(lines), ticks)


def _place(result: Result, ticks: Sequence[str], archive: Archive) -> float | None:
    """Where on the x axis a cell stands; None while its run does not say."""
    cell, axes = result.cell, archive.table.axes
    if cell.row in ticks:
        return float(ticks.index(cell.row))
    if axes is None or axes.x in _COUNTED:
        return as_number(cell.row)
    histories = archive.histories(cell)
    if axes.x == "params":
        from fedmpi.verify.nets import of_run, params

        return float(params(of_run(cell.run, *archive.request.changed).net(cell.net))) if histories else None
    found = [archive.number(cell, history, axes.x) for history in histories]
    return mean_std([place for place in found if place is not None])[0]


def _points(column: str, points: Sequence[tuple[float | None, Result]]) -> Line:
    placed = sorted(((x, result) for x, result in points if x is not None), key=lambda pair: pair[0])
    ours = ((x, result.ours, result.std) for x, result in placed if result.ours is not None)
    paper = ((x, printed) for x, result in placed if (printed := result.cell.paper) is not None)
    return Line(column, tuple(ours), tuple(paper))


def _curve(cell: papers.Cell, archive: Archive) -> Line:
    table = archive.table
    runs = [_course(table, cell, history) for history in archive.histories(cell)]
    points = []
    for step in sorted(set.intersection(*map(set, runs))) if runs else []:
        (x, _), (y, std) = (mean_std(values) for values in zip(*(run[step] for run in runs), strict=True))
        points.append((x or 0.0, in_unit(table, y) or 0.0, in_unit(table, std)))
    return Line(cell.column, tuple(points))


def _course(table: papers.Table, cell: papers.Cell, history: History) -> dict[int, tuple[float, float]]:
    """One seed's points, by round (or by kernel)."""
    x = table.axes.x if table.axes else "round"
    if x == "kernel":
        return {int(kernel): (kernel, count) for kernel, count in measures.kernel_profile(history, cell.net)}
    return measures.series(history, table.quantity, cell.net, x)


def comma_separated(panels: Sequence[Panel]) -> str:
    """Every point that is drawn, ours and the paper's, exact."""
    rows = []
    for panel, line in ((each, line) for each in panels for line in each.lines):
        points = [("ours", *point) for point in line.ours] + [("paper", x, y, None) for x, y in line.paper]
        for whose, x, y, std in points:
            place = panel.ticks[int(x)] if panel.ticks else x
            rows.append({"panel": panel.title, "label": line.label, "whose": whose, "x": place, "y": y, "std": std})
    return table_text.comma_separated(rows)


def picture(table: papers.Table, panels: Sequence[Panel], said: str = "") -> Figure:
    """The whole figure: panels in rows, one legend for all; `said` stands below its title."""
    from matplotlib.lines import Line2D

    labels = dict.fromkeys(line.label for panel in panels for line in panel.lines)
    places = {label: place for place, label in enumerate(labels)}
    drawn = [functools.partial(_draw_panel, table=table, panel=panel, places=places) for panel in panels]
    has_paper = any(line.paper for panel in panels for line in panel.lines)
    crosses = {"paper": Line2D([], [], color="black", marker="x", linestyle="none")} if has_paper else {}
    return figure.compose(drawn, "\n".join(filter(None, [table.title, said])), more=crosses)


def _draw_panel(axes: Axes, table: papers.Table, panel: Panel, places: Mapping[str, int]) -> None:
    xs = [x for line in panel.lines for x in dict.fromkeys(point[0] for point in (*line.ours, *line.paper))]
    count = len(panel.lines) if len(set(xs)) < len(xs) else 1  # bars of a tick of their own are not set apart
    width = _BARS_TAKE / count
    for number, line in enumerate(panel.lines):
        shift = (min(number, count - 1) - (count - 1) / 2) * width if table.kind == "bars" else 0.0
        _draw(axes, table.kind, line, places[line.label], shift, width)
    if not any(line.ours or line.paper for line in panel.lines):
        axes.text(0.5, 0.5, "not run", transform=axes.transAxes, horizontalalignment="center")
    axes.set_title(panel.title)
    axes.set_xlabel(_axis_label(table, "x"))
    axes.set_ylabel(_axis_label(table, "y"))
    if panel.ticks:
        axes.set_xticks(range(len(panel.ticks)), panel.ticks)
    elif table.axes is not None and table.axes.x in _WHOLE:
        figure.whole_numbers(axes)


def _axis_label(table: papers.Table, name: str) -> str:
    label = getattr(table.axes, f"{name}_label", "")
    return label or str(getattr(table.axes, name, "")).replace("_", " ")


def _draw(axes: Axes, kind: str, line: Line, place: int, shift: float, width: float) -> None:
    """One line of a panel, its deviations, and crosses for what the paper prints; bars stand beside their tick."""
    from matplotlib.patheffects import withStroke

    xs, ys = [x + shift for x, _, _ in line.ours], [y for _, y, _ in line.ours]
    errors = [std or 0.0 for _, _, std in line.ours] if any(std for _, _, std in line.ours) else []
    colour = figure.colour_of(place)
    if ys and kind == "bars":
        axes.bar(xs, ys, width, yerr=errors or None, ecolor="0.4", label=line.label, **figure.bar_style(place))
    elif ys:
        is_joined = kind != "scatter"
        band = errors if is_joined else []
        low, high = ([y + sign * std for y, std in zip(ys, band, strict=False)] for sign in (-1, 1))
        figure.draw_line(axes, figure.Line(line.label, xs, ys, low, high), place, is_joined=is_joined)
    if errors and kind == "scatter":
        axes.errorbar(xs, ys, yerr=errors, color=colour, linestyle="none")
    if line.paper:
        xs, ys = [x + shift for x, _ in line.paper], [y for _, y in line.paper]
        crosses = axes.plot(xs, ys, color="black" if kind == "bars" else colour, marker="x", linestyle="none")
        crosses[0].set_path_effects([withStroke(linewidth=3, foreground="white")])  # seen on bars and lines alike
