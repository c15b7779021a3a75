"""Numbers that a run's records give: what grids measure, and what the tables and figures of the papers print.

A quantity comes as a series, a number for each round that has one, and as one number: the best or the last of a
series, a total, or a mean over the rounds. Nothing is extrapolated: a run that is not finished gives what it has done.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import Literal

from fedmpi.report.records import Record, is_whole, net_scores, rounds_done
from fedmpi.results.run import accuracy_of, moved, to_target

Quantity = Literal[
    "accuracy",  # on the test set, a share; of the net, see `nets_of`
    "accuracy_drop",  # the baseline's accuracy minus this run's
    "train_loss",  # mean over the cohort
    "relative_cost",  # bytes moved, both ways, over those of the baseline
    "bytes",  # moved in the whole run, both ways
    "macs",  # of the whole run's training
    "terabytes",  # the same, 10^12
    "seconds",  # of one round, or of the stage that `net` names
    "time_share",  # that stage's share of a round
    "bytes_to_target",  # moved until the target is reached
    "macs_to_target",  # forward MACs x examples until the target is reached
    "rounds_to_target",
    "kernels_needed",  # PriSM: the effective number of kernels of the layer `net`
    "clients_per_kernel",  # PriSM: how many clients of a cohort train each kernel of the layer `net`
    "inference_time",  # dense over pruned: no record has it, `fedmpi export --cut` measures it
    "inference_energy",
]
COMPARISONS = ("accuracy_drop", "relative_cost")
"""Quantities that need a baseline: a run of the same seed."""

_FLOAT32_BYTES = 4
# FedHM's "GB" are 1024 million parameters, not bytes: Fig. 4a has 2 x 10 x 11.17 x 100 / 1024 = 21.82 for 100 rounds
# of 10 clients with 11.17 million parameters each.
_MEGA = 1024 * 1e6


def _kernels(key: str) -> Callable[[Record, str], float | None]:
    """Returns a reader of a layer's number in the method's diagnostics; of several numbers it reads the mean."""

    def read(record: Record, layer: str) -> float | None:
        kernels = record.get("method", {}).get("kernels", {}).get(layer)
        number = None if kernels is None else kernels[key]
        return number[1] if isinstance(number, list) else number

    return read


_SERIES: dict[str, Callable[[Record, str], float | None]] = {
    "accuracy": accuracy_of,
    "train_loss": lambda record, net: record["train_loss"],
    "kernels_needed": _kernels("effective_kernels"),
    "clients_per_kernel": _kernels("clients_per_kernel"),
}
_SUMS: dict[str, Callable[[Record], float]] = {
    "bytes": moved,
    "macs": lambda record: record["training_macs"],
    "terabytes": lambda record: moved(record) / 1e12,
    "mega_parameters": lambda record: moved(record) / _FLOAT32_BYTES / _MEGA,
    "uploaded_parameters": lambda record: record["protocol_up_bytes"] / _FLOAT32_BYTES,
}
_TO_TARGET = ("bytes_to_target", "macs_to_target", "rounds_to_target")


def series(records: Sequence[Record], quantity: str, net: str, x: str = "round") -> dict[int, tuple[float, float]]:
    """Returns (x, y) of each round that has y, by round. x is the round, or the sum `x` of `_SUMS` up to that round,
    which is known up to the first round whose record is missing.
    """
    if x in _SUMS:
        records = [record for number, record in enumerate(records, 1) if record["round"] == number]
        xs = list(accumulate(map(_SUMS[x], records)))
    else:
        xs = [float(record["round"]) for record in records]
    points = {}
    for record, place in zip(records, xs, strict=True):
        number = _SERIES[quantity](record, net)
        if number is not None:
            points[record["round"]] = (place, float(number))
    return points


def nets_of(records: Sequence[Record], net: str) -> list[str]:
    """Returns the tested nets that `net` means: a name, or `largest`, `smallest`, `mean` (all of them)."""
    tested = list(dict.fromkeys(name for record in records for name in net_scores(record)))  # the largest first
    if net == "mean":
        return tested
    return {"largest": tested[:1], "smallest": tested[-1:]}.get(net, [net])


def value(
    records: Sequence[Record],
    quantity: str,
    net: str = "",
    *,
    of: Literal["best", "last"] = "last",
    target: float | None = None,
    baseline: Sequence[Record] | None = None,
    baseline_net: str = "",
) -> float | None:
    """Returns one run's number, None if the run has none (yet) or if there is no baseline to compare with.

    `net` is a tested net, a layer or a stage of a round. Accuracies and `target` are shares. A comparison is over the
    rounds that both runs have done.
    """
    if quantity in COMPARISONS:
        return None if baseline is None else _compared(quantity, records, net, of, baseline, baseline_net)
    if quantity in ("seconds", "time_share"):
        return _seconds(records, quantity, net)
    if quantity in _SUMS:
        return sum(map(_SUMS[quantity], records)) if is_whole(records) else None
    numbers = [_of_net(records, quantity, name, of, target) for name in nets_of(records, net)]
    known = [number for number in numbers if number is not None]
    return statistics.fmean(known) if known and len(known) == len(numbers) else None


def _of_net(records: Sequence[Record], quantity: str, net: str, of: str, target: float | None) -> float | None:
    if quantity in _TO_TARGET:
        reached = None if target is None else to_target(records, net, target)
        return None if reached is None else float(reached[_TO_TARGET.index(quantity)])
    numbers = [number for _, number in series(records, quantity, net).values()] if quantity in _SERIES else []
    if not numbers:
        return None
    if of == "last":
        return numbers[-1]
    return min(numbers) if quantity == "train_loss" else max(numbers)


def _seconds(records: Sequence[Record], quantity: str, net: str) -> float | None:
    if not all("seconds" in record for record in records):  # an archive has none
        return None
    stage = "wall" if net in ("", "largest") else net
    seconds = statistics.fmean(record["seconds"].get(stage, 0.0) for record in records)
    if quantity == "seconds":
        return seconds
    return seconds / statistics.fmean(record["seconds"]["wall"] for record in records)


def _compared(
    quantity: str, records: Sequence[Record], net: str, of: str, baseline: Sequence[Record], baseline_net: str
) -> float | None:
    last = min(rounds_done(records), rounds_done(baseline))
    records, baseline = ([record for record in run if record["round"] <= last] for run in (records, baseline))
    if quantity == "accuracy_drop":
        ours = _of_net(records, "accuracy", net, of, None)
        theirs = _of_net(baseline, "accuracy", baseline_net, of, None)
        return None if ours is None or theirs is None else theirs - ours
    bytes_of, bytes_of_baseline = ({record["round"]: moved(record) for record in run} for run in (records, baseline))
    both = bytes_of.keys() & bytes_of_baseline.keys()
    whole = sum(bytes_of_baseline[number] for number in both)
    return sum(bytes_of[number] for number in both) / whole if whole else None


def kernel_profile(records: Sequence[Record], layer: str) -> list[tuple[float, float]]:
    """Returns (kernel, mean number of clients over the rounds), kernels from 1; [] if nothing counts by kernel."""
    rounds = [record.get("method", {}).get("kernels", {}).get(layer, {}) for record in records]
    counts = [kernels["clients_of_kernel"] for kernels in rounds if "clients_of_kernel" in kernels]
    return [(float(kernel), statistics.fmean(clients)) for kernel, clients in enumerate(zip(*counts, strict=True), 1)]
