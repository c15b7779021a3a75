"""Which test examples are a client's own, by hand and as invariants."""

import numpy as np
import pytest

from fedmpi.data.dataset import DataInfo, Dataset
from fedmpi.data.partition import Partition
from fedmpi.data.partitions.plain import Iid, Natural
from fedmpi.data.personal import choose_test, personal_tests

# Client 0 trains on three 0s and one 1, client 1 on one 0 and two 2s, client 2 on three 1s.
TRAIN = np.array([0, 0, 0, 0, 1, 1, 1, 1, 2, 2])
OWNED = Partition(np.array([0, 1, 2, 4, 3, 8, 9, 5, 6, 7]), np.array([0, 4, 7, 10]))
TEST = np.array([0] * 8 + [1] * 4 + [2] * 5)


def made_of(train: np.ndarray, test: np.ndarray, groups: object = None, test_groups: object = None) -> Dataset:
    """Only whose and what class the examples are."""
    nothing = np.empty(0)
    asked = [None if numbers is None else np.asarray(numbers) for numbers in (groups, test_groups)]
    return Dataset(nothing, train, nothing, test, *asked)


DATA = made_of(TRAIN, TEST)


def test_by_hand() -> None:
    """Matching class 0: shares 3/4, 1/4 of 8; class 1: 1/4, 3/4 of 4; class 2 all to client 1."""
    for how, expected in (
        ("matching", [[6, 1, 0], [2, 0, 5], [0, 3, 0]]),
        ("classes", [[8, 4, 0], [8, 0, 5], [0, 4, 0]]),
    ):
        tests = personal_tests(how, OWNED, DATA, 0)
        assert [np.bincount(TEST[tests.client(client)], minlength=3).tolist() for client in range(3)] == expected


@pytest.mark.parametrize("num_clients", [7, 300])
def test_matching_divides_the_test_set(num_clients: int) -> None:
    """Every test example of a class that somebody has is used once, also where there are more clients than examples;
    a client is within one example a class of its exact share."""
    generator = np.random.default_rng(num_clients)
    train, test = generator.integers(5, size=900), generator.integers(5, size=120)
    sizes = np.full(num_clients, 900 // num_clients)
    partition = Partition(generator.permutation(900)[: sizes.sum()], np.concatenate([[0], np.cumsum(sizes)]))
    tests = personal_tests("matching", partition, made_of(train, test), 3)
    assert sorted(tests.indices.tolist()) == list(range(120))
    for client in range(num_clients):
        for label in range(5):
            have, total = (int((train[part] == label).sum()) for part in (partition.client(client), partition.indices))
            share = have / total * (test == label).sum()
            assert abs((test[tests.client(client)] == label).sum() - share) < 1


def test_groups_by_hand() -> None:
    """Writers 0, 1, 2 wrote the training examples in thirds; client 0 has writers 0 and 1, client 1 all, client 2 the
    last two; writer 3 has test examples only and is nobody's."""
    writers = [0, 0, 0, 1, 1, 1, 2, 2, 2, 0]
    data = made_of(TRAIN, TEST[:6], writers, [2, 0, 3, 1, 0, 2])
    tests = personal_tests("groups", OWNED, data, 0)
    assert [tests.client(client).tolist() for client in range(3)] == [[1, 3, 4], [0, 1, 3, 4, 5], [0, 3, 5]]


@pytest.mark.parametrize("how", ["matching", "classes", "groups"])
def test_a_choice_of_clients(how: str) -> None:
    """Exactly as many as asked for, each with what it has where all are tested; always the same ones for a seed."""
    generator = np.random.default_rng(1)
    data = made_of(*(generator.integers(9, size=n) for n in (900, 120, 900, 120)))
    partition = Partition(generator.permutation(900), np.arange(0, 901, 9))
    everybody = personal_tests(how, partition, data, 5)
    chosen, again = (personal_tests(how, partition, data, 5, 17) for _ in range(2))
    tested = np.flatnonzero(chosen.sizes)
    assert len(tested) == 17 and np.array_equal(chosen.indices, again.indices)
    assert all(np.array_equal(chosen.client(client), everybody.client(client)) for client in tested)
    assert chosen.sizes.sum() == len(chosen.indices) and chosen.num_clients == 100
    assert not np.array_equal(tested, np.flatnonzero(personal_tests(how, partition, data, 6, 17).sizes))
    many = personal_tests(how, partition, data, 5, 100)
    assert np.array_equal(many.offsets, everybody.offsets) and np.array_equal(many.indices, everybody.indices)


@pytest.mark.parametrize(
    ("partition", "shares", "expected"),
    [(Natural(), True, "groups"), (Natural(), False, "matching"), (Iid(), True, "matching")],
)
def test_auto(partition: object, shares: bool, expected: str) -> None:
    info = DataInfo("image", (1, 8, 8), 10, 100, 10, num_groups=5, shares_groups=shares)
    assert choose_test("auto", partition, info) == expected
    assert choose_test("classes", partition, info) == "classes"
