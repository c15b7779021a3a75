"""Computes the numbers that grids measure and papers print, from the records of a finished run."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from functools import partial
from itertools import accumulate

from fedmpi.report.records import Record, is_whole, net_scores
from fedmpi.results import figure
from fedmpi.results.archive import RunRecord
from fedmpi.results.figure import Line
from fedmpi.results.grid_file import Measure
from fedmpi.results.run import accuracy_of, moved, to_target

_FLOAT32_BYTES = 4
# FedHM's "GB" are 1024 million parameters, not bytes: Fig. 4a has 2 x 10 x 11.17 x 100 / 1024 = 21.82 for 100 rounds
# of 10 clients with 11.17 million parameters each.
_MEGA = 1024 * 1e6
_TO_TARGET = ("bytes_to_target", "macs_to_target", "rounds_to_target")


def _kernels(key: str, record: Record, layer: str) -> float | None:
    """Returns a layer's number in the method's diagnostics; of several numbers, as lowest, mean, highest, the mean."""
    number = record.get("method", {}).get("kernels", {}).get(layer, {}).get(key)
    return number[1] if isinstance(number, list) else number


_SERIES: dict[str, Callable[[Record, str], float | None]] = {
    "accuracy": accuracy_of,
    "train_loss": lambda record, net: record["train_loss"],
    "kernels_needed": partial(_kernels, "effective_kernels"),
    "clients_per_kernel": partial(_kernels, "clients_per_kernel"),
}
_SUMS: dict[str, Callable[[Record], float]] = {
    "rounds": lambda record: 1,
    "bytes": moved,
    "macs": lambda record: record["training_macs"],
    "mega_parameters": lambda record: moved(record) / _FLOAT32_BYTES / _MEGA,
    "uploaded_parameters": lambda record: record["protocol_up_bytes"] / _FLOAT32_BYTES,
}


def value(run: RunRecord, measure: Measure) -> float | None:
    """Returns the number that a run ends with; None where it has none, as for a target that it never reached."""
    if measure.quantity in ("seconds", "time_share"):
        return _seconds(run, measure)
    if measure.quantity in _SUMS:
        return _total(run.records, measure.quantity)
    is_of_a_net = measure.quantity == "accuracy" or measure.is_to_target
    nets = nets_of(run.records, measure.net) if is_of_a_net else [measure.net]
    numbers = [number for net in nets if (number := _of_net(run.records, measure, net)) is not None]
    return float(statistics.fmean(numbers)) if numbers and len(numbers) == len(nets) else None


def one_round_more(run: RunRecord, measure: Measure) -> float | None:
    """Returns what the whole run took and a round more; None but for a measure to a target of a net that it has."""
    accuracy = measure.model_copy(update={"quantity": "accuracy", "target": None})
    if not measure.is_to_target or value(run, accuracy) is None:
        return None
    total = _total(run.records, measure.quantity.removesuffix("_to_target"))
    return None if total is None else total * (1 + 1 / run.rounds)


def curve(label: str, runs: Sequence[RunRecord], measure: Measure, x: str = "round", scale: float = 1.0) -> Line:
    """Averages the runs' curves, with y times `scale`; the band is from the lowest to the highest."""
    found = []
    for run in runs:
        found += [(number, place, scale * y) for number, place, y in points(run, measure, x)]
    return figure.over_seeds(label, found, len(runs))


def points(run: RunRecord, measure: Measure, x: str = "round") -> list[tuple[int, float, float]]:
    """Returns (round, x, y) of the points of a curve. x is the round, the sum `x` of `_SUMS` up to that round, or
    `kernel`: then the points are those of the kernels, and y is the mean number of clients over the rounds.
    """
    if x == "kernel":
        layers = [record.get("method", {}).get("kernels", {}).get(measure.net, {}) for record in run.records]
        counts = [layer["clients_of_kernel"] for layer in layers if "clients_of_kernel" in layer]
        means = map(statistics.fmean, zip(*counts, strict=True))
        return [(number, number, mean) for number, mean in enumerate(means, 1)]
    (net,) = nets_of(run.records, measure.net)
    xs = [record["round"] for record in run.records]
    if x in _SUMS:
        xs = list(accumulate(map(_SUMS[x], run.records)))
    found = []
    for record, place in zip(run.records, xs, strict=True):
        y = _SERIES[measure.quantity](record, net)
        if y is not None:
            found.append((record["round"], float(place), float(y)))
    return found


def nets_of(records: Sequence[Record], net: str) -> list[str]:
    """Returns the tested nets that `net` means: a name, or `largest`, `smallest`, `mean` (all of them)."""
    tested = list(dict.fromkeys(name for record in records for name in net_scores(record)))  # the largest first
    if net == "mean":
        return tested
    return {"largest": tested[:1], "smallest": tested[-1:]}.get(net, [net])


def _total(records: Sequence[Record], quantity: str) -> float | None:
    return float(sum(map(_SUMS[quantity], records))) if is_whole(records) else None


def _of_net(records: Sequence[Record], measure: Measure, net: str) -> float | None:
    if measure.target is not None:
        reached = to_target(records, net, measure.target)
        return None if reached is None else float(reached[_TO_TARGET.index(measure.quantity)])
    read = _SERIES.get(measure.quantity)
    numbers = [number for record in records if read and (number := read(record, net)) is not None]
    if not numbers or measure.of == "last":
        return numbers[-1] if numbers else None
    return min(numbers) if measure.quantity == "train_loss" else max(numbers)


def _seconds(run: RunRecord, measure: Measure) -> float | None:
    part_s = run.seconds.get("wall" if measure.net in ("", "largest") else measure.net)
    if part_s is None or measure.quantity == "seconds":
        return part_s
    return part_s / run.seconds["wall"]
