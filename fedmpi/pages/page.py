"""One HTML file of a run, or of several runs beside each other. It asks no network for anything."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib.resources import files
from typing import Any

import numpy as np

from fedmpi.clock import STAGES
from fedmpi.errors import counted
from fedmpi.pages import charts, several, svg
from fedmpi.pages.charts import Line
from fedmpi.pages.facts import Facts
from fedmpi.pages.prose import PALE_CURVES, key_figures, name_of, paragraph
from fedmpi.report.diverged import divergences
from fedmpi.report.records import CLIENTS, Record
from fedmpi.store.units import percent, si, size, took

MOST_CLIENTS = 40
"""Of more clients a chart shows a sample."""
_Section = dict[str, Any]


def page(runs: Sequence[Facts]) -> str:
    """The HTML of one run, or of several that are compared."""
    return _render(**(_of_one(runs[0]) if len(runs) == 1 else several.content(runs)))


def _render(**content: Any) -> str:
    from jinja2 import Environment

    environment = Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True)
    template = environment.from_string((files(__package__) / "page.html").read_text(encoding="utf-8"))
    return template.render(num_colours=svg.NUM_COLOURS, **content)


def _of_one(facts: Facts) -> dict[str, Any]:
    sections = [_accuracy(facts), _tiers(facts), _clients(facts), _data(facts), _costs(facts), _time(facts)]
    sections += [_spectra(facts), _beyond(facts), _starts(facts), _made_with(facts)]
    how_far = f"{facts.done:,} of {facts.rounds:,} rounds{facts.not_saved}"
    state = "finished" if facts.is_finished else f"{facts.ending.state}, {how_far}" if facts.ending else how_far
    ends = [facts.ending.paragraph()] if facts.ending else []
    return {
        "title": facts.folder.name,
        "state": state,
        "lead": paragraph(facts),
        "figures": key_figures(facts),
        "notes": [
            *ends,
            *(f"{line[0].upper()}{line[1:]}." for line in divergences(facts.records)),
            *facts.notes,
            *facts.beside,
        ],
        "sections": [section for section in sections if section],
        "configs": [("The resolved config", facts.config_text)],
    }


def _accuracy(facts: Facts) -> _Section:
    shown = sorted(facts.tested, key=lambda name: name == CLIENTS)  # a tier has one colour in both charts
    if not shown:
        return {"title": "Accuracy and loss", "text": "No round has been tested yet."}
    accuracy = [_curve(facts, name, "accuracy") for name in shown]
    losses = [_curve(facts, name, "loss") for name in shown]
    (x, y), (x_before, y_before) = _training(facts.records), _training(facts.inherited)
    losses = [line for line in [*losses, Line("training", x, y, x_before=x_before, y_before=y_before)] if line.x]
    found = [charts.lines(accuracy, _titled("Test accuracy", accuracy), "round", y=svg.percents)]
    if losses:
        found.append(charts.lines(losses, _titled("Loss", losses), "round"))
    text = f"{PALE_CURVES} {facts.parent.run}." if facts.parent else ""
    return {"title": "Accuracy and loss", "text": text, "charts": found}


def _curve(facts: Facts, name: str, quantity: str) -> Line:
    x_before, y_before = facts.course_before(name, quantity)
    return Line(name_of(name), *facts.course(name, quantity), x_before=x_before, y_before=y_before)


def _training(records: Sequence[Record]) -> tuple[list[float], list[float]]:
    """The rounds that have a loss of training, and the losses."""
    found = [(record["round"], record["train_loss"]) for record in records if record["train_loss"] is not None]
    return [number for number, _ in found], [loss for _, loss in found]


def _titled(what: str, lines: Sequence[Line]) -> str:
    """A chart of one line has no legend, so its title has the line's name."""
    return what if len(lines) > 1 else f"{what}, {lines[0].label}"


def _tiers(facts: Facts) -> _Section:
    if not facts.tiers:
        return {}
    heads = ["tier", "parameters", "MACs", "down", "up", "last", "best", "at round"]
    rows = []
    for row in facts.tiers:
        costs = [_bar(row, key, facts.tiers) for key in ("params", "macs")]
        traffic = [size(row.get(key)) for key in ("down_bytes", "up_bytes")]
        scores = [percent(row.get(key)) for key in ("accuracy_last", "accuracy_best")]
        rows.append([name_of(row["name"]), *costs, *traffic, *scores, row.get("best_round") or "-"])
    note = "MACs are forward, for one example. Bytes are for one client and round, by the method's protocol."
    return {"title": "Tiers", "heads": heads, "rows": rows, "text": note}


