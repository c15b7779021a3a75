"""Turns the records of runs into numbers: the points of curves, what a run ends with, and means over seeds."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import accumulate, chain

import numpy as np

from fedmpi.report.records import Record, is_whole, net_scores, scores_of
from fedmpi.results.archive import RunRecord
from fedmpi.results.figure import Line
from fedmpi.results.grid_file import Measure

_FLOAT32_BYTES = 4
# FedHM's "GB" are 1024 million parameters, not bytes: Fig. 4a has 2 x 10 x 11.17 x 100 / 1024 = 21.82 for 100 rounds
# of 10 clients with 11.17 million parameters each.
_MEGA = 1024 * 1e6


def _moved(record: Record) -> float:
    """Returns the bytes that real clients would have moved in this round, down and up."""
    return float(record["protocol_down_bytes"] + record["protocol_up_bytes"])


def _score(key: str, record: Record, net: str) -> float | None:
    return scores_of(record, net).get(key)


def _kernels(key: str, record: Record, layer: str) -> float | None:
    """Returns a layer's number in the method's diagnostics; of several numbers, as lowest, mean, highest, the mean."""
    number = record.get("method", {}).get("kernels", {}).get(layer, {}).get(key)
    return number[1] if isinstance(number, list) else number


_SERIES: Mapping[str, Callable[[Record, str], float | None]] = {
    "accuracy": partial(_score, "accuracy"),
    "loss": partial(_score, "loss"),
    "train_loss": lambda record, net: record["train_loss"],
    "kernels_needed": partial(_kernels, "effective_kernels"),
    "clients_per_kernel": partial(_kernels, "clients_per_kernel"),
}
_COSTS: Mapping[str, Callable[[Record], float]] = {
    "rounds": lambda record: 1.0,
    "bytes": _moved,
    "macs": lambda record: float(record["training_macs"]),
    "mega_parameters": lambda record: _moved(record) / _FLOAT32_BYTES / _MEGA,
    "uploaded_parameters": lambda record: record["protocol_up_bytes"] / _FLOAT32_BYTES,
}


def nets_of(records: Sequence[Record], net: str) -> list[str]:
    """Returns the tested nets that `net` means: a name, or `largest`, `smallest`, `mean` (all of them)."""
    tested = list(dict.fromkeys(name for record in records for name in net_scores(record)))  # the largest first
    return {"largest": tested[:1], "smallest": tested[-1:], "mean": tested}.get(net) or [net]


def points(
    records: Sequence[Record], net: str, quantity: str = "accuracy", x: str = "rounds"
) -> list[tuple[int, float, float]]:
    """Returns (round, x, y) of each round that has this quantity, y as the mean of the nets that `net` means.

    x is the round, what was spent up to it, or `kernel`: then the points are those of the kernels, and y is the mean
    number of clients over the rounds.
    """
    if x == "kernel":
        return _by_kernel(records, net)
    nets = nets_of(records, net)
    places = [float(record["round"]) for record in records]
    if x != "rounds":
        places = list(accumulate(map(_COSTS[x], records)))
    found = []
    for record, place in zip(records, places, strict=True):
        numbers = [_SERIES[quantity](record, name) for name in nets]
        known = [number for number in numbers if number is not None]
        if len(known) == len(numbers):
            found.append((int(record["round"]), place, statistics.fmean(known)))
    return found


def _by_kernel(records: Sequence[Record], layer: str) -> list[tuple[int, float, float]]:
    layers = [record.get("method", {}).get("kernels", {}).get(layer, {}) for record in records]
    counts = [each["clients_of_kernel"] for each in layers if "clients_of_kernel" in each]
    return [(place, place, statistics.fmean(of_rounds)) for place, of_rounds in enumerate(zip(*counts, strict=True), 1)]


def curve(
    label: str,
    runs: Sequence[Sequence[Record]],
    net: str,
    quantity: str = "accuracy",
    x: str = "rounds",
    scale: float = 1.0,
) -> Line:
    """Averages the curves of several seeds, with y times `scale`, in the rounds that all of them have. The band is from
    the lowest to the highest. Seeds that have no point are left out.
    """
    of_seeds = [found for records in runs if (found := points(records, net, quantity, x))]
    by_round: dict[int, list[tuple[float, float]]] = {}
    for number, place, y in chain.from_iterable(of_seeds):
        by_round.setdefault(number, []).append((place, scale * y))
    shared = [found for _, found in sorted(by_round.items()) if len(found) == len(of_seeds)]
    if not shared:
        return Line(label, [], [])
    xs, ys = np.array(shared).transpose(2, 1, 0)
    band = (ys.min(axis=0), ys.max(axis=0)) if len(of_seeds) > 1 else ()
    return Line(label, xs.mean(axis=0).tolist(), ys.mean(axis=0).tolist(), *map(np.ndarray.tolist, band))


def tier_curves(records: Sequence[Record], *keys: str) -> list[Line]:
    """Returns a curve for each tier of a number that the method notes by tier under these keys. Zeros are left out,
    because they have no place on an axis in logarithms.
    """
    by_tier: dict[str, dict[float, float]] = {}
    for record in records:
        noted = record.get("method") or {}
        for key in keys:
            noted = noted.get(key) or {}
        for tier, number in noted.items():
            if number:
                by_tier.setdefault(tier, {})[record["round"]] = number
    return [Line(name_of(tier), [*found.keys()], [*found.values()]) for tier, found in by_tier.items()]


def name_of(net: str) -> str:
    """Puts a word before names of tiers, which are often numbers."""
    return f"tier {net}" if net.replace(".", "", 1).isdigit() else net


def value(run: RunRecord, measure: Measure) -> float | None:
    """Returns the number that a run ends with; None where it has none, as for a target that it never reached."""
    if measure.quantity in ("seconds", "time_share"):
        return _seconds(run, measure)
    if measure.quantity in _COSTS:
        return _total(run.records, measure.quantity)
    if measure.target is not None:
        cost = measure.quantity.removesuffix("_to_target")
        reached = [spent for _, spent, share in points(run.records, measure.net, x=cost) if share >= measure.target]
        return reached[0] if reached and is_whole(run.records) else None
    if measure.quantity not in _SERIES:
        return None
    numbers = [number for _, _, number in points(run.records, measure.net, measure.quantity)]
    if not numbers or measure.of == "last":
        return numbers[-1] if numbers else None
    return min(numbers) if measure.quantity == "train_loss" else max(numbers)


def one_round_more(run: RunRecord, measure: Measure) -> float | None:
    """Returns what the whole run took and a round more; None but for a measure to a target of a net that it has."""
    if not measure.is_to_target or not points(run.records, measure.net):
        return None
    total = _total(run.records, measure.quantity.removesuffix("_to_target"))
    return None if total is None else total * (1 + 1 / run.rounds)


def _total(records: Sequence[Record], quantity: str) -> float | None:
    return sum(map(_COSTS[quantity], records)) if is_whole(records) else None


def _seconds(run: RunRecord, measure: Measure) -> float | None:
    part_s = run.seconds.get("wall" if measure.net in ("", "largest") else measure.net)
    if part_s is None or measure.quantity == "seconds":
        return part_s
    return part_s / run.seconds["wall"]
