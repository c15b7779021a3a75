"""Writes the HTML page of a run, which asks no network for anything.

`page.html` is the template: it has the sections, their texts and tables. This module draws the charts, as pairs of a
caption and an SVG, and computes what a table needs.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from fedmpi.data.partition import Partition, draw_classes, saved
from fedmpi.data.subset import Ints
from fedmpi.errors import UserError, counted
from fedmpi.report.records import CLIENTS, Record, by_ranks, incidents, scores_of
from fedmpi.results import figure, frame
from fedmpi.results.figure import Draw, Line, Panel
from fedmpi.results.frame import curve, name_of, spent, tier_curves
from fedmpi.results.run import Run
from fedmpi.rounds.state import Setup
from fedmpi.store.files import write_text
from fedmpi.store.run_dir import RunDir
from fedmpi.store.units import joules, percent, short_duration, si, size

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_WIDTH_INCHES, _HEIGHT_INCHES = 4.4, 2.2  # of a chart; the page scales it
_MOST_BARS = 20
_COSTS = {"protocol_down_bytes": "down", "protocol_up_bytes": "up", "training_macs": "training"}
_Charts = Iterator[tuple[str, str]]


def write_final_page(setup: Setup, folder: RunDir) -> None:
    """Writes the page of a run that has come to its last round. Raises RunDirError."""
    classes = _classes(setup.partition, setup.data.labels, setup.data.info.num_strata)
    write_text(folder.page_path, page_of(Run(folder.path), classes))


def whole_page(run: Run) -> str:
    """Returns the HTML of a run with what the data show. A note says what is missing."""
    try:
        partition, dataset = run.divided_data()
        classes = _classes(partition, dataset.classes("train"), run.config.data.used().num_strata)
    except UserError as error:
        return page_of(run, note=f"a part of this page is left out: {error.text()}")
    return page_of(run, classes)


def _classes(partition: Partition, labels: Ints, num_classes: int) -> Draw | None:
    """Returns what draws the classes of each client's examples; None where targets are no classes."""
    if num_classes == 1:
        return None
    return partial(draw_classes, partition=partition, labels=labels, num_classes=num_classes)


def page_of(run: Run, classes: Draw | None = None, note: str = "") -> str:
    """Returns the HTML of a run. `classes` draws which client has examples of which classes: the folder's files do not
    show them without the data.
    """
    from jinja2 import Environment, PackageLoader

    notes = [run.paragraph()] if not run.is_finished else []
    notes += [f"The run ended early: {run.why_over}."] if run.why_over else []
    notes += [f"{line[0].upper()}{line[1:]}." for line in incidents(run.records)]
    for loss in (loss for record in run.records for loss in record.get("losses", ())):
        notes.append("In round {round}, rank {rank} on {host} was lost.".format_map({"host": "?", **loss}))
    notes += [*frame.missing(run), run.noted("defaults", ""), note]
    sizes = None
    try:
        sizes = saved(run.dir.partition_path)[0].sizes
    except UserError as error:
        notes.append(error.text())
    charts = {
        "accuracy": [*_accuracy(run)],
        "data": [_chart("Examples of each class", classes)] if classes else [],
        "costs": [*_costs(run)],
        "lack": [*_lack(run)],
    }
    loader = PackageLoader("fedmpi", "results")
    environment = Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True, loader=loader)
    environment.globals.update(counted=counted, colours=figure.COLOURS)
    environment.filters.update(name_of=name_of, percent=percent, si=si, size=size)
    environment.filters.update(short_duration=short_duration, joules=joules)
    return environment.get_template("page.html").render(
        run=run,
        notes=[line for line in notes if line],
        saved=run.dir.last_saved(),
        ranks=by_ranks(run.records),
        busy_s=pd.DataFrame([record["busy_s"] for record in run.records]).sum().to_dict(),
        sizes=sizes,
        last_start=json.dumps(run.working_starts[-1], indent=2) if run.starts else "",
        charts=charts,
    )


def _chart(caption: str, draw: figure.Draw) -> tuple[str, str]:
    return caption, figure.inline_svg(figure.compose([draw], width=_WIDTH_INCHES, height=_HEIGHT_INCHES), caption)


