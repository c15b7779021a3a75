"""Writes one HTML page of a run, or of several runs beside each other. It asks no network for anything."""

from __future__ import annotations

import csv
import io
import math
import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from importlib.resources import files
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fedmpi.data.partition import saved
from fedmpi.errors import UserError, counted
from fedmpi.federation.tiers import Tier
from fedmpi.lowrank.factorized import FactorizedLayer
from fedmpi.report.ending import unless_all_saved
from fedmpi.report.records import CLIENTS, Record, divergences, ranks_in_words
from fedmpi.results import compared, figure
from fedmpi.results.compared import Group, name_of
from fedmpi.results.evidence import interval, mean_std
from fedmpi.results.figure import Line
from fedmpi.results.run import Run
from fedmpi.store.files import read_whole
from fedmpi.store.units import percent, si, size, took
from fedmpi.tensors import Params

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_WIDTH, _HEIGHT = 4.4, 2.2
"""Inches of a chart, whose texts have nine points; the page scales it."""
_MOST_CLIENTS = 40
"""Of more clients a chart shows a sample."""
_LEAST_SEEDS, _MOST_SEEDS = 3, 16
"""Differences over fewer or more seeds have no interval."""
_UNTESTED = "No round has been tested yet."
_X_WORDS = {"rounds": "rounds", "bytes": "bytes", "macs": "MACs"}
_Section = dict[str, Any]


@dataclass(frozen=True)
class Extras:
    """What the page of a run shows beside its folder's files: it needs the method's class, or the data."""

    classes: NDArray[np.int64] | None = None
    """Training examples of each client and class."""
    spectra: Mapping[str, NDArray[np.float64]] | None = None
    """Singular values of the server's factorized layers, largest first."""
    ranks: Mapping[str, float] | None = None
    """Each low-rank tier's r, as the mean share of the full rank."""
    notes: Sequence[str] = ()


def spectra_of(
    layers: Mapping[str, FactorizedLayer], tiers: Sequence[Tier], server: Params, most_products: float = math.inf
) -> dict[str, Any]:
    """Decomposes every layer whose dense weight the server keeps, for `Extras`. Gives nothing where there is no such
    layer, or where it would take more than so many products.
    """
    dense = {name: layer for name, layer in layers.items() if f"{name}.weight" in server}
    products = sum(math.prod(layer.matrix_shape) * min(layer.matrix_shape) for layer in dense.values())
    if not dense or products > most_products:
        return {}
    matrices = {name: layer.unroll(server[f"{name}.weight"]).double().cpu() for name, layer in dense.items()}
    values = {name: np.linalg.svd(matrix.numpy(), compute_uv=False) for name, matrix in matrices.items()}
    ranks = {}
    for tier in tiers:
        if tier.capacity < 1:
            shares = [layer.r(tier.capacity) / len(values[name]) for name, layer in dense.items()]
            ranks[tier.name] = float(np.mean(shares))
    return {"spectra": values, "ranks": ranks}


def page_of(run: Run, extras: Extras = Extras()) -> str:
    """Returns the HTML of one run."""
    ending, notes = run.ending, [*extras.notes]
    data = _data(run, extras, notes)
    sections = [_accuracy(run), _nets(run), _clients(run), data, _costs(run), _time(run)]
    sections += [_spectra(extras), _beyond(run), _starts(run), _made_with(run)]
    not_saved = unless_all_saved(run.done, ending.saved) if ending else ""
    how_far = f"{run.done:,} of {run.rounds:,} rounds{not_saved}"
    diverged = [f"{line[0].upper()}{line[1:]}." for line in divergences(run.records)]
    return _rendered(
        title=run.name,
        state=f"{ending.state}, {how_far}" if ending else "finished",
        run=run,
        how_far=how_far if ending else f"All {run.rounds:,} rounds",
        ranks=ranks_in_words(run.records),
        devices=_devices(run),
        figures=_key_figures(run),
        notes=[*([ending.paragraph()] if ending else []), *diverged, *compared.missing(run), *notes],
        sections=sections,
        configs=[("The resolved config", run.config_text)],
    )


