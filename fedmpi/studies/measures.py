"""What the records of a run say, in the quantities that the papers' tables and figures have (`fedmpi.papers`).

Quantities come as series, a number for each round that has one, and as single numbers: the best or the last of a
series, a total, a mean of a round. Nothing is extrapolated: a run that is not finished says what it has done.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import replace
from itertools import accumulate
from typing import Literal

from fedmpi.report.records import Record, is_whole, rounds_done
from fedmpi.studies.runs import History, accuracy_of, moved, to_target

_FLOAT32_BYTES = 4
# FedHM's "GB" are 1024 million parameters, not bytes: Fig. 4a has 2 x 10 x 11.17 x 100 / 1024 = 21.82 for 100 rounds
# of 10 clients with 11.17 million parameters each.
_MEGA = 1024 * 1e6


def _kernels(key: str) -> Callable[[Record, str], float | None]:
    """The number of layer `net`, from the diagnostics of methods with kernels; of several numbers the mean."""

    def read(record: Record, net: str) -> float | None:
        layer = record.get("method", {}).get("kernels", {}).get(net)
        value = None if layer is None else layer[key]
        return value[1] if isinstance(value, list) else value

    return read


_SERIES: dict[str, Callable[[Record, str], float | None]] = {
    "accuracy": accuracy_of,
    "train_loss": lambda record, net: record["train_loss"],
    "kernels_needed": _kernels("effective_kernels"),
    "clients_per_kernel": _kernels("clients_per_kernel"),
}

_SUMS: dict[str, Callable[[Record], float]] = {
    "bytes": moved,
    "terabytes": lambda record: moved(record) / 1e12,
    "mega_parameters": lambda record: moved(record) / _FLOAT32_BYTES / _MEGA,
    "uploaded_parameters": lambda record: record["protocol_up_bytes"] / _FLOAT32_BYTES,
}
"""What adds up from round to round."""

_TO_TARGET = ("bytes_to_target", "macs_to_target", "rounds_to_target")
COMPARISONS = ("accuracy_drop", "relative_cost")
"""With the same seed of a baseline."""


def series(history: History, quantity: str, net: str, x: str = "round") -> dict[int, tuple[float, float]]:
    """(x, y) after each round that has y, by round; x is the round, or what has been moved until then, which is known
    up to the first round whose record is missing."""
    records = history.records
    if x in _SUMS:
        records = [record for number, record in enumerate(records, 1) if record["round"] == number]
    rounds = [record["round"] for record in records]
    places = list(accumulate(map(_SUMS[x], records))) if x in _SUMS else [float(done) for done in rounds]
    values = [_SERIES[quantity](record, net) for record in records]
    points = zip(rounds, places, values, strict=True)
    return {done: (place, float(value)) for done, place, value in points if value is not None}


def value(
    history: History,
    quantity: str,
    net: str = "",
    *,
    of: Literal["best", "last"] = "last",
    target: float | None = None,
    baseline: History | None = None,
    baseline_net: str = "",
) -> float | None:
    """One run's number; accuracies are shares. None where the run has none (yet), or no baseline to compare with.

    `net` is a tested net, a layer or a stage of a round; `target` a share. A comparison with a run that is not
    finished is over the rounds that both have done.
    """
    if quantity in COMPARISONS:
        if baseline is None:
            return None
        if not (history.is_finished and baseline.is_finished):
            history, baseline = _up_to_common_round(history, baseline)
        if quantity == "relative_cost":
            return _relative_cost(history, baseline)
        own, other = value(history, "accuracy", net, of=of), value(baseline, "accuracy", baseline_net, of=of)
        return None if own is None or other is None else other - own
    if quantity == "seconds":
        return statistics.fmean(record["seconds"][net or "wall"] for record in history.records)
    if quantity in _SUMS:
        return sum(map(_SUMS[quantity], history.records)) if is_whole(history.records) else None
    if quantity in _TO_TARGET:
        reached = None if target is None else to_target(history.records, net, target)
        return None if reached is None else float(reached[_TO_TARGET.index(quantity)])
    found = [number for _, number in series(history, quantity, net).values()] if quantity in _SERIES else []
    if not found:
        return None
    return (min if quantity == "train_loss" else max)(found) if of == "best" else found[-1]


def _up_to_common_round(*histories: History) -> list[History]:
    """Up to the last round that all have done."""
    last = min(rounds_done(history.records) for history in histories)
    kept = ([record for record in history.records if record["round"] <= last] for history in histories)
    return [replace(history, records=records) for history, records in zip(histories, kept, strict=True)]


def _relative_cost(history: History, baseline: History) -> float | None:
    """Bytes over bytes, in the rounds that both have records of."""
    ours, theirs = ({record["round"]: moved(record) for record in run.records} for run in (history, baseline))
    both = [number for number in ours if number in theirs]
    whole = sum(theirs[number] for number in both)
    return sum(ours[number] for number in both) / whole if whole else None


def kernel_profile(history: History, layer: str) -> list[tuple[float, float]]:
    """(kernel, mean number of clients over the rounds), kernels from 1; empty where records do not count by kernel."""
    rounds = [record.get("method", {}).get("kernels", {}).get(layer, {}) for record in history.records]
    counts = [counted["clients_of_kernel"] for counted in rounds if "clients_of_kernel" in counted]
    return [(float(place), statistics.fmean(of_kernel)) for place, of_kernel in enumerate(zip(*counts, strict=True), 1)]
