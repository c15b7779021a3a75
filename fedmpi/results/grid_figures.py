"""Figures of a study, drawn from its records: accuracy by round for each setting, paired differences, and of methods
whose tiers have ranks the energy that each tier lacks.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING

from fedmpi.results.answers import Answer, Part, is_final
from fedmpi.results.archive import Kept
from fedmpi.results.figure import (
    Line,
    as_percent,
    colour_of,
    compose,
    draw_line,
    over_seeds,
    save,
    whole_numbers,
    with_unit,
)
from fedmpi.results.grid_file import Study
from fedmpi.studies.runs import accuracy_of, moved

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_NETS = ("largest", "smallest")


def draw(study: Study, runs: Sequence[Kept], answers: Sequence[Answer], folder: Path) -> list[str]:
    """Writes the figures as SVG; their names."""
    names = []
    for setting in study.asked.settings:
        own = [run for run in runs if is_final(run, setting)]
        if own:
            names.append(f"{setting}-curves.svg")
            save(compose(_curves(study, own), share_y=True), folder / names[-1])
        if rows := [(answer, part) for answer in answers if answer.setting == setting for part in answer.parts]:
            names.append(f"{setting}-differences.svg")
            save(compose([partial(_difference, study, *row) for row in rows]), folder / names[-1])
        if panels := [partial(_energy, run) for run in own if len(_lacking(run)) > 1]:
            names.append(f"{setting}-energy.svg")
            save(compose(panels, share_y=True), folder / names[-1])
    return names


def course(runs: Sequence[Kept], net: str, label: str, *, by_bytes: bool = False) -> Line:
    """The mean accuracy over seeds by round, or by what all clients have moved up to it, and the range of the seeds."""
    found: list[tuple[int, float, float]] = []
    for run in runs:
        (name,) = run.nets_of(net)
        sums = accumulate(moved(record) for record in run.rounds)
        for record, num_bytes in zip(run.rounds, sums, strict=True):
            if (accuracy := accuracy_of(record, name)) is not None:
                place = num_bytes if by_bytes else record["round"]
                found.append((record["round"], float(place), accuracy))
    return over_seeds(label, found, len(runs))


def _curves(study: Study, runs: Sequence[Kept]) -> list[Callable[[Axes], None]]:
    """Panels: the largest and the smallest net by round, and the largest by bytes."""
    nets = _NETS if all(run.nets_of("largest") for run in runs) else ("clients",)
    panels = [*((net, False) for net in nets), (nets[0], True)]
    return [partial(_curve, study, runs, net, by_bytes) for net, by_bytes in panels]


def _curve(study: Study, runs: Sequence[Kept], net: str, by_bytes: bool, axes: Axes) -> None:
    for place, method in enumerate(study.asked.methods):
        if own := [run for run in runs if run.wanted.method == method]:
            draw_line(axes, course(own, net, method, by_bytes=by_bytes), place)
    axes.set_title("clients' own nets" if net == "clients" else f"{net} net")
    axes.set_xlabel("communication of all clients (B)" if by_bytes else "round")
    axes.set_ylabel("test accuracy")
    as_percent(axes)
    if by_bytes:
        with_unit(axes, "B")
    else:
        whole_numbers(axes)


def _lacking(run: Kept) -> dict[str, list[tuple[int, float]]]:
    """By tier (round, share of the energy beyond its rank), of a run whose records have that of several rounds; without
    zeros, because the axis is logarithmic.
    """
    found: dict[str, list[tuple[int, float]]] = {}
    for record in run.rounds:
        for tier, share in ((record.get("method") or {}).get("spectrum") or {}).get("beyond", {}).items():
            if share:
                found.setdefault(tier, []).append((record["round"], share))
    return {tier: points for tier, points in found.items() if len(points) > 1}


def _energy(run: Kept, axes: Axes) -> None:
    for place, (tier, points) in enumerate(_lacking(run).items()):
        rounds, shares = zip(*points, strict=True)
        draw_line(axes, Line(f"tier {tier}", rounds, shares), place)
    axes.set_yscale("log")
    axes.set_title(f"{run.wanted.method}, seed {run.wanted.seed}")
    axes.set_xlabel("round")
    axes.set_ylabel("energy beyond a tier's rank")
    whole_numbers(axes)


def _difference(study: Study, answer: Answer, part: Part, axes: Axes) -> None:
    """The seeds, their mean, its interval, and the margin that is allowed."""
    measure = study.asked.measures[part.condition.measure]
    scale = 100 if measure.is_share else 1
    low, high, _ = part.interval(study.asked.alpha)
    axes.axvline(-scale * part.condition.margin, color="0.6", linewidth=1, linestyle="--")
    axes.plot([scale * low, scale * high], [0, 0], color=colour_of(1), linewidth=3, alpha=0.4)
    axes.plot([scale * each for each in part.differences], [0] * len(part.differences), "o", color=colour_of(1))
    axes.plot([scale * part.mean], [0], "|", color=colour_of(0), markersize=14)
    axes.set_title(f"{answer.question.first} - {answer.question.second}")
    unit = " (points)" if measure.is_share else " (s)" if measure.is_seconds else ""
    axes.set_xlabel(part.condition.measure + unit)
    axes.set_yticks([])
    axes.set_ylim(-1, 1)
