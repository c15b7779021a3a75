"""Figures of a study, drawn from its records: accuracy by round for each setting, and paired differences."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from fedmpi.pages import charts
from fedmpi.pages.charts import Line
from fedmpi.pages.figure import COLOURS, PAPER_STYLE, no_date
from fedmpi.store.files import writing
from fedmpi.studies.runs import accuracy_of, moved
from fedmpi.studies.study.answers import Answer, is_final
from fedmpi.studies.study.asked import Study
from fedmpi.studies.study.kept import Kept

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_NETS = ("largest", "smallest")
_INCHES = (3.4, 2.6)


def draw(study: Study, runs: Sequence[Kept], answers: Sequence[Answer], folder: Path) -> list[str]:
    """Writes the figures as SVG; their names."""
    names = []
    for setting in study.asked.settings:
        own = [run for run in runs if is_final(run, setting)]
        if own:
            names += [_curves(study, own, folder / f"{setting}-curves.svg")]
        decided = [answer for answer in answers if answer.setting == setting and answer.parts]
        if decided:
            names += [_differences(study, decided, folder / f"{setting}-differences.svg")]
    return names


def course(runs: Sequence[Kept], net: str, label: str, *, by_bytes: bool = False) -> Line:
    """The mean accuracy over seeds by round, or by what all clients have moved up to it, and the range of the seeds."""
    by_round: dict[int, list[tuple[float, float]]] = {}
    for run in runs:
        (name,) = run.nets_of(net)
        sums = accumulate(moved(record) for record in run.rounds)
        for record, num_bytes in zip(run.rounds, sums, strict=True):
            if (accuracy := accuracy_of(record, name)) is not None:
                place = num_bytes if by_bytes else record["round"]
                by_round.setdefault(record["round"], []).append((float(place), accuracy))
    points = [np.array(by_round[number]) for number in sorted(by_round) if len(by_round[number]) == len(runs)]
    xs, ys = ([float(point[:, column].mean()) for point in points] for column in (0, 1))
    low, high = ([float(end(point[:, 1])) for point in points] for end in (np.min, np.max))
    return Line(label, xs, ys, low, high)


def _curves(study: Study, runs: Sequence[Kept], path: Path) -> str:
    """Panels: the largest and the smallest net by round, and the largest by bytes."""
    from matplotlib.figure import Figure

    panels = [(net, False) for net in _NETS] + [("largest", True)]
    tested = all(run.nets_of("largest") for run in runs)
    panels = panels if tested else [("clients", False), ("clients", True)]
    width, height = _INCHES
    with charts.style(**PAPER_STYLE):
        figure = Figure(figsize=(width * len(panels), height + 0.4), layout="constrained")
        for axes, (net, by_bytes) in zip(
            figure.subplots(1, len(panels), squeeze=False, sharey=True)[0], panels, strict=True
        ):
            for place, method in enumerate(study.asked.methods):
                if own := [run for run in runs if run.wanted.method == method]:
                    line = course(own, net, method, by_bytes=by_bytes)
                    charts.draw_line(axes, line, place, COLOURS[place % len(COLOURS)])
            axes.set_title(f"{net} net" if tested else "clients' own nets")
            axes.set_xlabel("communication of all clients (B)" if by_bytes else "round")
            charts.as_percent(axes)
            if by_bytes:
                charts.with_prefix(axes, "x", "")
            else:
                charts.whole_numbers(axes)
        figure.axes[0].set_ylabel("test accuracy")
        handles, labels = figure.axes[0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=min(5, len(labels)), handlelength=2.8)
        _save(figure, path)
    return path.name


def _differences(study: Study, answers: Sequence[Answer], path: Path) -> str:
    """A row for each part of each question: the seeds, their mean, its interval, and the margin that is allowed."""
    from matplotlib.figure import Figure

    rows = [(answer, part) for answer in answers for part in answer.parts]
    with charts.style(**PAPER_STYLE):
        figure = Figure(figsize=(6.8, 0.7 + 0.45 * len(rows)), layout="constrained")
        panels = figure.subplots(len(rows), 1, squeeze=False)[:, 0]
        for axes, (answer, part) in zip(panels, rows, strict=True):
            measure = study.asked.measures[part.condition.measure]
            scale = 100 if measure.is_share else 1
            low, high, _ = part.interval(study.asked.alpha)
            axes.axvline(-scale * part.condition.margin, color="0.6", linewidth=1, linestyle="--")
            axes.plot([scale * low, scale * high], [0, 0], color=COLOURS[1], linewidth=3, alpha=0.4)
            axes.plot([scale * each for each in part.differences], [0] * len(part.differences), "o", color=COLOURS[1])
            axes.plot([scale * part.mean], [0], "|", color=COLOURS[0], markersize=14)
            said = f"{answer.question.first} - {answer.question.second}\n{part.condition.measure}"
            axes.set_yticks([0], [said + (" (points)" if measure.is_share else "")])
            axes.set_ylim(-1, 1)
        _save(figure, path)
    return path.name


def _save(figure: Figure, path: Path) -> None:
    from matplotlib.backends.backend_svg import FigureCanvasSVG

    FigureCanvasSVG(figure)
    with writing(path):
        figure.savefig(path, format="svg", bbox_inches="tight", metadata=no_date(path))
