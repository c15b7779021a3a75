"""Which test examples are a client's own, by hand and as invariants."""

from __future__ import annotations

import numpy as np
import pytest

from fedmpi.data import Partition, personal_tests

# Client 0 trains on three 0s and one 1, client 1 on one 0 and two 2s, client 2 on three 1s.
TRAIN = np.array([0, 0, 0, 0, 1, 1, 1, 1, 2, 2])
OWNED = Partition(np.array([0, 1, 2, 4, 3, 8, 9, 5, 6, 7]), np.array([0, 4, 7, 10]))
TEST = np.array([0] * 8 + [1] * 4 + [2] * 5)


def classes_of(tests: Partition, client: int) -> list[int]:
    return np.bincount(TEST[tests.client(client)], minlength=3).tolist()


def test_matching_by_hand() -> None:
    """Class 0: shares 3/4, 1/4 of 8; class 1: 1/4, 3/4 of 4; class 2 all to client 1."""
    tests = personal_tests("matching", OWNED, TRAIN, TEST, 0)
    assert [classes_of(tests, client) for client in range(3)] == [[6, 1, 0], [2, 0, 5], [0, 3, 0]]


def test_classes_by_hand() -> None:
    """All test examples of the classes that a client trains on."""
    tests = personal_tests("classes", OWNED, TRAIN, TEST, 0)
    assert [classes_of(tests, client) for client in range(3)] == [[8, 4, 0], [8, 0, 5], [0, 4, 0]]


@pytest.mark.parametrize("num_clients", [1, 7, 300])
def test_matching_divides_the_test_set(num_clients: int) -> None:
    """Every test example of a class that somebody has is used once, also where there are more clients than examples;
    a client is within one example a class of its exact share."""
    generator = np.random.default_rng(num_clients)
    train, test = generator.integers(5, size=900), generator.integers(5, size=120)
    sizes = np.full(num_clients, 900 // num_clients)
    partition = Partition(generator.permutation(900)[: sizes.sum()], np.concatenate([[0], np.cumsum(sizes)]))
    tests = personal_tests("matching", partition, train, test, 3)
    assert sorted(tests.indices.tolist()) == list(range(120))
    for client in range(num_clients):
        for label in range(5):
            have, total = (int((train[part] == label).sum()) for part in (partition.client(client), partition.indices))
            share = have / total * (test == label).sum()
            assert abs((test[tests.client(client)] == label).sum() - share) < 1


def test_a_class_that_nobody_trains_is_not_tested() -> None:
    tests = personal_tests("matching", OWNED, TRAIN, np.array([0, 3, 3]), 0)
    assert tests.indices.tolist() == [0]


def test_the_seed_decides() -> None:
    one, same, other = (personal_tests("matching", OWNED, TRAIN, TEST, seed) for seed in (0, 0, 2))
    assert np.array_equal(one.indices, same.indices) and not np.array_equal(one.indices, other.indices)
