"""Writes one HTML page of a run, or of several runs beside each other. It asks no network for anything.

`page.html` is the template: it has the sections, their texts and tables. This module draws the charts, as pairs of a
caption and an SVG, and computes what a table needs.
"""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from importlib.resources import files
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fedmpi import methods
from fedmpi.data.dataset import load_data
from fedmpi.data.partition import saved
from fedmpi.data.show import draw_classes
from fedmpi.errors import RunDirError, UserError, counted
from fedmpi.methods.protocol import Method
from fedmpi.report.ending import unless_all_saved
from fedmpi.report.observer import Ended
from fedmpi.report.records import CLIENTS, divergences, ranks_in_words
from fedmpi.results import compared, figure
from fedmpi.results.compared import Difference, Group, name_of
from fedmpi.results.evidence import interval, mean_std
from fedmpi.results.figure import Line
from fedmpi.results.run import Run
from fedmpi.rounds.state import Setup
from fedmpi.running.start import method_context
from fedmpi.store import checkpoint
from fedmpi.store.files import read_whole, write_text
from fedmpi.store.run_dir import RunDir
from fedmpi.store.units import percent, si, size, took
from fedmpi.tensors import Params

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_WIDTH_INCHES, _HEIGHT_INCHES = 4.4, 2.2  # of a chart; the page scales it
_SEEDS_WITH_INTERVAL = range(3, 17)
_MOST_PRODUCTS = 2e9
"""At the end of a run, decomposing all layers may take well under a second; `fedmpi show RUN --html` has no limit."""
_COSTS = ("protocol_down_bytes", "protocol_up_bytes", "training_macs")
_Charts = list[tuple[str, str]]


@dataclass(frozen=True)
class Extras:
    """Adds to the page of a run what its folder's files do not say without the method's class or the data."""

    draw_classes: figure.Draw | None = None
    """Draws which client has examples of which classes."""
    spectra: Mapping[str, NDArray[np.float64]] | None = None
    """Singular values of the server's factorized layers, largest first."""
    ranks: Mapping[str, float] | None = None
    """Each low-rank tier's r, as the mean share of the full rank."""
    notes: Sequence[str] = ()


class FinalPage:
    """Writes `report/report.html` when a run has come to its last round: an observer."""

    def __init__(self, setup: Setup, folder: RunDir) -> None:
        self._setup = setup
        self._folder = folder

    def run_ended(self, ended: Ended) -> None:
        """Writes the page. Raises RunDirError."""
        if ended.stopped:
            return
        setup = self._setup
        server = dict(checkpoint.load(self._folder.checkpoint_path(ended.done)).server)
        num_classes = setup.data.info.num_classes
        draw = partial(draw_classes, partition=setup.partition, labels=setup.labels, num_classes=num_classes)
        extras = _with_spectra(Extras(draw), setup.method, server, _MOST_PRODUCTS)
        write_text(self._folder.page_path, page_of(Run(self._folder.path), extras))


def extras_of(run: Run, notes: Sequence[str] = ()) -> Extras:
    """Reads the newest checkpoint and the data. A note says what of them is missing."""
    extras = Extras(notes=notes)
    try:
        config = run.config()
        info = config.data.used()
        if newest := run.dir.checkpoints()[:1]:
            method = methods.create(method_context(config, info))
            server = dict(checkpoint.load(newest[0][1]).server)
            if problem := checkpoint.unfit(server, method.state_specs()):
                raise RunDirError(str(newest[0][1]), problem)
            extras = _with_spectra(extras, method, server)
        labels = load_data(config.data).train_y
        partition = saved(run.dir.partition_path)[0]
        draw = partial(draw_classes, partition=partition, labels=labels, num_classes=info.num_classes)
        return replace(extras, draw_classes=draw)
    except UserError as error:
        return replace(extras, notes=[*notes, f"a part of this page is left out: {error.text()}"])


