"""Writes one HTML page of a run, or of several runs beside each other. It asks no network for anything.

`page.html` is the template: it has the sections, their texts and tables. This module draws the charts, as pairs of a
caption and an SVG, and computes what a table needs.
"""

from __future__ import annotations

import csv
import io
import json
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.resources import files
from typing import TYPE_CHECKING, Any

import numpy as np

from fedmpi import methods
from fedmpi.data.dataset import load_data
from fedmpi.data.partition import Partition, saved
from fedmpi.data.show import draw_classes
from fedmpi.data.subset import Ints
from fedmpi.errors import RunDirError, UserError, counted
from fedmpi.methods.protocol import Method
from fedmpi.report.observer import Ended
from fedmpi.report.records import CLIENTS, by_ranks, divergences
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
from fedmpi.store.units import percent, short_duration, si, size
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
    """Adds to the page of a run what its folder's files do not show without the method's class or the data."""

    classes: figure.Draw | None = None
    """Draws which client has examples of which classes."""
    spectra: figure.Draw | None = None
    """Draws the singular values of the server's factorized layers."""
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
        classes = _classes(setup.partition, setup.labels, setup.data.info.num_classes)
        extras = Extras(classes, _spectra(setup.method, server, _MOST_PRODUCTS))
        write_text(self._folder.page_path, page_of(Run(self._folder.path), extras))


def extras_of(run: Run, notes: Sequence[str] = ()) -> Extras:
    """Reads the newest checkpoint and the data. A note says what of them is missing."""
    spectra = None
    try:
        config = run.config()
        info = config.data.used()
        if newest := run.dir.checkpoints()[:1]:
            method = methods.create(method_context(config, info))
            server = dict(checkpoint.load(newest[0][1]).server)
            if problem := checkpoint.unfit(server, method.state_specs()):
                raise RunDirError(str(newest[0][1]), problem)
            spectra = _spectra(method, server)
        partition, labels = saved(run.dir.partition_path)[0], load_data(config.data).train_y
        return Extras(_classes(partition, labels, info.num_classes), spectra, notes)
    except UserError as error:
        return Extras(None, spectra, [*notes, f"a part of this page is left out: {error.text()}"])


def _classes(partition: Partition, labels: Ints, num_classes: int) -> figure.Draw:
    return lambda axes: draw_classes(axes, partition, labels, num_classes)


def _spectra(method: Method, server: Params, most_products: float = math.inf) -> figure.Draw | None:
    """Draws the singular values of every layer whose dense weight the server keeps, and the rank of each tier.

    Returns None where there is no such layer, or where it would take more than so many products.
    """
    layers = {name: layer for name, layer in method.layers.items() if f"{name}.weight" in server}
    products = sum(math.prod(layer.matrix_shape) * min(layer.matrix_shape) for layer in layers.values())
    if not layers or products > most_products:
        return None
    spectra = {}
    for name, layer in layers.items():
        matrix = layer.unroll(server[f"{name}.weight"]).double().cpu().numpy()
        spectra[name] = np.linalg.svd(matrix, compute_uv=False)

    def draw(axes: Axes) -> None:
        for place, sigma in enumerate(spectra.values(), 1):
            relative = np.maximum(sigma / max(float(sigma[0]), 1e-300), 1e-9)
            shares = np.arange(1, len(sigma) + 1) / len(sigma)
            strength = 0.25 + 0.75 * place / len(spectra)
            axes.plot(shares, relative, color=figure.colour_of(1), alpha=strength, linewidth=1)
        for place, tier in enumerate(tier for tier in method.tiers if tier.capacity < 1):
            ranks = [layer.r(tier.capacity) / len(spectra[name]) for name, layer in layers.items()]
            _mark(axes, place, float(np.mean(ranks)), f"r of {name_of(tier.name)}")
        figure.logarithmic(axes)
        figure.as_percent(axes, "x")
        axes.set_xlabel("place of the singular value, in % of the full rank")
        axes.set_ylabel("share of the largest")

    return draw


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
    how_far = f"{run.done:,} of {run.rounds:,} rounds"
    if ending and ending.saved != run.done:
        how_far += f" ({ending.saved:,} saved)"
    places = [rank.get("place", "") for start in run.working_starts for rank in start.get("ranks") or ()]
    busy_s: Counter[str] = Counter()
    for record in run.records:
        busy_s.update(record["busy_s"])
    texts = {"The resolved config": run.config_text}
    if run.starts:
        texts["The last start"] = json.dumps(run.working_starts[-1], indent=2)
    return _rendered(
        title=run.name,
        state=f"{ending.state}, {how_far}" if ending else "finished",
        run=run,
        how_far=how_far if ending else f"All {run.rounds:,} rounds",
        ranks=", then ".join(counted(number, "rank") for number in by_ranks(run.records)),
        devices=", ".join(sorted({str(place).partition(": ")[2] for place in places})),
        notes=[*notes, *extras.notes],
        totals={key: sum(record[key] for record in run.records) for key in _COSTS},
        busy_s=busy_s,
        sizes=sizes,
        texts=texts,
        charts={
            "accuracy": _accuracy(run),
            "fairness": _fairness(run),
            "data": [_chart("Examples of each class", extras.classes)] if extras.classes else [],
            "costs": _costs(run),
            "spectra": [_chart("Singular values", extras.spectra)] if extras.spectra else [],
            "lack": _lack(run),
        },
    )