def page_of_several(runs: Sequence[Run], left_out: Sequence[str] = ()) -> str:
    """Returns the HTML of several runs: of one setting and seed one is shown, and none that was not tested yet."""
    found = compared.grouped(runs)
    groups = [Group(group.name, tuple(run for run in group.runs if run.tested)) for group in found]
    groups = [group for group in groups if group.runs]
    seeds = [len(group.runs) for group in groups]
    num_runs = counted(sum(seeds), "run")
    shown = groups or found
    return _rendered(
        title=" and ".join(group.name for group in shown) if len(shown) < 4 else f"{len(shown)} settings",
        state=num_runs if groups else "not tested yet",
        num_settings=len(groups),
        seeds=_span(seeds) if groups else "",
        notes=[*compared.cautions(runs, found), *left_out],
        sections=[_curves(groups), _summaries(groups), _differences(groups)],
        configs=[(f"The resolved config of {group.name}", group.runs[0].config_text) for group in shown],
    )


def _rendered(sections: Sequence[_Section], **content: Any) -> str:
    from jinja2 import Environment

    environment = Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True)
    environment.globals.update(counted=counted, took=took, colours=figure.COLOURS)
    template = environment.from_string((files(__package__) / "page.html").read_text(encoding="utf-8"))
    return template.render(sections=[each for each in sections if each], **content)


def _chart(caption: str, draw: Callable[[Axes], None], height: float = _HEIGHT) -> tuple[str, str]:
    return caption, figure.inline_svg(figure.compose([draw], width=_WIDTH, height=height), caption)


def _lines(
    caption: str, lines: Sequence[Line], x: str = "rounds", y: str = "", *, log: bool = False
) -> tuple[str, str]:
    """Draws curves. `x` is one of `figure.X_LABELS`, or the label of counts; `y` is accuracy, bytes, macs, or empty."""

    def draw(axes: Axes) -> None:
        for place, line in enumerate(lines):
            figure.draw_line(axes, replace(line, label="") if len(lines) == 1 else line, place)
        axes.set_xlabel(figure.X_LABELS.get(x, x))
        if x == "rounds":
            figure.whole_numbers(axes)
        else:
            figure.with_unit(axes, "B" if x == "bytes" else "")
        if log:
            figure.logarithmic(axes)
        elif y == "accuracy":
            figure.as_percent(axes)
        elif y:
            figure.with_unit(axes, "B" if y == "bytes" else "", "y")

    return _chart(caption if len(lines) > 1 else f"{caption}, {lines[0].label}", draw)


def _devices(run: Run) -> str:
    places = [rank.get("place", "") for start in run.working_starts for rank in start.get("ranks") or ()]
    return ", ".join(sorted({str(place).partition(": ")[2] for place in places}))


def _key_figures(run: Run) -> list[tuple[str, str]]:
    """Returns what stands in the strip at the top of a page, and its numbers."""
    figures = []
    if run.tested:
        values = run.course(run.tested[0])[1]
        figures += [(f"last accuracy, {name_of(run.tested[0])}", percent(values[-1])), ("best", percent(max(values)))]
    if run.records:
        down, up, macs = (
            _sum(run.records, key) for key in ("protocol_down_bytes", "protocol_up_bytes", "training_macs")
        )
        figures += [("bytes of all clients", size(down[-1] + up[-1])), ("training compute", f"{si(macs[-1])} MACs")]
    if total_s := sum(run.seconds.values()):
        figures.append(("time", took(total_s)))
    return figures


def _sum(records: Sequence[Record], key: str) -> list[float]:
    """Returns the sum of a key of the records up to each round."""
    return np.cumsum([float(record[key]) for record in records]).tolist()


