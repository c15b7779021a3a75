"""Draws the figures of a grid from its records: accuracy by round, paired differences, and of methods whose tiers have
ranks the energy that each tier lacks.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING

from fedmpi.results import figure
from fedmpi.results.answers import Answer, Part, is_final
from fedmpi.results.archive import RunRecord
from fedmpi.results.figure import Line
from fedmpi.results.grid_file import Grid
from fedmpi.results.measures import nets_of
from fedmpi.results.run import accuracy_of, moved

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def figures_of(grid: Grid, runs: Sequence[RunRecord], answers: Sequence[Answer]) -> dict[str, Sequence[figure.Draw]]:
    """Returns the panels of each figure, by the name of its file."""
    figures: dict[str, Sequence[figure.Draw]] = {}
    for setting in grid.content.settings:
        own = [run for run in runs if is_final(run, setting)]
        figures[f"{setting}-curves.svg"] = _curve_panels(grid, own)
        figures[f"{setting}-differences.svg"] = [
            partial(_difference, grid, answer, part)
            for answer in answers
            if answer.setting == setting
            for part in answer.parts
        ]
        figures[f"{setting}-energy.svg"] = [partial(_energy, run) for run in own if len(_missing_energy(run)) > 1]
    return {name: panels for name, panels in figures.items() if panels}


def draw(grid: Grid, runs: Sequence[RunRecord], answers: Sequence[Answer], folder: Path) -> None:
    """Writes the figures as SVG."""
    for name, panels in figures_of(grid, runs, answers).items():
        drawn = figure.compose(panels, share_y=not name.endswith("-differences.svg"))
        figure.save(drawn, folder / name)


def line_of(runs: Sequence[RunRecord], net: str, label: str, *, by_bytes: bool = False) -> Line:
    """Averages the accuracy over seeds by round, or by what all clients have moved up to it."""
    points: list[tuple[int, float, float]] = []
    for run in runs:
        (name,) = nets_of(run.records, net)
        sums = accumulate(moved(record) for record in run.records)
        for record, num_bytes in zip(run.records, sums, strict=True):
            accuracy = accuracy_of(record, name)
            if accuracy is not None:
                points.append((record["round"], float(num_bytes if by_bytes else record["round"]), accuracy))
    return figure.over_seeds(label, points, len(runs))


def _curve_panels(grid: Grid, runs: Sequence[RunRecord]) -> list[figure.Draw]:
    """Returns panels of the largest and the smallest net by round, and of the largest by bytes."""
    if not runs:
        return []
    nets = ("largest", "smallest") if all(nets_of(run.records, "largest") for run in runs) else ("clients",)
    by_round = [partial(_curves, grid, runs, net, False) for net in nets]
    return [*by_round, partial(_curves, grid, runs, nets[0], True)]


def _curves(grid: Grid, runs: Sequence[RunRecord], net: str, by_bytes: bool, axes: Axes) -> None:
    for place, method in enumerate(grid.content.methods):
        own = [run for run in runs if run.run.method == method]
        if own:
            figure.draw_line(axes, line_of(own, net, method, by_bytes=by_bytes), place)
    axes.set_title("clients' own nets" if net == "clients" else f"{net} net")
    axes.set_xlabel(figure.X_LABELS["bytes" if by_bytes else "rounds"])
    axes.set_ylabel("test accuracy")
    figure.as_percent(axes)
    if by_bytes:
        figure.with_unit(axes, "B")
    else:
        figure.whole_numbers(axes)


def _missing_energy(run: RunRecord) -> dict[str, list[tuple[int, float]]]:
    """Returns (round, share of the energy beyond its rank) by tier, of tiers whose records have several rounds; without
    zeros, because the axis is logarithmic.
    """
    points: dict[str, list[tuple[int, float]]] = {}
    for record in run.records:
        spectrum = (record.get("method") or {}).get("spectrum") or {}
        for tier, share in spectrum.get("beyond", {}).items():
            if share:
                points.setdefault(tier, []).append((record["round"], share))
    return {tier: of_tier for tier, of_tier in points.items() if len(of_tier) > 1}


def _energy(run: RunRecord, axes: Axes) -> None:
    for place, (tier, points) in enumerate(_missing_energy(run).items()):
        rounds, shares = zip(*points, strict=True)
        figure.draw_line(axes, Line(f"tier {tier}", rounds, shares), place)
    axes.set_yscale("log")
    axes.set_title(f"{run.run.method}, seed {run.run.seed}")
    axes.set_xlabel("round")
    axes.set_ylabel("energy beyond a tier's rank")
    figure.whole_numbers(axes)


def _difference(grid: Grid, answer: Answer, part: Part, axes: Axes) -> None:
    """Draws the seeds, their mean, its interval, and the margin that is allowed."""
    measure = grid.content.measures[part.condition.measure]
    scale = 100 if measure.is_share else 1
    low, high, _ = part.interval
    values = [scale * value for value in part.differences.values()]
    axes.axvline(-scale * part.condition.margin, color="0.6", linewidth=1, linestyle="--")
    axes.plot([scale * low, scale * high], [0, 0], color=figure.colour_of(1), linewidth=3, alpha=0.4)
    axes.plot(values, [0] * len(values), "o", color=figure.colour_of(1))
    axes.plot([scale * part.mean], [0], "|", color=figure.colour_of(0), markersize=14)
    axes.set_title(f"{answer.question.first} - {answer.question.second}")
    units = {"accuracy": " (points)", "time_share": " (points)", "seconds": " (s)"}
    axes.set_xlabel(part.condition.measure + units.get(measure.quantity, ""))
    axes.set_yticks([])
    axes.set_ylim(-1, 1)