def _bar(row: Mapping[str, Any], key: str, rows: Sequence[Mapping[str, Any]]) -> Any:
    """A number with a bar behind it, as long as its share of the largest."""
    value, largest = row.get(key), max((other.get(key) or 0 for other in rows), default=0)
    return {"text": si(value), "share": 100 * value / largest} if value and largest else si(value)


def _clients(facts: Facts) -> _Section:
    accuracy = facts.client_accuracy
    if accuracy is None:
        return {}
    worst = np.sort(accuracy)[: -(-len(accuracy) // 10)].mean()
    marks = {"mean of the clients": float(accuracy.mean()), "mean of the worst decile": float(worst)}
    mean, worst = map(percent, marks.values())
    text = (
        f"Each of {len(accuracy):,} clients was tested with its own net on its own test data: mean "
        f"{mean}, standard deviation {percent(float(accuracy.std()))}, worst decile {worst}, lowest "
        f"{percent(float(accuracy.min()))}."
    )
    return {"title": "Fairness", "text": text, "charts": [charts.histogram(accuracy, "Clients by accuracy", marks)]}


def _data(facts: Facts) -> _Section:
    if facts.sizes is None:
        return {}
    sizes = facts.sizes
    text = (
        f"{len(sizes):,} clients have {int(sizes.sum()):,} training examples: {int(np.median(sizes)):,} in the median, "
        f"{int(sizes.min()):,} to {int(sizes.max()):,}."
    )
    chosen = np.unique(np.linspace(0, len(sizes) - 1, min(len(sizes), MOST_CLIENTS)).round().astype(int))
    if len(chosen) < len(sizes):
        text += f" The chart shows {len(chosen)} of them, evenly spaced."
    if facts.classes is not None:
        chart = charts.heat_map(facts.classes[chosen], "Examples of each class", chosen.tolist())
    else:
        chart = charts.bars({f"client {client}": float(sizes[client]) for client in chosen}, "Examples", si)
    return {"title": "Who had which data", "text": text, "charts": [chart]}


def _costs(facts: Facts) -> _Section:
    if not facts.records:
        return {}
    numbers, down = facts.cumulated("protocol_down_bytes")
    _, up = facts.cumulated("protocol_up_bytes")
    _, macs = facts.cumulated("training_macs")
    found = [charts.stacked(numbers, {"training": macs}, "MACs of training so far", svg.prefixed(""))]
    if not (down[-1] or up[-1]):
        return {"title": "Communication and compute", "text": "Clients and server exchanged nothing.", "charts": found}
    title = "Bytes of all clients so far, down and up together"
    found.insert(0, charts.stacked(numbers, {"down": down, "up": up}, title, svg.prefixed("B")))
    return {"title": "Communication and compute", "charts": found}


def _time(facts: Facts) -> _Section:
    if not facts.records:
        return {}
    total_s = sum(facts.time_s.values())
    split = dict(
        sorted(((n.replace("_", " "), s) for n, s in facts.time_s.items() if s > 0), key=lambda item: -item[1])
    )
    found = [
        charts.bars(split, "Seconds by stage, mean over ranks", lambda s: f"{s:,.1f} s, {100 * s / total_s:.0f} %")
    ]
    busy = _busy(facts)
    if len(busy) > 1:
        found.append(charts.bars(busy, "Seconds that each rank was busy", lambda s: f"{s:,.1f} s"))
    elif len(facts.records) > 1:
        numbers = [record["round"] for record in facts.records]
        stages = [stage for stage in STAGES if any(record["seconds"].get(stage, 0.0) > 0 for record in facts.records)]
        parts = {s.replace("_", " "): np.array([r["seconds"].get(s, 0.0) for r in facts.records]) for s in stages}
        found.append(charts.stacked(numbers, parts, "Time of each round", lambda s: f"{s:g} s"))
    return {"title": "Time", "text": f"The rounds and their saves took {took(total_s)}.", "charts": found}


def _busy(facts: Facts) -> dict[str, float]:
    total: dict[str, float] = {}
    for record in facts.records:
        for rank, seconds in record["busy_s"].items():
            total[f"rank {rank}"] = total.get(f"rank {rank}", 0.0) + seconds
    return total


def _spectra(facts: Facts) -> _Section:
    if facts.spectra is None:
        return {}
    values, ranks = facts.spectra.values, facts.spectra.r
    shares = {t: float(np.mean([r[name] / len(values[name]) for name in r])) for t, r in ranks.items() if r}
    text = (
        f"The server's {len(values)} factorized layers, the first one palest. A tier holds the values to the left of "
        "its line and lacks the others."
    )
    return {"title": "Singular values", "text": text, "charts": [charts.spectra(values, shares, "Singular values")]}


def _beyond(facts: Facts) -> _Section:
    """How much of the factorized layers each tier lacks, by round, and of each layer after the last round."""
    notes = [(record["round"], record.get("method") or {}) for record in facts.records]
    spectra = [(number, note["spectrum"]) for number, note in notes if note.get("spectrum")]
    if not spectra:
        return {}
    found = []
    for key, title in (("beyond", "Energy beyond a tier's rank"), ("learned_beyond", "The same of what has changed")):
        if lines := list(_by_tier((number, spectrum.get(key) or {}) for number, spectrum in spectra)):
            found.append(charts.lines(lines, title, "round", log=True))
    if lines := list(_by_tier((number, note.get("band_factor") or {}) for number, note in notes)):
        found.append(charts.lines(lines, "Predicted factor of a round", "round"))
    text = (
        "Energy is the sum of squared singular values, all factorized layers together, and each curve its share beyond "
        "the rank of a tier: where it vanishes, larger tiers answer like that one. What has changed is the "
        "difference from the start of the run; where the server forgets its start, that counts, too. The predicted "
        "factor is by how much the mean alone, without training, multiplies the singular values that a tier has and "
        "smaller ones have not. The table is of the last round."
    )
    return {"title": "What smaller tiers lack", "text": text, "charts": found, **_layers(spectra)}


def _by_tier(noted: Iterable[tuple[int, Mapping[str, float]]]) -> Iterator[Line]:
    """The curve of each tier; a chart in logarithms has no zeros, and the others lose nothing without them."""
    rounds = list(noted)
    for tier in dict.fromkeys(tier for _, values in rounds for tier in values):
        if shown := [(number, values[tier]) for number, values in rounds if values.get(tier)]:
            yield Line(name_of(tier), *map(list, zip(*shown, strict=True)))


def _layers(spectra: Sequence[tuple[int, Mapping[str, Any]]]) -> _Section:
    """Each layer's effective rank, first and last, and what it has beyond each tier's rank in the end."""
    (first, begun), (last, ended) = spectra[0], spectra[-1]
    layers = ended.get("layers") or {}
    tiers = list(dict.fromkeys(tier for layer in layers.values() for tier in layer["beyond"]))
    heads = ["layer", f"effective rank, round {first}", f"round {last}", *(f"beyond {name_of(tier)}" for tier in tiers)]
    rows = []
    for name, layer in layers.items():
        ranks = [one.get("effective_rank") for one in ((begun.get("layers") or {}).get(name) or {}, layer)]
        shares = [layer["beyond"].get(tier) for tier in tiers]
        rows.append([name, *(f"{value:.4g}" if value is not None else "-" for value in [*ranks, *shares])])
    return {"heads": heads, "rows": rows} if rows else {}


def _starts(facts: Facts) -> _Section:
    """Resumes and lost ranks, where there were any."""
    losses = [loss for record in facts.records for loss in record.get("losses", ())]
    if len(facts.starts) < 2 and not losses:
        return {}
    rows: list[list[Any]] = []
    for number, start in enumerate(facts.starts, 1):
        ends = start.get("stopped") or start.get("ended") or {}
        resumed = start.get("resumed_round") or 0
        without_a_word = "was interrupted" if number < len(facts.starts) else "no end yet"
        if resumed >= facts.rounds:
            without_a_word = "had nothing left to do"
        event = f"ended after round {ends['round']}" if "round" in ends else without_a_word
        after = f"after round {resumed}" if resumed else "the beginning"
        if facts.parent and resumed == facts.parent.round:
            after = facts.parent.name
        rows.append([start.get("started", "-").replace("T", " "), after, event, _said(start, ends)])
    for loss in losses:
        when, rank, host = (loss.get(key, "-") for key in ("round", "rank", "host"))
        rows.append(["", f"in round {when}", f"rank {rank} was lost", f"on {host}"])
    return {"title": "Starts and lost ranks", "heads": ["when", "from", "event", "more"], "rows": rows}


def _said(start: Mapping[str, Any], ends: Mapping[str, Any]) -> str:
    ranks = len(start.get("ranks") or ())
    return counted(ranks, "rank") + (f"; stopped: {ends['why']}" if "why" in ends else "")


def _made_with(facts: Facts) -> _Section:
    if not facts.starts:
        return {}
    start = facts.working_starts[-1]
    rows = [[name, version] for name, version in (start.get("versions") or {}).items()]
    rows += [[name, start[key]] for name, key in (("commit", "git"), ("host", "host")) if start.get(key)]
    rows += [["data digest", start["data_digest"]]] if start.get("data_digest") else []
    rows += [["command", shlex.join(map(str, start["command"]))]] if start.get("command") else []
    return {"title": "Made with", "heads": ["", ""], "rows": rows, "folded": True}