def _accuracy(run: Run) -> _Section:
    nets = sorted(run.tested, key=lambda net: net == CLIENTS)  # a net has one colour in both charts
    if not nets:
        return {"title": "Accuracy and loss", "text": _UNTESTED}
    charts = [_lines("Test accuracy", [_curve(run, net, "accuracy") for net in nets], y="accuracy")]
    losses = [*(_curve(run, net, "loss") for net in nets), _training_loss(run)]
    if losses := [line for line in losses if line.x]:
        charts.append(_lines("Loss", losses))
    return {"title": "Accuracy and loss", "charts": charts}


def _curve(run: Run, net: str, quantity: str) -> Line:
    return Line(name_of(net), *run.course(net, quantity))


def _training_loss(run: Run) -> Line:
    points = [(record["round"], record["train_loss"]) for record in run.records if record["train_loss"] is not None]
    return Line("training", [number for number, _ in points], [loss for _, loss in points])


def _nets(run: Run) -> _Section:
    """Puts what matters on a phone, which shows the first columns, first."""
    rows = []
    for net in run.nets:
        scores = [percent(net["accuracy_last"]), percent(net["accuracy_best"]), net["best_round"] or "-"]
        costs = [_bar(net.get(key), [other.get(key) for other in run.nets]) for key in ("params", "macs")]
        traffic = [size(net.get(key)) for key in ("down_bytes", "up_bytes")]
        rows.append([name_of(net["name"]), *scores, *costs, *traffic])
    heads = ["tier", "last", "best", "at round", "parameters", "MACs", "down", "up"]
    return {"title": "Tiers", "heads": heads, "rows": rows} if rows else {}


def _bar(value: float | None, others: Iterable[float | None], text: str = "") -> Any:
    """Returns a number with a bar behind it, as long as its share of the largest."""
    largest = max(other or 0 for other in others)
    return {"text": text or si(value), "share": 100 * value / largest} if value and largest else si(value)


