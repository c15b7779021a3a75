"""A model, a data set, a partition and a method as a user brings them: plain functions and classes."""

from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from fedmpi.learning.local import TrainOutcome
from fedmpi.methods.fedavg import FedAvg
from fedmpi.methods.values import ClientLoad, Costs


class Net(nn.Module):
    """One hidden layer."""

    def __init__(self, num_classes: int, example_shape: tuple[int, ...], hidden: int = 8) -> None:
        super().__init__()
        self.hidden, self.fc = nn.Linear(int(np.prod(example_shape)), hidden), nn.Linear(hidden, num_classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.hidden(x.flatten(1)).relu())


class Watcher:
    """Hears of the rounds."""

    def round_done(self, record: dict[str, float]) -> None:
        self.last = record["round"]


class OtherNumbers(FedAvg):
    """Counts with numpy and torch."""

    def train(self, *arguments: Any) -> TrainOutcome:
        outcome = super().train(*arguments)
        counts = {"steps": np.int64(outcome.steps), "left_out": torch.tensor(outcome.left_out)}
        return replace(outcome, loss=torch.tensor(outcome.loss, dtype=torch.float64), **counts)

    def costs(self, load: ClientLoad) -> Costs:
        costs = super().costs(load)
        return Costs(np.int64(costs.down_bytes), np.int64(costs.up_bytes))


class NotANet:
    """Has the arguments of a net."""

    def __init__(self, num_classes: int) -> None:
        self.num_classes = num_classes


class Misspelled(Watcher):
    def run_end(self, ended: object) -> None:
        pass


def linear(num_classes: int, features: int = 64) -> nn.Module:
    """One layer."""
    return nn.Sequential(nn.Flatten(), nn.Linear(features, num_classes))


def of_colours(num_classes: int) -> nn.Module:
    """For pictures of three channels."""
    return nn.Sequential(nn.Conv2d(3, num_classes, 5), nn.AdaptiveAvgPool2d(1), nn.Flatten())


def noise(count: int = 80) -> dict[str, np.ndarray]:
    """Vectors of six random numbers in three classes."""
    x, y = np.random.default_rng(0).random((count + 20, 6), dtype=np.float32), np.arange(count + 20) % 3
    return {"train_x": x[:count], "train_y": y[:count], "test_x": x[count:], "test_y": y[count:]}


def in_turn(number: np.integer, seed: object) -> list[int]:
    """Chooses two clients."""
    return [int(number) % 8, int(number + 1) % 8]


def in_no_turn(number: np.integer, seed: object) -> list[int]:
    """Chooses clients that are not there."""
    return [100]


def dealt(labels: np.ndarray, num_clients: int, seed: int) -> list[np.ndarray]:
    """In random order, one after the other."""
    return np.array_split(np.random.default_rng(seed).permutation(len(labels)), num_clients)


def dealt_anew(labels: np.ndarray, num_clients: int, seed: int) -> list[np.ndarray]:
    """Forgets its seed."""
    return np.array_split(np.random.default_rng().permutation(len(labels)), num_clients)


def anything(num_classes: int, labels: str, num_clients: int, seed: int) -> None:
    """Could be a model as well as a partition."""