def _with_spectra(extras: Extras, method: Method, server: Params, most_products: float = math.inf) -> Extras:
    """Decomposes every layer whose dense weight the server keeps, unless that would take more than so many products."""
    dense = {name: layer for name, layer in method.layers.items() if f"{name}.weight" in server}
    products = sum(math.prod(layer.matrix_shape) * min(layer.matrix_shape) for layer in dense.values())
    if not dense or products > most_products:
        return extras
    values = {}
    for name, layer in dense.items():
        matrix = layer.unroll(server[f"{name}.weight"]).double().cpu().numpy()
        values[name] = np.linalg.svd(matrix, compute_uv=False)
    ranks = {}
    for tier in method.tiers:
        if tier.capacity < 1:
            shares = [layer.r(tier.capacity) / len(values[name]) for name, layer in dense.items()]
            ranks[tier.name] = float(np.mean(shares))
    return replace(extras, spectra=values, ranks=ranks)


def page_of(run: Run, extras: Extras = Extras()) -> str:
    """Returns the HTML of one run."""
    ending = run.ending
    notes = [ending.paragraph()] if ending else []
    notes += [f"{line[0].upper()}{line[1:]}." for line in divergences(run.records)]
    for loss in (loss for record in run.records for loss in record.get("losses", ())):
        notes.append("In round {round}, rank {rank} on {host} was lost.".format_map({"host": "?", **loss}))
    notes += compared.missing(run)
    sizes = None
    try:
        sizes = saved(run.dir.partition_path)[0].sizes
    except UserError as error:
        notes.append(error.text())
    not_saved = unless_all_saved(run.done, ending.saved) if ending else ""
    how_far = f"{run.done:,} of {run.rounds:,} rounds{not_saved}"
    places = [rank.get("place", "") for start in run.working_starts for rank in start.get("ranks") or ()]
    fairness = _fairness(run)
    texts = {"The resolved config": run.config_text}
    if run.starts:
        texts["The last start"] = json.dumps(run.working_starts[-1], indent=2)
    return _rendered(
        title=run.name,
        state=f"{ending.state}, {how_far}" if ending else "finished",
        run=run,
        how_far=how_far if ending else f"All {run.rounds:,} rounds",
        ranks=ranks_in_words(run.records),
        devices=", ".join(sorted({str(place).partition(": ")[2] for place in places})),
        notes=[*notes, *extras.notes],
        totals={key: sum(record[key] for record in run.records) for key in _COSTS},
        busy_s=_busy_seconds(run),
        fairness=fairness,
        worst=None if fairness is None else _worst_decile(fairness),
        sizes=sizes,
        texts=texts,
        charts={
            "accuracy": _accuracy(run),
            "fairness": [] if fairness is None else [_fairness_chart(fairness)],
            "data": [_chart("Examples of each class", extras.draw_classes)] if extras.draw_classes else [],
            "costs": _costs(run),
            "spectra": _spectra(extras),
            "lack": _lack(run),
        },
    )


def page_of_several(runs: Sequence[Run], left_out: Sequence[str] = ()) -> str:
    """Returns the HTML of several runs: of one setting and seed one is shown, and none that was not tested yet."""
    found = compared.grouped(runs)
    groups = [Group(group.name, tuple(run for run in group.runs if run.tested)) for group in found]
    groups = [group for group in groups if group.runs]
    seeds = [len(group.runs) for group in groups]
    shown = groups or found
    return _rendered(
        title=" and ".join(group.name for group in shown) if len(shown) < 4 else f"{len(shown)} settings",
        state=counted(sum(seeds), "run") if groups else "not tested yet",
        groups=groups,
        nets=[group.tested[0] for group in groups],
        seeds=_span(seeds) if groups else "",
        notes=[*compared.cautions(runs, found), *left_out],
        charts={"accuracy": _curves(groups)},
        summaries=[_summary(group, net) for group in groups for net in group.tested],
        differences=[_difference(found) for found in compared.differences(groups)],
        most_paired=compared.MOST_PAIRED,
        texts={f"The resolved config of {group.name}": group.runs[0].config_text for group in shown},
    )


def _rendered(**content: Any) -> str:
    from jinja2 import Environment

    environment = Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True)
    environment.globals.update(counted=counted, colours=figure.COLOURS)
    environment.filters.update(name_of=name_of, percent=percent, si=si, size=size, took=took)
    template = environment.from_string((files(__package__) / "page.html").read_text(encoding="utf-8"))
    return template.render(content)


def _chart(caption: str, draw: figure.Draw) -> tuple[str, str]:
    return caption, figure.inline_svg(figure.compose([draw], width=_WIDTH_INCHES, height=_HEIGHT_INCHES), caption)


