"""Tests the net of every tier on fixed global batches.

A unit of work is (tier, batch): the batches are the same for any number of ranks, each unit is one
term of an exact sum, so the result has the same bits wherever it was computed. Units are dealt in
contiguous stretches of equal cost, so a rank loads few nets. BatchNorm re-estimation is dealt and
summed the same way.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate, groupby

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from fedmpi.data.batches import DeviceData
from fedmpi.data.bounds import batch_bounds
from fedmpi.exactsum import StatisticSum
from fedmpi.learning import bn
from fedmpi.learning.determinism import global_generator
from fedmpi.learning.flat import FlatNet

Bounds = tuple[int, int]
Unit = tuple[int, Bounds]
AllreduceSum = Callable[[Tensor], None]


@dataclass(frozen=True)
class TierScore:
    """Test accuracy (share of all examples) and mean cross-entropy of one tier's net."""

    accuracy: float
    loss: float


@dataclass(frozen=True)
class EvaluationPlan:
    """What is the same in every evaluation of a run."""

    costs: tuple[float, ...]
    """Multiply-accumulates per example of each tier's net."""
    num_statistics: tuple[int, ...]
    """Numbers that each tier's BatchNorm statistics are."""
    num_test: int
    batch_size: int
    restat_indices: np.ndarray
    """The union of the clients' training examples, in the order they pass for re-estimation."""


def my_units(costs: Sequence[float], bounds: Sequence[Bounds], worker: int | None, num_workers: int) -> list[Unit]:
    """The stretch of all (tier, batch) units whose middles lie in this worker's share of the total cost."""
    if worker is None or not costs:
        return []
    units = [(tier, piece) for tier in range(len(costs)) for piece in bounds]
    weights = [max(costs[tier], 1.0) * (stop - start) for tier, (start, stop) in units]
    ends = list(accumulate(weights))
    middles = [end - weight / 2 for end, weight in zip(ends, weights, strict=True)]
    low, high = (ends[-1] * share / num_workers for share in (worker, worker + 1))
    return [unit for unit, middle in zip(units, middles, strict=True) if low <= middle < high]


@torch.no_grad()
def test_nets(
    plan: EvaluationPlan,
    load: Callable[[int], FlatNet],
    data: DeviceData,
    allreduce_sum: AllreduceSum,
    *,
    worker: int | None,
    num_workers: int,
    restat_seed: Callable[[int], int] | None,
) -> list[TierScore]:
    """Accuracy and loss of every tier; every rank calls it and gets all scores.

    `load(tier)` puts that tier's net into place. `restat_seed` (batch number -> seed of
    its augmentation) asks for re-estimated BatchNorm statistics; None means batch statistics.
    """
    statistics: dict[int, Tensor] = {}
    if restat_seed is not None:
        statistics = _reestimate(plan, load, data, allreduce_sum, worker, num_workers, restat_seed)
    bounds = batch_bounds(plan.num_test, plan.batch_size)
    counts = torch.zeros(2, len(plan.costs), dtype=torch.int64)
    losses = StatisticSum(len(plan.costs), len(bounds))
    mine = my_units(plan.costs, bounds, worker, num_workers)
    for tier, units in groupby(mine, key=lambda unit: unit[0]):
        net = load(tier)
        with bn.using(net.module, statistics.get(tier)):
            for _, (start, stop) in units:
                inputs, targets = data.test_batch(start, stop)
                logits = net.module(inputs).float()
                counts[0, tier] += int((logits.argmax(1) == targets).sum())
                _add_loss(losses, counts, tier, F.cross_entropy(logits, targets, reduction="sum"))
    return _scores(counts, losses, plan.num_test, allreduce_sum)


def _add_loss(losses: StatisticSum, counts: Tensor, tier: int, loss: Tensor) -> None:
    """A loss that no sum can hold is counted instead, and makes the tier's loss infinite."""
    value = torch.zeros(counts.shape[1], dtype=torch.float64)
    value[tier] = loss.double().cpu()
    if bool(torch.isfinite(value[tier])):
        losses.add(value)
    else:
        counts[1, tier] += 1


def _scores(counts: Tensor, losses: StatisticSum, num_test: int, allreduce_sum: AllreduceSum) -> list[TierScore]:
    allreduce_sum(counts.view(-1))
    allreduce_sum(losses.buffer)
    totals = losses.total().tolist()
    return [
        TierScore(int(correct) / num_test, float("inf") if bad else total / num_test)
        for correct, bad, total in zip(counts[0], counts[1], totals, strict=True)
    ]


def _reestimate(
    plan: EvaluationPlan,
    load: Callable[[int], FlatNet],
    data: DeviceData,
    allreduce_sum: AllreduceSum,
    worker: int | None,
    num_workers: int,
    seed_of: Callable[[int], int],
) -> dict[int, Tensor]:
    """BatchNorm statistics of every tier over the union of the training data, train transforms on."""
    bounds = batch_bounds(len(plan.restat_indices), plan.batch_size)
    number_of = {piece: number for number, piece in enumerate(bounds)}
    mine = my_units(plan.costs, bounds, worker, num_workers)
    mine = [unit for unit in mine if plan.num_statistics[unit[0]]]
    statistics = {}
    totals = [StatisticSum(count, len(bounds)) for count in plan.num_statistics]
    for tier, units in groupby(mine, key=lambda unit: unit[0]):
        net = load(tier)
        with bn.collecting(net.module):
            for _, piece in units:
                seed = seed_of(number_of[piece])
                augmentation = torch.Generator().manual_seed(seed)
                draws = data.draws(plan.restat_indices[slice(*piece)], 1, augmentation, shuffle=False)
                with global_generator(seed, data.device):
                    net.module(data.train_batch(draws, 0, 0, piece[1] - piece[0])[0])
                totals[tier].add(bn.collected(net.module).cpu())
    for tier, total in enumerate(totals):
        allreduce_sum(total.buffer)
        statistics[tier] = (total.total() / len(bounds)).to(data.device, torch.float32)
    return {tier: values for tier, values in statistics.items() if len(values)}