def _lines(caption: str, lines: Sequence[Line], y: str = "", x: str = "rounds") -> tuple[str, str]:
    return _chart(caption, Panel(dict(enumerate(lines)), x, y))


def _accuracy(run: Run) -> _Charts:
    nets = sorted(run.tested, key=lambda net: net == CLIENTS)  # a net has one colour in all charts
    if not nets:
        return

    def curves(quantity: str) -> list[Line]:
        return [line for net in nets if (line := curve(name_of(net), [run.records], net, quantity)).x]

    yield _lines(f"Test {run.best.score}", curves("accuracy"), "accuracy")
    yield _lines("Loss", [*curves("loss"), curve("training", [run.records], "", "train_loss")])
    last: Mapping[str, Any] = {}
    for record in run.records:
        last = scores_of(record, nets[0]) or last
    for metric in [name for name in last if name not in ("accuracy", "r2", "loss", "confusion")]:
        yield _lines(metric, curves(metric))
    if "confusion" in last:
        yield _chart(f"Confusion, {name_of(nets[0])}", partial(_confusion, last["confusion"]))


def _confusion(found: Any, axes: Axes) -> None:
    classes = found["classes"]
    image = axes.imshow(found["counts"], cmap="magma_r", vmin=0)
    axes.set(xlabel="predicted class", ylabel="class")
    axes.set_xticks(range(len(classes)), classes, rotation=90)
    axes.set_yticks(range(len(classes)), classes)
    axes.figure.colorbar(image, ax=axes, label="test examples")


def _costs(run: Run) -> _Charts:
    if not run.records:
        return
    rounds = [record["round"] for record in run.records]
    down, up, training = (Line(label, rounds, spent(run.records, key).tolist()) for key, label in _COSTS.items())
    if down.y[-1] or up.y[-1]:
        yield _lines("Bytes of all clients so far", [down, up], "bytes")
    yield _lines("MACs so far", [training], "macs")
    if "simulated_total_s" in run.records[-1]:
        so_far = Line("all devices", rounds, [record["simulated_total_s"] for record in run.records])
        yield _lines(f"Simulated time so far, {joules(run.records[-1]['simulated_total_j'])}", [so_far], "simulated_s")
        yield from _on_devices(run.records)


def _on_devices(records: Sequence[Record]) -> _Charts:
    turns = _turns(records)
    counts = turns.groupby("client")[["slowest", "late"]].sum()
    counts = counts[counts.any(axis=1)].nlargest(_MOST_BARS, ["slowest", "late"])
    means = turns[~turns["late"]].groupby("client")[["seconds"]].mean().nlargest(_MOST_BARS, "seconds")
    idle = percent(float(np.mean([record["devices"]["idle_share"] for record in records])))
    yield _chart(f"Mean turn of a client, {idle} of a round waiting", partial(_bars, means))
    yield _chart("How many rounds a client held up, or was too late for", partial(_bars, counts))


def _turns(records: Sequence[Record]) -> pd.DataFrame:
    """Returns a line for each turn of all rounds: its client and seconds, whether it was the slowest, or late."""
    lines = []
    for record in records:
        devices = record["devices"]
        for client, turn_s in zip(record["cohort"], devices["seconds"], strict=True):
            lines.append((client, turn_s, client == devices["slowest"], client in devices.get("late", ())))
    return pd.DataFrame(lines, columns=["client", "seconds", "slowest", "late"])


def _bars(table: pd.DataFrame, axes: Axes) -> None:
    rows = table.sort_index()
    below = 0 * rows.sum(axis=1)
    for place, (name, column) in enumerate(rows.items(), 1):
        axes.bar(rows.index.astype(str), column, bottom=below, color=figure.colour_of(place), label=name)
        below = below + column
    axes.set_xlabel("client")


def _lack(run: Run) -> _Charts:
    places = {
        "Energy beyond a tier's rank": ("spectrum", "beyond"),
        "The same of what has changed": ("spectrum", "learned_beyond"),
        "Predicted factor of a round": ("band_factor",),
    }
    for caption, keys in places.items():
        if curves := tier_curves(run.records, *keys):
            yield _lines(caption, curves, "lacking")
