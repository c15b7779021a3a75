"""Tests a client's own net on its own test data, and sums up what all clients reach.

Counts of whole numbers travel, so the scores have the same bits wherever a client was tested.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from fedmpi.data.batches import DeviceData
from fedmpi.data.bounds import batch_bounds
from fedmpi.learning import bn
from fedmpi.learning.determinism import global_generator
from fedmpi.learning.flat import FlatNet


@dataclass(frozen=True)
class ClientScores:
    """Test accuracy of the clients that have test data: `clients` are their numbers, both arrays of their length."""

    clients: np.ndarray
    accuracy: np.ndarray
    without_test_data: int = 0
    """How many clients could not be tested."""

    def summary(self) -> dict[str, float]:
        """Mean over clients, standard deviation, and the mean of the worst tenth (at least one client)."""
        num_worst = -(-len(self.clients) // 10)
        worst = np.sort(self.accuracy)[:num_worst]
        return {
            "accuracy": float(self.accuracy.mean()),
            "std": float(self.accuracy.std()),
            "worst_decile": float(worst.mean()),
            "clients": len(self.clients),
            "without_test_data": self.without_test_data,
        }


@torch.no_grad()
def count_correct(
    net: FlatNet, data: DeviceData, test_examples: Tensor, batch_size: int, restat: tuple[np.ndarray, int] | None
) -> int:
    """How many of `test_examples` (int64 (n,), numbers) the net gets right.

    `restat` (numbers of the client's training examples, seed of their augmentation) asks for
    BatchNorm statistics of the client's own training data; None means those of each test batch.
    """
    statistics = None if restat is None else _own_statistics(net, data, *restat, batch_size)
    correct = 0
    with bn.using(net.module, statistics):
        for start, stop in batch_bounds(len(test_examples), batch_size):
            inputs, targets = data.test_batch_of(test_examples[start:stop])
            correct += int((net.module(inputs).argmax(1) == targets).sum())
    return correct


def _own_statistics(net: FlatNet, data: DeviceData, examples: np.ndarray, seed: int, batch_size: int) -> Tensor | None:
    if not bn.num_statistics(net.module):
        return None
    draws = data.draws(examples, 1, torch.Generator().manual_seed(seed), shuffle=False)
    bounds = batch_bounds(len(examples), batch_size)
    total = torch.zeros(bn.num_statistics(net.module), dtype=torch.float64, device=data.device)
    with bn.collecting(net.module), global_generator(seed, data.device):
        for start, stop in bounds:
            net.module(data.train_batch(draws, 0, start, stop)[0])
            total += bn.collected(net.module)
    return (total / len(bounds)).float()
