"""Tests the net of every tier on fixed global batches, and a client's own net on its own test data.

A unit of work is (tier, batch): the batches are the same for any number of ranks, each unit is one
term of an exact sum, so the result has the same bits wherever it was computed. Units are dealt in
contiguous stretches of equal cost, net by net, so that a rank loads few nets. BatchNorm re-estimation is dealt and
summed the same way.
Of clients one number each travels, so their scores have the same bits wherever they were tested.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, groupby, product

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from fedmpi import seeds
from fedmpi.config.fields import Task
from fedmpi.config.schema import Train
from fedmpi.data.batches import DeviceData, batch_bounds
from fedmpi.exactsum import StatisticSum
from fedmpi.learning import bn
from fedmpi.learning.flat import FlatNet
from fedmpi.learning.local import Loss, MaskedCrossEntropy, loss_of

Bounds = tuple[int, int]
Unit = tuple[int, Bounds]
AllreduceSum = Callable[[Tensor], None]


@dataclass(frozen=True)
class TierScore:
    """Test accuracy (share of all examples or tokens; r2 of a regression) and mean loss of one tier's net."""

    accuracy: float
    loss: float
    statistics: Tensor | None = field(default=None, compare=False, repr=False)
    """The BatchNorm statistics that it was tested with (num_statistics,); None for those of each batch."""
    logits: Tensor | None = field(default=None, compare=False, repr=False)
    """Those of all test examples, float32 (N, classes), where the plan keeps them."""


