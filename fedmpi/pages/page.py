"""One HTML file of a run, or of several runs beside each other. It asks no network for anything."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from importlib.resources import files
from typing import Any

import numpy as np

from fedmpi.clock import STAGES
from fedmpi.errors import counted
from fedmpi.pages import charts, svg
from fedmpi.pages.charts import Line
from fedmpi.pages.facts import Facts
from fedmpi.pages.prose import key_figures, name_of, paragraph
from fedmpi.pages.settings import LEAST_SEEDS, MOST_PAIRED, Group, differences, grouped, mean_and_half_width
from fedmpi.report.records import CLIENTS
from fedmpi.store.units import percent, si, size, took

MOST_CLIENTS = 40
"""Of more clients a chart shows a sample."""
_AXES: tuple[tuple[str, str, str, svg.Shown | None], ...] = (
    ("rounds", "rounds", "round", None),
    ("bytes", "bytes", "bytes of all clients", svg.prefixed("B")),
    ("macs", "MACs", "MACs of training", svg.prefixed("")),
)
"""What accuracy is drawn by: the axis, its word in the caption, its label and how its numbers are shown."""
_Section = dict[str, Any]


def page(runs: Sequence[Facts]) -> str:
    """The HTML of one run, or of several that are compared."""
    return _of_one(runs[0]) if len(runs) == 1 else _of_several(grouped(runs))


def _render(**content: Any) -> str:
    from jinja2 import Environment

    environment = Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True)
    template = environment.from_string((files(__package__) / "page.html").read_text(encoding="utf-8"))
    return template.render(num_colours=svg.NUM_COLOURS, **content)


def _of_one(facts: Facts) -> str:
    sections = [_accuracy(facts), _tiers(facts), _clients(facts), _data(facts), _costs(facts), _time(facts)]
    sections += [_spectra(facts), _beyond(facts), _starts(facts), _made_with(facts)]
    state = "finished" if facts.is_finished else f"{facts.done:,} of {facts.rounds:,} rounds"
    return _render(
        title=facts.folder.name,
        state=state,
        lead=paragraph(facts),
        figures=key_figures(facts),
        notes=facts.notes,
        sections=[section for section in sections if section],
        configs=[("The resolved config", facts.config_text)],
    )


def _accuracy(facts: Facts) -> _Section:
    shown = sorted(facts.tested, key=lambda name: name == CLIENTS)  # a tier has one colour in both charts
    if not shown:
        return {"title": "Accuracy and loss", "text": "No round has been tested yet."}
    accuracy = [Line(name_of(name), *facts.course(name)) for name in shown]
    losses = [Line(name_of(name), *facts.course(name, "loss")) for name in shown]
    numbers = [record["round"] for record in facts.records if record["train_loss"] is not None]
    training = [record["train_loss"] for record in facts.records if record["train_loss"] is not None]
    losses = [line for line in [*losses, Line("training", numbers, training)] if line.x]
    found = [charts.lines(accuracy, _titled("Test accuracy", accuracy), "round", y=svg.percents)]
    if losses:
        found.append(charts.lines(losses, _titled("Loss", losses), "round"))
    return {"title": "Accuracy and loss", "charts": found}


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
    """How much of the factorized layers each tier lacks, by round."""
    found = {}
    for key, title in (("beyond", "Energy beyond a tier's rank"), ("learned_beyond", "The same of what has changed")):
        lines = list(_shares(facts, key))
        if lines:
            found[key] = charts.lines(lines, title, "round", log=True)
    text = (
        "Energy is the sum of squared singular values, all factorized layers together, and each curve its share beyond "
        "the rank of a tier: where it vanishes, larger tiers answer like that one. What has changed is the "
        "difference from the start of the run; where the server forgets its start, that counts, too."
    )
    return {"title": "What smaller tiers lack", "text": text, "charts": list(found.values())} if found else {}


def _shares(facts: Facts, key: str) -> Iterator[Line]:
    """The curve of each tier; a chart in logarithms has no zeros."""
    noted = [(record["round"], (record.get("method") or {}).get("spectrum") or {}) for record in facts.records]
    for tier in dict.fromkeys(tier for _, spectrum in noted for tier in spectrum.get(key) or {}):
        points = [(number, spectrum[key][tier]) for number, spectrum in noted if tier in (spectrum.get(key) or {})]
        shown = [(number, share) for number, share in points if share]
        if shown:
            yield Line(name_of(tier), *map(list, zip(*shown, strict=True)))


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
    rows += [["command", " ".join(start["command"])]] if start.get("command") else []
    return {"title": "Made with", "heads": ["", ""], "rows": rows, "folded": True}


def _of_several(groups: Sequence[Group]) -> str:
    runs = [run for group in groups for run in group.runs]
    seeds = {len(group.runs) for group in groups}
    said = f"{min(seeds)}" if len(seeds) == 1 else f"{min(seeds)} to {max(seeds)}"
    lead = (
        f"{len(runs)} runs of {counted(len(groups), 'setting')}, {said} seed{'s' * (seeds != {1})} each. "
        "Lines are means over seeds, bands reach from the lowest to the highest seed."
    )
    sections = [_curves(groups), _table(groups), _differences(groups)]
    unfinished = [run.folder.name for run in runs if not run.is_finished]
    notes = [f"not finished, and shown as far as they are: {', '.join(unfinished)}"] if unfinished else []
    return _render(
        title=" and ".join(group.name for group in groups) if len(groups) < 4 else f"{len(groups)} settings",
        state=f"{len(runs)} runs",
        lead=lead,
        figures=[],
        notes=[*notes, *(f"{run.folder.name}: {note}" for run in runs for note in run.notes)],
        sections=[section for section in sections if section],
        configs=[(f"The resolved config of {group.name}", group.runs[0].config_text) for group in groups],
    )


def _curves(groups: Sequence[Group]) -> _Section:
    """The curve of each group's first tested net: the clients' own, or the largest tier."""
    first = [(group, group.tested[0]) for group in groups if group.tested]
    found = []
    for x, word, label, shown in _AXES:
        lines = [group.line(tier, x, "accuracy", group.name) for group, tier in first]
        if any(place for line in lines for place in line.x):  # nobody may have moved anything
            found.append(charts.lines(lines, f"Accuracy by {word}", label, x=shown, y=svg.percents))
    sized = [line for line in _by_size(groups) if line.x]
    if any(len(line.x) > 1 for line in sized):
        found.append(charts.lines(sized, "Last accuracy by size", "parameters", x=svg.prefixed(""), y=svg.percents))
    tiers = ", ".join(dict.fromkeys(name_of(tier) for _, tier in first))
    text = f"The curves are of {tiers}: of each setting its clients' own nets, or else its largest net."
    return {"title": "Accuracy", "text": text if first else "No round has been tested yet.", "charts": found}


def _by_size(groups: Sequence[Group]) -> list[Line]:
    """The last accuracy of every tier over the parameters of its net: mean, lowest and highest of the seeds."""
    found = []
    for group in groups:
        tested = (row for row in group.runs[0].tiers if row.get("params") and row["name"] in group.tested)
        sized = sorted((row["params"], row["name"]) for row in tested)
        values = [[*group.last(name).values()] for _, name in sized]
        means, low, high = ([float(end(own)) for own in values] for end in (np.mean, np.min, np.max))
        found.append(Line(group.name, [size for size, _ in sized], means, low, high))
    return found


def _table(groups: Sequence[Group]) -> _Section:
    rows = []
    for group in groups:
        for tier in group.tested:
            values = list(group.last(tier).values())
            mean = mean_and_half_width(values)[0]
            deviation = float(np.std(values, ddof=1)) if len(values) > 1 else None
            said = percent(mean) if deviation is None else f"{100 * mean:.2f} ± {100 * deviation:.2f} %"
            rows.append([group.name, name_of(tier), len(values), said, percent(min(values)), percent(max(values))])
    heads = ["setting", "tier", "seeds", "last accuracy", "lowest", "highest"]
    return {"title": "Results", "heads": heads, "rows": rows, "text": "Mean ± sample standard deviation over seeds."}


def _differences(groups: Sequence[Group]) -> _Section:
    rows = []
    for found in differences(groups):
        mean, half = found.mean, found.half_width
        interval = "-" if half is None else f"{100 * (mean - half):+.2f} to {100 * (mean + half):+.2f}"
        names = f"{found.first} minus {found.second}"
        rows.append([names, name_of(found.tier), found.num_seeds, f"{100 * mean:+.2f}", interval])
    text = (
        "Differences of the last accuracy in percentage points, paired by seed, with 95\u00a0% intervals by Student's "
        f"t (none for fewer than {LEAST_SEEDS} seeds). They are not corrected for the number of comparisons."
    )
    heads = ["settings", "tier", "seeds", "difference", "interval"]
    text += f" Of {len(groups)} settings, each is compared with the first." if len(groups) > MOST_PAIRED else ""
    return {"title": "Differences", "heads": heads, "rows": rows, "text": text} if rows else {}