def _clients(run: Run) -> _Section:
    content = read_whole(run.dir.report_dir / "clients.csv") if run.is_finished() else None
    rows = list(csv.DictReader(io.StringIO(content.decode()))) if content else []
    if not rows:
        return {}
    accuracy = np.sort([float(row["accuracy"]) for row in rows])
    mean, worst = float(accuracy.mean()), float(accuracy[: -(-len(accuracy) // 10)].mean())

    def draw(axes: Axes) -> None:
        axes.hist(accuracy, bins=np.linspace(0, 1, 21).tolist(), color=figure.colour_of(1), rwidth=0.9)
        for place, (name, share) in enumerate((("mean of the clients", mean), ("mean of the worst decile", worst))):
            dashes: Any = (0, figure.DASHES[place]) if place else "-"
            axes.axvline(share, color=figure.colour_of(0), linestyle=dashes, label=f"{name} {percent(share)}")
        figure.as_percent(axes, "x")
        figure.whole_numbers(axes, "y")
        axes.set_xlabel("accuracy of a client's own net")
        axes.set_ylabel("clients")

    text = (
        f"Each of {len(accuracy):,} clients was tested with its own net on its own test data: mean {percent(mean)}, "
        f"standard deviation {percent(float(accuracy.std()))}, worst decile {percent(worst)}, lowest "
        f"{percent(float(accuracy[0]))}."
    )
    return {"title": "Fairness", "text": text, "charts": [_chart("Clients by accuracy", draw)]}


def _data(run: Run, extras: Extras, notes: list[str]) -> _Section:
    try:
        sizes = saved(run.dir.partition_path)[0].sizes
    except UserError as error:
        notes.append(error.text())
        return {}
    text = (
        f"{len(sizes):,} clients have {int(sizes.sum()):,} training examples: {int(np.median(sizes)):,} in the median, "
        f"{int(sizes.min()):,} to {int(sizes.max()):,}."
    )
    if extras.classes is None:
        return {"title": "Who had which data", "text": text}
    chosen = np.unique(np.linspace(0, len(sizes) - 1, min(len(sizes), _MOST_CLIENTS)).round().astype(int))
    if len(chosen) < len(sizes):
        text += f" The chart shows {len(chosen)} of them, evenly spaced."
    counts = extras.classes[chosen]
    chart = _chart(
        "Examples of each class", partial(_draw_counts, counts=counts, clients=chosen.tolist()), 0.7 + 0.1 * len(chosen)
    )
    return {"title": "Who had which data", "text": text, "charts": [chart]}


def _draw_counts(axes: Axes, counts: NDArray[np.int64], clients: Sequence[int]) -> None:
    """Draws examples by class (across) and client (down): the area of a square is the number of examples."""
    rows, classes = np.nonzero(counts)
    shares = counts[rows, classes] / max(int(counts.max(initial=1)), 1)
    axes.scatter(classes, rows, s=45 * shares, marker="s", color=figure.colour_of(1), linewidths=0)
    figure.whole_numbers(axes)
    every = -(-len(clients) // 10)
    axes.set_yticks(range(0, len(clients), every), [str(client) for client in clients[::every]])
    axes.set_ylim(len(clients) - 0.4, -0.6)
    axes.set_xlim(-0.6, counts.shape[1] - 0.4)
    axes.set_xlabel("class")
    axes.set_ylabel("client")


def _costs(run: Run) -> _Section:
    if not run.records:
        return {}
    rounds = [record["round"] for record in run.records]
    keys = ("protocol_down_bytes", "protocol_up_bytes", "training_macs")
    down, up, macs = (_sum(run.records, key) for key in keys)
    charts = [_lines("MACs so far", [Line("training", rounds, macs)], y="macs")]
    text = "Clients and server exchanged nothing."
    if down[-1] or up[-1]:
        text = ""
        both = [Line("down", rounds, down), Line("up", rounds, up)]
        charts.insert(0, _lines("Bytes of all clients so far", both, y="bytes"))
    return {"title": "Communication and compute", "text": text, "charts": charts}


def _time(run: Run) -> _Section:
    if not run.records:
        return {}
    total_s = sum(run.seconds.values())
    stages = sorted(run.seconds.items(), key=lambda item: -item[1])
    rows = [
        [stage.replace("_", " "), _bar(s, run.seconds.values(), f"{s:,.1f} s, {100 * s / total_s:.0f} %")]
        for stage, s in stages
        if s > 0
    ]
    busy_s: dict[str, float] = {}
    for record in run.records:
        for rank, seconds in record["busy_s"].items():
            busy_s[rank] = busy_s.get(rank, 0.0) + seconds
    rows += [[f"rank {rank}, busy", _bar(s, busy_s.values(), f"{s:,.1f} s")] for rank, s in busy_s.items()]
    text = f"The rounds and their saves took {took(total_s)}."
    return {"title": "Time", "text": text, "heads": ["stage or rank", "seconds"], "rows": rows}


def _spectra(extras: Extras) -> _Section:
    if extras.spectra is None:
        return {}
    spectra, ranks = extras.spectra, extras.ranks or {}

    def draw(axes: Axes) -> None:
        for place, sigma in enumerate(spectra.values(), 1):
            relative = np.maximum(sigma / max(float(sigma[0]), 1e-300), 1e-9)
            shares = np.arange(1, len(sigma) + 1) / len(sigma)
            strength = 0.25 + 0.75 * place / len(spectra)
            axes.plot(shares, relative, color=figure.colour_of(1), alpha=strength, linewidth=1)
        for place, (tier, share) in enumerate(ranks.items()):
            dashes: Any = (0, figure.DASHES[place % 4]) if place % 4 else "-"
            axes.axvline(share, color=figure.colour_of(0), linestyle=dashes, linewidth=1, label=f"r of {name_of(tier)}")
        figure.logarithmic(axes)
        figure.as_percent(axes, "x")
        axes.set_xlabel("place of the singular value, in % of the full rank")
        axes.set_ylabel("share of the largest")

    return {"title": "Singular values", "charts": [_chart("Singular values", draw)]}


def _beyond(run: Run) -> _Section:
    """Shows how much of the factorized layers each tier lacks, by round, and of each layer after the last one."""
    notes = [(record["round"], record.get("method") or {}) for record in run.records]
    spectra = [(number, note["spectrum"]) for number, note in notes if note.get("spectrum")]
    if not spectra:
        return {}
    charts = []
    for key, caption in (("beyond", "Energy beyond a tier's rank"), ("learned_beyond", "The same of what has changed")):
        if lines := _by_tier([(number, spectrum.get(key) or {}) for number, spectrum in spectra]):
            charts.append(_lines(caption, lines, log=True))
    if lines := _by_tier([(number, note.get("band_factor") or {}) for number, note in notes]):
        charts.append(_lines("Predicted factor of a round", lines, log=True))
    return {"title": "What smaller tiers lack", "charts": charts, **_layers(spectra)}


def _by_tier(noted: Sequence[tuple[int, Mapping[str, float]]]) -> list[Line]:
    """Returns the curve of each tier without its zeros, which a chart in logarithms cannot show."""
    lines = []
    for tier in dict.fromkeys(tier for _, values in noted for tier in values):
        shown = [(number, values[tier]) for number, values in noted if values.get(tier)]
        if shown:
            lines.append(Line(name_of(tier), [number for number, _ in shown], [value for _, value in shown]))
    return lines


def _layers(spectra: Sequence[tuple[int, Mapping[str, Any]]]) -> _Section:
    """Lists each layer's effective rank, first and last, and what it has beyond each tier's rank in the end."""
    (first, begun), (last, ended) = spectra[0], spectra[-1]
    layers = ended.get("layers") or {}
    tiers = list(dict.fromkeys(tier for layer in layers.values() for tier in layer["beyond"]))
    rows = []
    for name, layer in layers.items():
        at_first = (begun.get("layers") or {}).get(name) or {}
        numbers = [at_first.get("effective_rank"), layer.get("effective_rank")]
        numbers += [layer["beyond"].get(tier) for tier in tiers]
        rows.append([name, *("-" if number is None else f"{number:.4g}" for number in numbers)])
    heads = ["layer", f"effective rank, round {first}", f"round {last}", *(f"beyond {name_of(tier)}" for tier in tiers)]
    return {"heads": heads, "rows": rows} if rows else {}


def _starts(run: Run) -> _Section:
    """Lists resumes and lost ranks, where there were any."""
    losses = [loss for record in run.records for loss in record.get("losses", ())]
    if len(run.starts) < 2 and not losses:
        return {}
    rows: list[list[Any]] = []
    for number, start in enumerate(run.starts, 1):
        end = start.get("stopped") or start.get("ended") or {}
        resumed = start.get("resumed_round") or 0
        after = f"after round {resumed}" if resumed else run.init_from or "the beginning"
        event = "was interrupted" if number < len(run.starts) else "no end yet"
        if resumed >= run.rounds:
            event = "had nothing left to do"
        if "round" in end:
            event = f"ended after round {end['round']}"
        ranks = counted(len(start.get("ranks") or ()), "rank")
        more = f"{ranks}; stopped: {end['why']}" if "why" in end else ranks
        rows.append([start.get("started", "-").replace("T", " "), after, event, more])
    for loss in losses:
        when, rank, host = (loss.get(key, "-") for key in ("round", "rank", "host"))
        rows.append(["", f"in round {when}", f"rank {rank} was lost", f"on {host}"])
    return {"title": "Starts and lost ranks", "heads": ["when", "from", "event", "more"], "rows": rows}


def _made_with(run: Run) -> _Section:
    if not run.starts:
        return {}
    start = run.working_starts[-1]
    rows = [[name, version] for name, version in (start.get("versions") or {}).items()]
    for name, key in (("commit", "git"), ("host", "host"), ("data digest", "data_digest")):
        if start.get(key):
            rows.append([name, start[key]])
    if start.get("command"):
        rows.append(["command", shlex.join(map(str, start["command"]))])
    return {"title": "Made with", "heads": ["", ""], "rows": rows, "folded": True}


def _curves(groups: Sequence[Group]) -> _Section:
    """Draws the curve of each group's first tested net: the clients' own, or the largest."""
    if not groups:
        return {"title": "Accuracy", "text": _UNTESTED}
    nets, charts = [group.tested[0] for group in groups], []
    for x, word in _X_WORDS.items():
        lines = [group.line(net, x) for group, net in zip(groups, nets, strict=True)]
        if any(place for line in lines for place in line.x):  # nobody may have moved anything
            charts.append(_lines(f"Accuracy by {word}", lines, x, "accuracy"))
    sized = [line for line in map(_by_size, groups) if line.x]
    if any(len(line.x) > 1 for line in sized):
        charts.append(_lines("Last accuracy by size", sized, "parameters", "accuracy"))
    names = ", ".join(dict.fromkeys(map(name_of, nets)))
    text = f"The curves are of {names}: of each setting its clients' own nets, or else its largest net."
    return {"title": "Accuracy", "text": text, "charts": charts}


def _by_size(group: Group) -> Line:
    """Draws the last accuracy of every net over its parameters: mean, lowest and highest of the seeds."""
    points = []
    for net in group.runs[0].nets:
        values = [value for _, value in group.ends(net["name"]).values()]
        points += [(0, net["params"], value) for value in values if net.get("params")]
    sizes = sorted({size for _, size, _ in points})
    places = [(sizes.index(size), float(size), value) for _, size, value in points]
    return figure.over_seeds(group.name, places, len(group.runs))


def _span(numbers: Sequence[int]) -> str:
    """Returns `200`, or `18 to 200`."""
    low, high = min(numbers), max(numbers)
    return f"{low:,}" if low == high else f"{low:,} to {high:,}"


def _summaries(groups: Sequence[Group]) -> _Section:
    rows = []
    for group in groups:
        for net in group.tested:
            rounds, values = zip(*group.ends(net).values(), strict=True)
            mean, std = mean_std(values)
            text = percent(mean) if std is None else f"{percent(mean)[:-2]} ± {percent(std)}"
            ends = [percent(min(values)), percent(max(values))]
            rows.append([group.name, name_of(net), len(values), _span(rounds), text, *ends])
    heads = ["setting", "tier", "seeds", "round", "last accuracy", "lowest", "highest"]
    return {"title": "Results", "heads": heads, "rows": rows} if rows else {}


def _differences(groups: Sequence[Group]) -> _Section:
    rows = []
    is_equal = True
    for found in compared.differences(groups):
        ours, theirs = found.rounds
        is_equal &= ours == theirs
        rounds = _span(ours) if ours == theirs else f"{_span(ours)} and {_span(theirs)}"
        between = "-"
        if _LEAST_SEEDS <= len(found.values) <= _MOST_SEEDS:
            low, high, confidence = interval(found.values)
            between = f"{100 * low:+.2f} to {100 * high:+.2f} ({100 * confidence:.1f} %)"
        names, mean = f"{found.first} minus {found.second}", f"{100 * np.mean(found.values):+.2f}"
        rows.append([names, name_of(found.net), len(found.values), rounds, mean, between])
    text = ""
    if not is_equal:
        text = (
            "Where a row names the rounds of both settings, its runs were not tested last in the same round, and the "
            "difference is one of training, too."
        )
    if len(groups) > compared.MOST_PAIRED:
        text += f" Of {len(groups)} settings, each is compared with the first."
    heads = ["settings", "tier", "seeds", "round", "difference", "interval"]
    return {"title": "Differences", "heads": heads, "rows": rows, "text": text} if rows else {}
