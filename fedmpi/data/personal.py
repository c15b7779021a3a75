"""Which test examples are a client's own: what its personal net is tested on.

A pure function of the training partition, the labels and the seed. `matching` divides the test set:
of each class a client gets the share of test examples that it has of the training examples, so its
test data follow its training classes and every test example is used once (a client with few
examples may get none). `classes` gives everybody all test examples of the classes that it trains
on, as LotteryFL and LG-FedAvg do.
"""

from __future__ import annotations

from typing import Literal

import numpy as np
from numpy.typing import NDArray

from fedmpi.data.partition import Partition, present_labels
from fedmpi.seeds import numpy_generator

Ints = NDArray[np.int64]


def personal_tests(
    how: Literal["matching", "classes"], partition: Partition, train_labels: Ints, test_labels: Ints, seed: int
) -> Partition:
    """The test examples of each client, as a `Partition` of their numbers (under `classes` they overlap)."""
    divide = _matching if how == "matching" else _classes
    owned = divide(partition, train_labels, test_labels, seed)
    offsets = np.zeros(partition.num_clients + 1, dtype=np.int64)
    np.cumsum([len(examples) for examples in owned], out=offsets[1:])
    return Partition(np.concatenate([np.empty(0, np.int64), *owned]), offsets)


def _matching(partition: Partition, train_labels: Ints, test_labels: Ints, seed: int) -> list[Ints]:
    """Class by class, cut where the clients' training examples of that class are: floor(n_test * cumulated share)."""
    owner = np.repeat(np.arange(partition.num_clients), partition.sizes)
    labels = train_labels[partition.indices]
    owned: list[list[Ints]] = [[] for _ in range(partition.num_clients)]
    generator = numpy_generator("personal tests", seed)
    for label in np.unique(test_labels):
        examples = generator.permutation(np.flatnonzero(test_labels == label))
        counts = np.bincount(owner[labels == label], minlength=partition.num_clients)
        if counts.sum() == 0:
            continue
        ends = np.cumsum(counts) * len(examples) // counts.sum()
        starts = np.concatenate([[0], ends[:-1]])
        for client in np.flatnonzero(ends > starts):
            owned[client].append(examples[starts[client] : ends[client]])
    return [np.sort(np.concatenate([np.empty(0, np.int64), *parts])) for parts in owned]


def _classes(partition: Partition, train_labels: Ints, test_labels: Ints, seed: int) -> list[Ints]:
    num_classes = int(max(train_labels.max(), test_labels.max())) + 1
    present = (present_labels(train_labels, partition.client(c), num_classes) for c in range(partition.num_clients))
    return [np.flatnonzero(classes[test_labels]) for classes in present]