def _lines(
    caption: str, lines: Sequence[Line], x: str = "rounds", y: str = "", *, log: bool = False
) -> tuple[str, str]:
    """Draws curves; `x` and `y` are those of `figure.label_axes`."""

    def draw(axes: Axes) -> None:
        for place, line in enumerate(lines):
            figure.draw_line(axes, replace(line, label="") if len(lines) == 1 else line, place)
        figure.label_axes(axes, x, y)
        if log:
            figure.logarithmic(axes)

    return _chart(caption if len(lines) > 1 else f"{caption}, {lines[0].label}", draw)


def _mark(axes: Axes, place: int, x: float, label: str) -> None:
    """Draws a vertical line."""
    dashes = figure.DASHES[place % len(figure.DASHES)]
    axes.axvline(x, color=figure.colour_of(0), linestyle=dashes, linewidth=1, label=label)


def _accuracy(run: Run) -> _Charts:
    """Draws accuracies and losses by round."""
    nets = sorted(run.tested, key=lambda net: net == CLIENTS)  # a net has one colour in both charts
    if not nets:
        return []
    charts = [_lines("Test accuracy", [_curve(run, net, "accuracy") for net in nets], y="accuracy")]
    trained = [record for record in run.records if record["train_loss"] is not None]
    training = Line("training", *_points({record["round"]: record["train_loss"] for record in trained}))
    losses = [line for line in (*(_curve(run, net, "loss") for net in nets), training) if line.x]
    return [*charts, _lines("Loss", losses)] if losses else charts


def _curve(run: Run, net: str, quantity: str) -> Line:
    return Line(name_of(net), *run.course(net, quantity))


def _points(values: Mapping[int, float]) -> tuple[list[float], list[float]]:
    """Returns rounds and values."""
    return [*values.keys()], [*values.values()]


def _busy_seconds(run: Run) -> dict[str, float]:
    """Sums the seconds in which each rank computed."""
    total: dict[str, float] = {}
    for record in run.records:
        for rank, seconds in record["busy_s"].items():
            total[rank] = total.get(rank, 0.0) + seconds
    return total


def _fairness(run: Run) -> NDArray[np.float64] | None:
    """Returns the accuracies of the clients' own nets, lowest first; None where the run has no such report."""
    content = read_whole(run.dir.report_dir / "clients.csv") if run.is_finished() else None
    shares = [float(row["accuracy"]) for row in csv.DictReader(io.StringIO((content or b"").decode()))]
    return np.sort(shares) if shares else None