@dataclass(frozen=True)
class Scoring:
    """How a net is tested: its loss, and points that make its score, the accuracy (of each label or token) or r2."""

    task: Task
    loss: Loss
    """The mean over a batch."""
    unit: float = 1.0
    """What the points are divided by beside the number of examples: labels, or the variance of the test's targets."""
    tokens: np.ndarray | None = field(default=None, compare=False, repr=False)
    """How many tokens of each test example have a target, int64 (N,); None where an example has one target."""

    @classmethod
    def of(cls, train: Train, task: Task, test_targets: np.ndarray) -> Scoring:
        """Returns the scoring of nets that are tested with such targets, (N,), (N, length) or (N, outputs)."""
        unit = 1.0
        tokens = None
        if task == "token_classification":
            tokens = (test_targets >= 0).sum(axis=1)  # IGNORED is negative
        if task == "multi_label":
            unit = float(test_targets.shape[1])
        elif task == "regression":
            unit = float(test_targets.var(axis=0, dtype=np.float64).sum())
        return cls(task, loss_of(train, task), unit, tokens)

    def num_counted(self, examples: np.ndarray) -> int:
        """Counts what the score of these test examples is a mean over: themselves, or their tokens with a target."""
        return len(examples) if self.tokens is None else int(self.tokens[examples].sum())

    @property
    def name(self) -> str:
        """Returns the score's key in records."""
        return "r2" if self.task == "regression" else "accuracy"

    def points(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Counts classes or labels that are right, or adds up squared errors; float64 (), on the device."""
        if self.task in ("classification", "token_classification"):
            return (outputs.argmax(-1) == targets).sum().double()
        if self.task == "multi_label":
            return ((outputs > 0) == (targets > 0)).sum().double()
        return (outputs.double() - targets).square().sum()

    def of_batch(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Returns the points of a batch and the sum of its losses, float64 (2,), on the device."""
        if isinstance(self.loss, MaskedCrossEntropy):
            loss = F.cross_entropy(outputs, targets, reduction="sum").double()
        else:
            num_counted = len(targets) if self.tokens is None else (targets >= 0).sum()
            loss = self.loss(outputs, targets).double() * num_counted
        return torch.stack([self.points(outputs, targets), loss])

    def score(self, points: float, num_counted: int) -> float:
        """Returns the share of classes or labels that are right; of numbers 1 - the mean squared error / variance."""
        share = points / (num_counted * self.unit)
        return 1 - share if self.task == "regression" else share


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
    """The union of the clients' training examples, or a share of it, in the order they pass for re-estimation."""
    scoring: Scoring
    late: Collection[int] = ()
    """The tiers whose nets are tested after the others', because they come later (`Method.late`)."""
    keeps_logits: bool = False
    """True if metrics need the logits of all test examples."""


def my_units(
    costs: Sequence[float], bounds: Sequence[Bounds], worker: int | None, num_workers: int, late: Collection[int] = ()
) -> list[Unit]:
    """Returns this worker's (tier, batch) units, net by net: of the early tiers, and then of the `late` ones, those
    whose middles lie in its share of their cost.
    """
    mine: list[Unit] = []
    for is_late in (False, True):
        tiers = [tier for tier in range(len(costs)) if (tier in late) == is_late]
        units = list(product(tiers, bounds))
        weights = [max(costs[tier], 1.0) * (stop - start) for tier, (start, stop) in units]
        ends = list(accumulate(weights))
        shares = [num_workers * (end - weight / 2) / ends[-1] for end, weight in zip(ends, weights, strict=True)]
        mine += [unit for unit, share in zip(units, shares, strict=True) if int(share) == worker]
    return mine


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
    """Returns accuracy and loss of every tier; every rank calls it and gets all scores.

    `load(tier)` puts that tier's net into place. `restat_seed` (batch number -> seed of
    its augmentation) asks for re-estimated BatchNorm statistics; None means batch statistics.
    """
    statistics: dict[int, Tensor] = {}
    if restat_seed is not None:
        statistics = reestimate(plan, load, data, allreduce_sum, worker, num_workers, restat_seed)
    bounds = batch_bounds(plan.num_test, plan.batch_size)
    sums = StatisticSum(2 * len(plan.costs), len(bounds))
    # The bits of float32 logits as whole numbers: one rank fills in each, and a sum over the ranks leaves it as it is.
    shape = (len(plan.costs), plan.num_test, data.info.num_classes) if plan.keeps_logits else (0,)
    bits = torch.zeros(shape, dtype=torch.int64)
    mine = my_units(plan.costs, bounds, worker, num_workers, plan.late)
    for tier, units in groupby(mine, key=lambda unit: unit[0]):
        net = load(tier)
        found = []
        with bn.using(net.module, statistics.get(tier)):
            for _, piece in units:
                inputs, targets = data.test_batch(*piece)
                logits = net.module(inputs).float()
                found.append(plan.scoring.of_batch(logits, targets))
                if plan.keeps_logits:
                    bits[tier, slice(*piece)] = logits.contiguous().view(torch.int32).cpu().long()
        for of_batch in torch.stack(found).cpu():  # the one wait for all batches of a tier
            of_tiers = torch.zeros(len(plan.costs), 2, dtype=torch.float64)
            of_tiers[tier] = of_batch
            sums.add(of_tiers.view(-1))
    allreduce_sum(sums.buffer)
    if plan.keeps_logits:
        allreduce_sum(bits.view(-1))
    return _scores(plan, sums.total().view(-1, 2), statistics, bits)


def _scores(plan: EvaluationPlan, totals: Tensor, statistics: Mapping[int, Tensor], bits: Tensor) -> list[TierScore]:
    """Returns the score of each tier out of its points and losses (tiers, 2)."""
    scores = []
    num_counted = plan.scoring.num_counted(np.arange(plan.num_test))
    for tier, (points, loss) in enumerate(totals.tolist()):
        mean_loss = loss / num_counted if loss < StatisticSum.LARGEST else float("inf")
        logits = bits[tier].int().view(torch.float32) if plan.keeps_logits else None
        score = plan.scoring.score(points, num_counted)
        scores.append(TierScore(score, mean_loss, statistics.get(tier), logits))
    return scores


def reestimate(
    plan: EvaluationPlan,
    load: Callable[[int], FlatNet],
    data: DeviceData,
    allreduce_sum: AllreduceSum,
    worker: int | None,
    num_workers: int,
    seed_of: Callable[[int], int],
) -> dict[int, Tensor]:
    """Returns BatchNorm statistics of every tier over the union of the training data, train transforms on."""
    bounds = batch_bounds(len(plan.restat_indices), plan.batch_size)
    mine = my_units(plan.costs, bounds, worker, num_workers, plan.late)
    mine = [unit for unit in mine if plan.num_statistics[unit[0]]]
    statistics = {}
    totals = [StatisticSum(count, len(bounds)) for count in plan.num_statistics]
    for tier, units in groupby(mine, key=lambda unit: unit[0]):
        net = load(tier)
        found = []
        with bn.collecting(net.module):
            for _, piece in units:
                seed = seed_of(piece[0] // plan.batch_size)
                augmentation = torch.Generator().manual_seed(seed)
                draws = data.draws(plan.restat_indices[slice(*piece)], 1, augmentation, shuffle=False)
                with seeds.global_generators(seed, data.device):
                    net.module(data.train_batch(draws, 0, 0, piece[1] - piece[0])[0])
                found.append(bn.collected(net.module))
        for values in torch.stack(found).cpu():
            totals[tier].add(values)
    for tier, total in enumerate(totals):
        allreduce_sum(total.buffer)
        statistics[tier] = (total.total() / len(bounds)).to(data.device, torch.float32)
    return {tier: values for tier, values in statistics.items() if len(values)}


@dataclass(frozen=True)
class ClientScores:
    """Test accuracy (r2 of a regression, see `name`) of the clients that have test data: `clients` are their numbers,
    both arrays of their length.
    """

    clients: np.ndarray
    accuracy: np.ndarray
    without_test_data: int = 0
    """How many clients could not be tested."""
    name: str = "accuracy"

    def summary(self) -> dict[str, float]:
        """Returns mean over clients, standard deviation, and the mean of the worst tenth (at least one client)."""
        num_worst = -(-len(self.clients) // 10)
        worst = np.sort(self.accuracy)[:num_worst]
        return {
            self.name: float(self.accuracy.mean()),
            "std": float(self.accuracy.std()),
            "worst_decile": float(worst.mean()),
            "clients": len(self.clients),
            "without_test_data": self.without_test_data,
        }


@torch.no_grad()
def points_of(
    net: FlatNet,
    data: DeviceData,
    scoring: Scoring,
    test_examples: Tensor,
    batch_size: int,
    restat: tuple[np.ndarray, int] | None,
) -> float:
    """Returns the points (`Scoring.points`) of the net on `test_examples` (int64 (n,), numbers).

    `restat` (numbers of the client's training examples, seed of their augmentation) asks for
    BatchNorm statistics of the client's own training data; None means those of each test batch.
    """
    statistics = None if restat is None else own_statistics(net, data, *restat, batch_size)
    bounds = batch_bounds(len(test_examples), batch_size)
    with bn.using(net.module, statistics):
        batches = (data.test_batch_of(test_examples[slice(*piece)]) for piece in bounds)
        found = [scoring.points(net.module(inputs).float(), targets) for inputs, targets in batches]
        return float(torch.stack(found).sum()) if found else 0.0


@torch.no_grad()
def own_statistics(net: FlatNet, data: DeviceData, examples: np.ndarray, seed: int, batch_size: int) -> Tensor | None:
    """Returns BatchNorm statistics over these training examples (num_statistics,); None for a net without BatchNorm."""
    if not bn.num_statistics(net.module):
        return None
    draws = data.draws(examples, 1, torch.Generator().manual_seed(seed), shuffle=False)
    bounds = batch_bounds(len(examples), batch_size)
    total = torch.zeros(bn.num_statistics(net.module), dtype=torch.float64, device=data.device)
    with bn.collecting(net.module), seeds.global_generators(seed, data.device):
        for start, stop in bounds:
            net.module(data.train_batch(draws, 0, start, stop)[0])
            total += bn.collected(net.module)
    return (total / len(bounds)).float()