def page_of_several(runs: Sequence[Run], left_out: Sequence[str] = ()) -> str:
    """Returns the HTML of several runs: of one setting and seed one is shown, and none that was not tested yet."""
    all_groups = compared.grouped(runs)
    groups = [Group(group.name, tuple(run for run in group.runs if run.tested)) for group in all_groups]
    groups = [group for group in groups if group.runs]
    seeds = [len(group.runs) for group in groups]
    shown = groups or all_groups
    return _rendered(
        title=" and ".join(group.name for group in shown) if len(shown) < 4 else f"{len(shown)} settings",
        state=counted(sum(seeds), "run") if groups else "not tested yet",
        groups=groups,
        nets=[group.tested[0] for group in groups],
        seeds=_span(seeds) if groups else "",
        notes=[*compared.cautions(runs, all_groups), *left_out],
        charts={"accuracy": _curves(groups)},
        summaries=[_summary(group, net) for group in groups for net in group.tested],
        differences=[_difference(one) for one in compared.differences(groups)],
        most_paired=compared.MOST_PAIRED,
        texts={f"The resolved config of {group.name}": group.runs[0].config_text for group in shown},
    )


def _rendered(**content: Any) -> str:
    from jinja2 import Environment

    environment = Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True)
    environment.globals.update(counted=counted, colours=figure.COLOURS)
    environment.filters.update(name_of=name_of, percent=percent, si=si, size=size, short_duration=short_duration)
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
    accuracies = [Line(name_of(net), *run.course(net)) for net in nets]
    losses = [Line(name_of(net), *run.course(net, "loss")) for net in nets]
    trained = {record["round"]: record["train_loss"] for record in run.records if record["train_loss"] is not None}
    losses = [line for line in (*losses, Line("training", *_points(trained))) if line.x]
    charts = [_lines("Test accuracy", accuracies, y="accuracy")]
    return [*charts, _lines("Loss", losses)] if losses else charts


def _points(values: Mapping[int, float]) -> tuple[list[float], list[float]]:
    """Returns rounds and values."""
    return [*values.keys()], [*values.values()]


def _fairness(run: Run) -> _Charts:
    """Draws how many of the clients' own nets have which accuracy, where the report of the run has them."""
    content = read_whole(run.dir.report_dir / "clients.csv") if run.is_finished() else None
    shares = [float(row["accuracy"]) for row in csv.DictReader(io.StringIO((content or b"").decode()))]
    if not shares:
        return []
    accuracy = np.sort(shares)
    worst = accuracy[: -(-len(accuracy) // 10)]

    def draw(axes: Axes) -> None:
        axes.hist(accuracy, bins=np.linspace(0, 1, 21).tolist(), color=figure.colour_of(1), rwidth=0.9)
        for place, (name, some) in enumerate({"mean": accuracy, "mean of the worst decile": worst}.items()):
            _mark(axes, place, float(some.mean()), f"{name} {percent(float(some.mean()))}")
        figure.as_percent(axes, "x")
        figure.whole_numbers(axes, "y")
        axes.set_xlabel("accuracy of a client's own net")
        axes.set_ylabel("clients")

    return [_chart("Clients by accuracy", draw)]


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
    return [Line(name_of(tier), *_points(values)) for tier, values in points.items()]


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


def _difference(difference: Difference) -> list[Any]:
    """Returns the cells of a difference: settings, tier, seeds, round, mean, interval."""
    ours, theirs = difference.rounds
    rounds = _span(ours) if ours == theirs else f"{_span(ours)} and {_span(theirs)}"
    between = "-"
    if len(difference.values) in _SEEDS_WITH_INTERVAL:
        low, high, confidence = interval(difference.values)
        between = f"{100 * low:+.2f} to {100 * high:+.2f} ({100 * confidence:.1f} %)"
    mean = f"{100 * np.mean(difference.values):+.2f}"
    return [
        f"{difference.first} minus {difference.second}",
        name_of(difference.net),
        len(difference.values),
        rounds,
        mean,
        between,
    ]