def _worst_decile(accuracy: NDArray[np.float64]) -> float:
    return float(accuracy[: -(-len(accuracy) // 10)].mean())


def _fairness_chart(accuracy: NDArray[np.float64]) -> tuple[str, str]:
    """Draws how many clients have which accuracy."""

    def draw(axes: Axes) -> None:
        axes.hist(accuracy, bins=np.linspace(0, 1, 21).tolist(), color=figure.colour_of(1), rwidth=0.9)
        _mark(axes, 0, float(accuracy.mean()), f"mean of the clients {percent(float(accuracy.mean()))}")
        _mark(axes, 1, _worst_decile(accuracy), f"mean of the worst decile {percent(_worst_decile(accuracy))}")
        figure.as_percent(axes, "x")
        figure.whole_numbers(axes, "y")
        axes.set_xlabel("accuracy of a client's own net")
        axes.set_ylabel("clients")

    return _chart("Clients by accuracy", draw)


def _costs(run: Run) -> _Charts:
    """Draws bytes and MACs up to each round."""
    if not run.records:
        return []
    rounds = [record["round"] for record in run.records]
    down, up, macs = (np.cumsum([float(record[key]) for record in run.records]).tolist() for key in _COSTS)
    charts = [_lines("MACs so far", [Line("training", rounds, macs)], y="macs")]
    if down[-1] or up[-1]:
        both = [Line("down", rounds, down), Line("up", rounds, up)]
        charts.insert(0, _lines("Bytes of all clients so far", both, y="bytes"))
    return charts


def _spectra(extras: Extras) -> _Charts:
    """Draws the singular values of all layers, and the rank of each tier."""
    if extras.spectra is None:
        return []
    spectra = extras.spectra
    ranks = extras.ranks or {}

    def draw(axes: Axes) -> None:
        for place, sigma in enumerate(spectra.values(), 1):
            relative = np.maximum(sigma / max(float(sigma[0]), 1e-300), 1e-9)
            shares = np.arange(1, len(sigma) + 1) / len(sigma)
            strength = 0.25 + 0.75 * place / len(spectra)
            axes.plot(shares, relative, color=figure.colour_of(1), alpha=strength, linewidth=1)
        for place, (tier, share) in enumerate(ranks.items()):
            _mark(axes, place, share, f"r of {name_of(tier)}")
        figure.logarithmic(axes)
        figure.as_percent(axes, "x")
        axes.set_xlabel("place of the singular value, in % of the full rank")
        axes.set_ylabel("share of the largest")

    return [_chart("Singular values", draw)]


def _lack(run: Run) -> _Charts:
    """Draws how much of the factorized layers each tier lacks, by round."""
    notes = {record["round"]: record.get("method") or {} for record in run.records}
    spectra = {number: note.get("spectrum") or {} for number, note in notes.items()}
    captions = {
        "Energy beyond a tier's rank": {number: one.get("beyond") for number, one in spectra.items()},
        "The same of what has changed": {number: one.get("learned_beyond") for number, one in spectra.items()},
        "Predicted factor of a round": {number: note.get("band_factor") for number, note in notes.items()},
    }
    curves = {caption: _by_tier(values) for caption, values in captions.items()}
    return [_lines(caption, lines, log=True) for caption, lines in curves.items() if lines]


def _by_tier(values: Mapping[int, Mapping[str, float] | None]) -> list[Line]:
    """Returns the curve of each tier without its zeros, which a chart in logarithms cannot show."""
    points: dict[str, dict[int, float]] = {}
    for number, by_tier in values.items():
        for tier, value in (by_tier or {}).items():
            if value:
                points.setdefault(tier, {})[number] = value
    return [Line(name_of(tier), *_points(found)) for tier, found in points.items()]


def _curves(groups: Sequence[Group]) -> _Charts:
    """Draws the curve of each group's first tested net: the clients' own, or the largest."""
    charts = []
    for x, word in (("rounds", "rounds"), ("bytes", "bytes"), ("macs", "MACs")):
        lines = [group.line(group.tested[0], x) for group in groups]
        if any(place for line in lines for place in line.x):  # nobody may have moved anything
            charts.append(_lines(f"Accuracy by {word}", lines, x, "accuracy"))
    sized = [line for line in map(_by_size, groups) if line.x]
    if any(len(line.x) > 1 for line in sized):
        charts.append(_lines("Last accuracy by size", sized, "parameters", "accuracy"))
    return charts


def _by_size(group: Group) -> Line:
    """Draws the last accuracy of every net over its parameters: mean, lowest and highest of the seeds."""
    points = []
    for net in group.runs[0].nets:
        if params := net.get("params"):
            points += [(params, float(params), value) for _, value in group.ends(net["name"]).values()]
    return figure.over_seeds(group.name, points, len(group.runs))


def _span(numbers: Sequence[int]) -> str:
    """Returns `200`, or `18 to 200`."""
    low, high = min(numbers), max(numbers)
    return f"{low:,}" if low == high else f"{low:,} to {high:,}"


def _summary(group: Group, net: str) -> list[Any]:
    """Returns the cells of a net: setting, tier, seeds, round, mean ± deviation, lowest, highest."""
    rounds, values = zip(*group.ends(net).values(), strict=True)
    mean, std = mean_std(values)
    text = percent(mean) if std is None else f"{percent(mean)[:-2]} ± {percent(std)}"
    return [group.name, name_of(net), len(values), _span(rounds), text, percent(min(values)), percent(max(values))]


def _difference(found: Difference) -> list[Any]:
    """Returns the cells of a difference: settings, tier, seeds, round, mean, interval."""
    ours, theirs = found.rounds
    rounds = _span(ours) if ours == theirs else f"{_span(ours)} and {_span(theirs)}"
    between = "-"
    if len(found.values) in _SEEDS_WITH_INTERVAL:
        low, high, confidence = interval(found.values)
        between = f"{100 * low:+.2f} to {100 * high:+.2f} ({100 * confidence:.1f} %)"
    mean = f"{100 * np.mean(found.values):+.2f}"
    return [f"{found.first} minus {found.second}", name_of(found.net), len(found.values), rounds, mean, between]
