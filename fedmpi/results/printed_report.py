"""Writes a paper's tables and figures with our numbers.

A figure has the paper's axes: curves, bars or a scatter. A panel is a block of the table. The paper's numbers are drawn
as crosses. A curve of several seeds is their mean, with a band of one standard deviation, over the rounds that all
seeds have.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING

from fedmpi.report import table_text
from fedmpi.report.terminal import printable, wrapped
from fedmpi.results import measures
from fedmpi.results.evidence import mean_std
from fedmpi.results.figure import Line, bar_style, colour_of, compose, draw_line, save, whole_numbers
from fedmpi.results.grid_file import GridFile
from fedmpi.results.printed import (
    HEADS,
    NUM_LEFT,
    Result,
    RunsOf,
    Table,
    chosen,
    comma_separated,
    head,
    in_unit,
    lines,
    results,
)
from fedmpi.results.printed import Axes as Labels
from fedmpi.store.files import write_text
from fedmpi.store.units import as_number

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_BARS_TAKE = 0.8
_WHOLE = ("round", "kernel", "clients_per_round", "local_epochs", "samples")
Point = tuple[float, float, float]
"""x, y and the standard deviation over the seeds."""


def write(
    content: GridFile, out: Path, runs_of: RunsOf, *, only: Sequence[str] = (), made_with: str = ""
) -> list[Path]:
    """Prints the chosen cells of a grid file's tables, and writes these tables whole: as Markdown, as CSV, and as the
    figure if one of its runs has begun. Returns the paths.
    """
    paths = []
    for name, cells in chosen(content.printed, only).items():
        table: Table = content.printed[name]
        found = results(content.printed, name, runs_of)
        above = head(table, content.source, made_with)
        shown = [result for result in found if result.cell in cells]
        rows, footnotes = lines(table, shown)
        print(f"{name}: {table.title}")
        table_text.print_lines(HEADS, rows, NUM_LEFT, sys.stdout)
        print(*(printable(line, sys.stdout) for line in wrapped(*above, *footnotes)), "", sep="\n")
        pictures: list[Path] = []
        if table.axes is not None and any(result.runs for result in found):
            drawn = draw(table, table.axes, found, made_with)
            pictures = [out / f"{name}.png", out / f"{name}.svg"]
            for path in pictures:
                save(drawn, path)
        write_text(out / f"{name}.md", markdown(name, table, found, above, pictures))
        write_text(out / f"{name}.csv", comma_separated(table, found, made_with))
        paths += [out / f"{name}.md", out / f"{name}.csv", *pictures]
    return paths


def markdown(name: str, table: Table, results: Sequence[Result], above: Sequence[str], pictures: Sequence[Path]) -> str:
    """Returns the whole table as Markdown."""
    rows, footnotes = lines(table, results)
    parts = [f"# {name}: {table.title}", "", *(f"- {line}" for line in above), ""]
    parts += [f"![{table.title}]({path.name})" for path in pictures[:1]] + [""] * len(pictures[:1])
    parts += [*table_text.markdown_lines(HEADS, rows, NUM_LEFT), "", *(f"- {note}" for note in footnotes), ""]
    return "\n".join(parts)


def draw(table: Table, labels: Labels, results: Sequence[Result], made_with: str) -> Figure:
    """Draws the figure of a table."""
    from matplotlib.lines import Line2D  # matplotlib takes a second

    if table.quantity == "accuracy_drop":  # the baseline is the line at zero
        results = [result for result in results if result.cell.column != table.baseline]
    columns = list(dict.fromkeys(result.cell.column for result in results))
    panels = [
        partial(_draw_panel, table=table, labels=labels, title=block, results=list(own), columns=columns)
        for block, own in groupby(results, key=lambda result: result.cell.block)
    ]
    has_paper = any(result.cell.paper is not None for result in results)
    cross = {"paper": Line2D([], [], color="black", marker="x", linestyle="none")} if has_paper else {}
    return compose(panels, "\n".join(filter(None, (table.title, made_with))), more=cross)


def _draw_panel(
    axes: Axes, table: Table, labels: Labels, title: str, results: Sequence[Result], columns: Sequence[str]
) -> None:
    rows = list(dict.fromkeys(result.cell.row for result in results))
    has_words = table.kind == "bars" or (table.kind == "curves" and rows != [""] and None in map(as_number, rows))
    ticks = rows if has_words else []
    own_columns = list(dict.fromkeys(result.cell.column for result in results))
    is_alone = len(results) == len(rows)  # such a bar stands in the middle of its tick
    width = _BARS_TAKE / (1 if is_alone else len(own_columns))
    for number, column in enumerate(own_columns):
        of_column = [result for result in results if result.cell.column == column]
        middle = 0.0 if is_alone or table.kind != "bars" else (number - (len(own_columns) - 1) / 2) * width
        places = [(_place(result, ticks, labels), result) for result in of_column]
        at = [(x + middle, result) for x, result in places if x is not None]
        points = [(x, result.ours, result.std or 0.0) for x, result in at if result.ours is not None]
        if of_column[0].cell.row == "":
            points = curve(table, labels, of_column[0])
        place = columns.index(column)
        _draw_column(axes, table.kind, column, place, sorted(points), width)
        for x, result in at:
            if result.cell.paper is not None:
                colour = "black" if table.kind == "bars" else colour_of(place)
                axes.plot([x], [result.cell.paper], color=colour, marker="x", linestyle="none")
    axes.set_title(title)
    axes.set_xlabel(labels.x_label or labels.x.replace("_", " "))
    axes.set_ylabel(labels.y_label or table.quantity.replace("_", " "))
    if ticks:
        axes.set_xticks(range(len(ticks)), ticks)
    elif labels.x in _WHOLE:
        whole_numbers(axes)


def _draw_column(axes: Axes, kind: str, label: str, place: int, points: Sequence[Point], width: float) -> None:
    if not points:
        return
    xs, ys, errors = (list(values) for values in zip(*points, strict=True))
    has_errors = any(errors)
    if kind == "bars":
        axes.bar(xs, ys, width, yerr=errors if has_errors else None, ecolor="0.4", label=label, **bar_style(place))
    elif kind == "curves":
        low, high = ([y + sign * error for y, error in zip(ys, errors, strict=True)] for sign in (-1, 1))
        draw_line(axes, Line(label, xs, ys, low, high) if has_errors else Line(label, xs, ys), place)
    else:
        draw_line(axes, Line(label, xs, ys), place, is_joined=False)
        if has_errors:
            axes.errorbar(xs, ys, yerr=errors, color=colour_of(place), linestyle="none")


def _place(result: Result, ticks: Sequence[str], labels: Labels) -> float | None:
    """Returns the x of a cell, None as long as its run does not say."""
    cell = result.cell
    if cell.row in ticks:
        return float(ticks.index(cell.row))
    if labels.x == "params":
        sizes = [net["params"] for run in result.runs.values() for net in run.nets if net["name"] == cell.given.net]
        return float(sizes[0]) if sizes else None
    if labels.x == "relative_cost":
        costs = [
            measures.value(run.records, "relative_cost", baseline=result.baselines[seed].records)
            for seed, run in result.runs.items()
            if seed in result.baselines
        ]
        return mean_std([cost for cost in costs if cost is not None])[0]
    return as_number(cell.row)


def curve(table: Table, labels: Labels, result: Result) -> list[Point]:
    """Returns the points of a curve, the mean over its seeds of each round (or kernel) that all seeds have."""
    courses = []
    for run in result.runs.values():
        if labels.x == "kernel":
            profile = measures.kernel_profile(run.records, result.cell.given.net)
            courses.append({int(kernel): (kernel, clients) for kernel, clients in profile})
        else:
            courses.append(measures.series(run.records, table.quantity, result.cell.given.net, labels.x))
    points = []
    for step in sorted(set.intersection(*map(set, courses))) if courses else []:
        x = mean_std([course[step][0] for course in courses])[0]
        y, std = mean_std([course[step][1] for course in courses])
        if x is not None and y is not None:
            points.append((x, in_unit(table, y), in_unit(table, std or 0.0)))
    return points
