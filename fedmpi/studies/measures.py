"""What the records of a run say, in the quantities that the papers' tables and figures have (`fedmpi.papers`).

Quantities come as series, a number for each round that
has one, and as single numbers: the best or the last of a series, a total, a mean of a round.
Nothing is extrapolated: a run that is not finished says what it has done.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import TYPE_CHECKING, Literal

from fedmpi.config.schema import Config
from fedmpi.report.records import Record, is_whole, rounds_done
from fedmpi.studies.runs import History, accuracy_of, moved, to_target

if TYPE_CHECKING:
    from fedmpi.costs import Costs

_FLOAT32_BYTES = 4
# FedHM's "GB" are 1024 million parameters, not bytes: Fig. 4a has 2 x 10 x 11.17 x 100 / 1024 = 21.82 for 100 rounds
# of 10 clients with 11.17 million parameters each.
_MEGA = 1024 * 1e6

Points = list[tuple[float, float]]


# Series: a number for each round that has one.


def _kernels(key: str) -> Callable[[Record, str], float | None]:
    """Of layer `net`, from the diagnostics of methods with kernels; the mean where there are several numbers."""

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


def series(history: History, quantity: str, net: str, x: str = "round") -> dict[int, tuple[float, float]]:
    """(x, y) after each round that has y, by round; x is the round, or what has been moved until then, which is known
    up to the first round whose record is missing."""
    records = history.records
    if x in _SUMS:
        records = [record for number, record in enumerate(records, 1) if record["round"] == number]
    rounds = [record["round"] for record in records]
    places = list(accumulate(map(_SUMS[x], records))) if x in _SUMS else [float(done) for done in rounds]
    values = [_SERIES[quantity](record, net) for record in records]
    return {
        done: (place, float(value))
        for done, place, value in zip(rounds, places, values, strict=True)
        if value is not None
    }


# Single numbers.


@dataclass(frozen=True)
class Asked:
    """What a cell is: `net` is a tested net, a layer or a stage of a round; `target` a share."""

    quantity: str
    net: str = ""
    of: Literal["best", "last"] = "last"
    target: float | None = None


COMPARISONS = ("accuracy_drop", "relative_cost")
"""With the same seed of a baseline."""


def common(history: History, baseline: History) -> tuple[History, History]:
    """Both as they are if they are finished; otherwise up to the last round that both have done."""
    if history.is_finished and baseline.is_finished:
        return history, baseline
    both = min(rounds_done(history.records), rounds_done(baseline.records))
    ours, theirs = ([record for record in run.records if record["round"] <= both] for run in (history, baseline))
    return replace(history, records=ours), replace(baseline, records=theirs)


def value(history: History, asked: Asked, baseline: History | None = None, baseline_net: str = "") -> float | None:
    """One run's number; accuracies are shares. None where the run has none (yet), or no baseline to compare with.
    A comparison with a run that is not finished is over the rounds that both have done."""
    quantity = asked.quantity
    if quantity in COMPARISONS and baseline is not None:
        history, baseline = common(history, baseline)
    if quantity == "accuracy_drop":
        accuracy = replace(asked, quantity="accuracy")
        other = None if baseline is None else value(baseline, replace(accuracy, net=baseline_net))
        own = value(history, accuracy)
        return None if own is None or other is None else other - own
    if quantity == "relative_cost":
        return None if baseline is None else _relative_cost(history, baseline)
    if quantity == "seconds":
        return statistics.fmean(record["seconds"][asked.net or "wall"] for record in history.records)
    if quantity in _SUMS:
        if not is_whole(history.records):
            return None
        return sum(map(_SUMS[quantity], history.records))
    if quantity in _TO_TARGET:
        reached = None if asked.target is None else to_target(history.records, asked.net, asked.target)
        return None if reached is None else float(reached[_TO_TARGET.index(quantity)])
    found = [number for _, number in series(history, quantity, asked.net).values()] if quantity in _SERIES else []
    if not found:
        return None
    return (min if quantity == "train_loss" else max)(found) if asked.of == "best" else found[-1]


def _relative_cost(history: History, baseline: History) -> float | None:
    """Bytes over bytes, in the rounds that both have done."""
    both = {record["round"] for record in history.records} & {record["round"] for record in baseline.records}
    ours, theirs = (
        sum(moved(record) for record in run.records if record["round"] in both) for run in (history, baseline)
    )
    return ours / theirs if theirs else None


def kernel_profile(history: History, layer: str) -> Points:
    """(kernel, mean number of clients over the rounds), kernels from 1; empty where records do not count by kernel."""
    rounds = [record.get("method", {}).get("kernels", {}).get(layer, {}) for record in history.records]
    counts = [counted["clients_of_kernel"] for counted in rounds if "clients_of_kernel" in counted]
    return [(float(place), statistics.fmean(of_kernel)) for place, of_kernel in enumerate(zip(*counts, strict=True), 1)]


# What a net costs, which no run is needed for.


def costs_of(config: Config, net: str) -> Costs:
    """Of a tier's or tested net by its name. Raises KeyError for a name that the method does not have."""
    from fedmpi import costs, methods
    from fedmpi.run.start import method_context

    info = config.data.info()
    method = methods.create(method_context(config, info))
    numbers = {tested.name: tested.net for tested in method.tested()} | {tier.name: tier.index for tier in method.tiers}
    return costs.measure(method.net(numbers[net], empty=True), info.example_shape)
