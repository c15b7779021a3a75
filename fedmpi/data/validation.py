"""Validation data in the place of the test data: a share of each client's training examples, on which nobody trains.

A pure function of the partition, the labels and the seed. The test examples are left out altogether, so a choice that
is made by these scores cannot have seen them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from fedmpi import seeds
from fedmpi.data.dataset import Dataset
from fedmpi.data.holdout import LEAST, stratified_holdout
from fedmpi.data.partition import Partition
from fedmpi.errors import ConfigError


@dataclass(frozen=True)
class Validated:
    """`dataset` with validation examples as its test examples, whose they are, and what is left to train on."""

    dataset: Dataset
    training: Partition
    validation: Partition
    """Numbers of the new test examples, client by client, each of them once."""


def hold_out(dataset: Dataset, partition: Partition, share: float, seed: int) -> Validated:
    """Of each client `share` of every class, as near as whole numbers go (`stratified_holdout`).

    A client with fewer than four examples keeps them all. Takes some 0.1 ms a client. Raises ConfigError if no client
    has as many.
    """
    parts = []
    for client in range(partition.num_clients):
        own = partition.client(client)
        generator = seeds.numpy_generator("validation", seed, client)
        parts.append(stratified_holdout(own, dataset.train_y[own], share, generator))
    training, held = ([pair[place] for pair in parts] for place in (0, 1))
    numbers = np.concatenate(held)
    if not len(numbers):
        few = f"validation, but no client has {2 * LEAST} examples to give some of; take fewer clients"
        raise ConfigError("evaluation.on", few)
    return Validated(
        replace(
            dataset,
            test_x=dataset.train_x[numbers],
            test_y=dataset.train_y[numbers],
            test_groups=None if dataset.groups is None else dataset.groups[numbers],
        ),
        Partition.of(np.concatenate(training), np.array([len(own) for own in training])),
        Partition.of(np.arange(len(numbers)), np.array([len(own) for own in held])),
    )
