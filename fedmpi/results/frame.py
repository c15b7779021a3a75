"""Turns the records of runs into tables: the points of curves, what a run ends with, and means over seeds."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, fields
from typing import Any

import pandas as pd

from fedmpi.report.records import Record, is_whole, net_scores, scores_of
from fedmpi.results.archive import RunRecord
from fedmpi.results.figure import Line
from fedmpi.results.grid_file import GridRun, Measure

_FLOAT32_BYTES = 4
# FedHM's "GB" are 1024 million parameters, not bytes: Fig. 4a has 2 x 10 x 11.17 x 100 / 1024 = 21.82 for 100 rounds
# of 10 clients with 11.17 million parameters each.
_MEGA = 1024 * 1e6
_KERNEL_KEYS = {"kernels_needed": "effective_kernels", "clients_per_kernel": "clients_per_kernel"}
"""The keys of quantities in the diagnostics of a method with kernels."""


def nets_of(records: Sequence[Record], net: str) -> list[str]:
    """Returns the tested nets that `net` means: a name, or `largest`, `smallest`, `mean` (all of them)."""
    tested = list(dict.fromkeys(name for record in records for name in net_scores(record)))  # the largest first
    return {"largest": tested[:1], "smallest": tested[-1:], "mean": tested}.get(net) or [net]


def spent(records: Sequence[Record], cost: str) -> pd.Series:
    """Returns what was spent up to each of these rounds: `rounds`, `bytes` that real clients would have moved down and
    up, training `macs`, `mega_parameters` both ways, or `uploaded_parameters`.
    """
    if cost == "rounds":
        return pd.Series([float(record["round"]) for record in records])
    if cost == "macs":
        return pd.Series([float(record["training_macs"]) for record in records]).cumsum()
    up = pd.Series([float(record["protocol_up_bytes"]) for record in records])
    if cost == "uploaded_parameters":
        return (up / _FLOAT32_BYTES).cumsum()
    moved = up + [float(record["protocol_down_bytes"]) for record in records]
    return (moved / {"bytes": 1, "mega_parameters": _FLOAT32_BYTES * _MEGA}[cost]).cumsum()


def _number(record: Record, net: str, quantity: str) -> float | None:
    if quantity == "train_loss":
        return record["train_loss"]
    if quantity not in _KERNEL_KEYS:
        return scores_of(record, net).get(quantity)
    # Of several numbers, as lowest, mean, highest, the mean.
    number = _kernels(record, net).get(_KERNEL_KEYS[quantity])
    return number[1] if isinstance(number, list) else number


def _kernels(record: Record, layer: str) -> Mapping[str, Any]:
    return record.get("method", {}).get("kernels", {}).get(layer, {})


def points(records: Sequence[Record], net: str, quantity: str = "accuracy", x: str = "rounds") -> pd.DataFrame:
    """Returns x and y of each round that has this quantity, by round; y is the mean of the nets that `net` means.

    x is the round, what was `spent` up to it, or `kernel`: then the points are those of the kernels, and y is the mean
    number of clients over the rounds.
    """
    if x == "kernel":
        counts = [each for record in records if (each := _kernels(record, net).get("clients_of_kernel"))]
        y = pd.DataFrame(counts).mean()
        y.index += 1
        return pd.DataFrame({"x": y.index.astype(float), "y": y})
    nets = nets_of(records, net)
    lines = []
    for record, place in zip(records, spent(records, x), strict=True):
        numbers = [_number(record, name, quantity) for name in nets]
        known = [number for number in numbers if number is not None]
        if len(known) == len(nets):
            lines.append((record["round"], place, statistics.fmean(known)))
    return pd.DataFrame(lines, columns=["round", "x", "y"]).set_index("round")


def curve(
    label: str,
    runs: Iterable[Sequence[Record]],
    net: str,
    quantity: str = "accuracy",
    x: str = "rounds",
    scale: float = 1.0,
) -> Line:
    """Averages the curves of several seeds, with y times `scale`, in the rounds that all of them have. The band is from
    the lowest to the highest. Seeds that have no point are left out.
    """
    of_seeds = [found for records in runs if len(found := points(records, net, quantity, x))]
    if not of_seeds:
        return Line(label, [], [])
    shared = pd.concat(of_seeds, axis=1, join="inner")
    ys = scale * shared[["y"]]
    band = (ys.min(axis=1), ys.max(axis=1)) if len(of_seeds) > 1 else ()
    return Line(label, *(each.tolist() for each in (shared[["x"]].mean(axis=1), ys.mean(axis=1), *band)))


def tier_curves(records: Sequence[Record], *keys: str) -> list[Line]:
    """Returns a curve for each tier of a number that the method notes by tier under these keys. Zeros are left out,
    because they have no place on an axis in logarithms.
    """
    notes = []
    for record in records:
        note = record
        for key in ("method", *keys):
            note = note.get(key) or {}
        notes.append(note)
    table = pd.DataFrame(notes, index=[record["round"] for record in records]).astype(float)
    curves = [(name_of(tier), numbers[numbers != 0].dropna()) for tier, numbers in table.items()]
    return [Line(name, found.index.tolist(), found.tolist()) for name, found in curves if len(found)]


def name_of(net: str) -> str:
    """Puts a word before names of tiers, which are often numbers."""
    return f"tier {net}" if net.replace(".", "", 1).isdigit() else net


def value(run: RunRecord, measure: Measure) -> float | None:
    """Returns the number that a run ends with; None where it has none, as for a target that it never reached."""
    if measure.quantity in ("seconds", "time_share"):
        part_s = run.seconds.get("wall" if measure.net in ("", "largest") else measure.net)
        return part_s if part_s is None or measure.quantity == "seconds" else part_s / run.seconds["wall"]
    cost = measure.quantity.removesuffix("_to_target")
    if cost in ("rounds", "bytes", "macs"):
        if not is_whole(run.records):
            return None
        found = spent(run.records, cost)
        if measure.target is not None:
            tests = points(run.records, measure.net, x=cost)
            found = tests["x"][tests["y"] >= measure.target][:1]
    else:
        found = points(run.records, measure.net, measure.quantity)["y"]
        if measure.of == "best":
            found = found.cummin() if measure.quantity == "train_loss" else found.cummax()
    return float(found.iloc[-1]) if len(found) else None


def one_round_more(run: RunRecord, measure: Measure) -> float | None:
    """Returns what the whole run took and a round more; None but for a measure to a target of a net that it has."""
    if not (measure.is_to_target and is_whole(run.records) and len(points(run.records, measure.net))):
        return None
    return float(spent(run.records, measure.quantity.removesuffix("_to_target")).iloc[-1]) * (1 + 1 / run.rounds)


def values(runs: Iterable[RunRecord], measures: Mapping[str, Measure]) -> pd.DataFrame:
    """Returns a line for each run: the fields of `GridRun`, then what it ends with by each measure."""
    lines = []
    for run in runs:
        lines.append({**asdict(run.run), **{name: value(run, measure) for name, measure in measures.items()}})
    # As objects whole numbers stay whole, and a missing one None.
    return pd.DataFrame(lines, columns=[*(field.name for field in fields(GridRun)), *measures], dtype=object)
