"""The examples that a client's net is tested on: its share of the test data, or a part of its own training data.

`matching` divides the test set: of each class a client gets the share of test examples that it has of the training
examples, so every test example is used once (a client with few examples may get none). `classes` gives every client all
test examples of the classes that it trains on, as LotteryFL and LG-FedAvg do; `groups` all of the writers (subjects,
roles) whose examples it trains on, as LEAF does.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Literal

import numpy as np
from numpy.typing import NDArray

from fedmpi.data.partition import Partition, PartitionOptions
from fedmpi.data.subset import LEAST, Ints, firsts, runs, stratified_holdout
from fedmpi.errors import ConfigError
from fedmpi.seeds import numpy_generator

if TYPE_CHECKING:
    from fedmpi.data.dataset import DataInfo, Dataset

How = Literal["matching", "classes", "groups"]


def choose_test(asked: Literal["auto"] | How, options: PartitionOptions, info: DataInfo) -> How:
    """Returns `groups` for `auto` where clients are groups and the test examples come from the same ones."""
    if asked != "auto":
        return asked
    return "groups" if options.by_groups and info.shares_groups else "matching"


def personal_tests(how: How, partition: Partition, dataset: Dataset, seed: int, num_clients: int = 0) -> Partition:
    """Returns the numbers of each client's test examples as a `Partition`; they overlap unless it is `matching`.

    Only `num_clients` of the clients that have test examples, a seeded choice, get theirs; 0 is all of them.
    """
    if how == "matching":
        tests = _matching(partition, dataset.classes("train"), dataset.classes("test"), seed)
        return some(tests, num_clients, seed)
    train, test = (dataset.groups, dataset.test_groups) if how == "groups" else (dataset.train_y, dataset.test_y)
    assert train is not None and test is not None, "the config was checked"
    has_tests = np.zeros(partition.num_clients, dtype=bool)
    has_tests[partition.owners[np.isin(train[partition.indices], test)]] = True
    return _alike(partition, train, test, _chosen(has_tests, num_clients, seed))


def some(tests: Partition, num_clients: int, seed: int) -> Partition:
    """Keeps the tests of as many of the clients that have any, a seeded choice; 0 keeps all."""
    clients = _chosen(tests.sizes > 0, num_clients, seed)
    sizes = np.zeros(tests.num_clients, dtype=np.int64)
    sizes[clients] = tests.sizes[clients]
    return Partition.of(tests.indices[runs(tests.offsets[clients], sizes[clients])], sizes)


def _chosen(has_tests: NDArray[np.bool_], num_clients: int, seed: int) -> Ints:
    clients = np.flatnonzero(has_tests)
    if not 0 < num_clients < len(clients):
        return clients
    return np.sort(numpy_generator("tested clients", seed).permutation(clients)[:num_clients])


def _matching(partition: Partition, train_labels: Ints, test_labels: Ints, seed: int) -> Partition:
    """Cuts each class where the clients' training examples of that class are: floor(n_test * cumulated share)."""
    owners = partition.owners
    labels = train_labels[partition.indices]
    generator = numpy_generator("personal tests", seed)
    examples = []
    whose = []
    for label in np.unique(test_labels):
        own = generator.permutation(np.flatnonzero(test_labels == label))
        counts = np.bincount(owners[labels == label], minlength=partition.num_clients)
        ends = np.cumsum(counts) * len(own) // max(counts.sum(), 1)
        examples.append(own[: ends[-1]])
        whose.append(np.repeat(np.arange(partition.num_clients), np.diff(ends, prepend=0)))
    numbers = np.concatenate(examples)
    clients = np.concatenate(whose)
    sizes = np.bincount(clients, minlength=partition.num_clients)
    return Partition.of(numbers[np.lexsort((numbers, clients))], sizes)


def _alike(partition: Partition, train: Ints, test: Ints, clients: Ints) -> Partition:
    """Returns all test examples with a number (class, group) that occurs among a client's training examples."""
    by_number = np.argsort(test, kind="stable")
    counts = np.bincount(test)
    owned = [np.empty(0, np.int64)]
    sizes = np.zeros(partition.num_clients, dtype=np.int64)
    for client in clients.tolist():
        numbers = np.unique(train[partition.client(client)])
        numbers = numbers[numbers < len(counts)]
        owned.append(np.sort(by_number[runs(firsts(counts)[numbers], counts[numbers])]))
        sizes[client] = len(owned[-1])
    return Partition.of(np.concatenate(owned), sizes)


def hold_out(dataset: Dataset, partition: Partition, share: float, seed: int) -> tuple[Dataset, Partition, Partition]:
    """Takes `share` of every class of each client, as near as whole numbers go (`stratified_holdout`).

    Returns `dataset` with these validation examples as its test examples (its own are left out, so a choice by these
    scores cannot have seen them), the examples left to train on, and the clients' new test examples. A client with
    fewer than four examples keeps them all; raises ConfigError if all do. Takes some 0.1 ms a client.
    """
    training = []
    held_out = []
    classes = dataset.classes("train")
    for client in range(partition.num_clients):
        own = partition.client(client)
        trains, validates = stratified_holdout(own, classes[own], share, numpy_generator("validation", seed, client))
        training.append(trains)
        held_out.append(validates)
    numbers = np.concatenate(held_out)
    if not len(numbers):
        few = f"validation, but no client has {2 * LEAST} examples to give some of; take fewer clients"
        raise ConfigError("evaluation.on", few)
    test_groups = None if dataset.groups is None else dataset.groups[numbers]
    return (
        replace(dataset, test_x=dataset.train_x[numbers], test_y=dataset.train_y[numbers], test_groups=test_groups),
        Partition.of(np.concatenate(training), np.array([len(own) for own in training])),
        Partition.of(np.arange(len(numbers)), np.array([len(own) for own in held_out])),
    )
