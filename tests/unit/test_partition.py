"""Partitions: who holds what. Invariants, hand-checked small cases, seeds, scale, files, refusals."""

import itertools
from types import SimpleNamespace

import numpy as np
import pytest
from data_fixtures import refusal

from fedmpi.data.dataset import DataInfo
from fedmpi.data.partition import Partition, PartitionOptions, make_partition, saved
from fedmpi.data.partitions import dirichlet, plain
from fedmpi.data.partitions.dirichlet import ClassDirichlet, Dirichlet, DirichletEqual, DirichletFeddf, QuantitySkew
from fedmpi.data.partitions.plain import Iid, Lottery, Natural, Shards

COMPLETE = [Iid(), Iid(shuffle=True), Dirichlet(), ClassDirichlet(), DirichletEqual(), QuantitySkew()]
ALL = [
    *COMPLETE,
    DirichletFeddf(),
    DirichletEqual(alpha=0.05),
    Shards(),
    Shards(shards_per_client=5),
    Lottery(samples=7),
    Lottery(samples=4, balance=0.5),
    Natural(),
    Natural(groups_per_client=3, min_examples=4),
]
LABELS = np.random.default_rng(0).integers(0, 10, 1437)
GROUPS = np.random.default_rng(1).integers(0, 150, 1437)


def made(options: PartitionOptions, num_clients: int, seed: int = 3) -> Partition:
    return make_partition(options, LABELS, num_clients, seed, GROUPS)


def held(partition: Partition, numbers: np.ndarray | None = None) -> list[list[int]]:
    """Returns the examples of each client, or their `numbers`."""
    own = [partition.client(client) for client in range(partition.num_clients)]
    return [(examples if numbers is None else numbers[examples]).tolist() for examples in own]


@pytest.mark.parametrize("options", ALL, ids=PartitionOptions.model_dump_json)
@pytest.mark.parametrize("num_clients", [7, 33])
def test_no_example_has_two_owners_and_the_seed_decides(options: PartitionOptions, num_clients: int) -> None:
    partition, again, other = (made(options, num_clients, seed) for seed in (3, 3, 4))
    assert np.array_equal(partition.indices, again.indices) and np.array_equal(partition.offsets, again.offsets)
    assert np.array_equal(partition.indices, other.indices) == (options == Iid())
    assert partition.num_clients == len(partition.sizes) == num_clients
    assert partition.sizes.sum() == len(partition.indices) == len(np.unique(partition.indices))
    assert partition.indices.min() >= 0 and partition.indices.max() < 1437 and partition.sizes.min() >= 1
    assert np.array_equal(np.concatenate([*map(partition.client, range(num_clients))]), partition.indices)
    assert len(partition.indices) == 1437 or options not in COMPLETE


def test_iid_cuts_file_order() -> None:
    """10 examples, 4 clients: bounds floor(i * 10 / 4) = 0, 2, 5, 7, 10."""
    partition = make_partition(Iid(), np.zeros(10, np.int64), 4, seed=9)
    assert held(partition) == [[0, 1], [2, 3, 4], [5, 6], [7, 8, 9]]


@pytest.mark.parametrize(
    ("num_clients", "groups"), [(20, [10, 10]), (25, [10, 10, 5]), (10, [10]), (4, [4]), (11, [10, 1])]
)
def test_feddf_groups_before_the_recut(num_clients: int, groups: list[int]) -> None:
    """Groups of 10 share 10 N / n examples, the last group what remains; in a group the smallest list has at least
    floor(half of the group's mean) examples, and together the lists hold every example once."""
    labels = np.random.default_rng(0).integers(0, 10, 5000)
    lists = DirichletFeddf().lists(labels, num_clients, seed=2)
    assert len(lists) == num_clients and sorted(np.concatenate(lists)) == list(range(5000))
    first = 0
    for group, members in enumerate(groups):
        sizes = [len(one) for one in lists[first : first + members]]
        is_last = group == len(groups) - 1
        expected = 5000 - (len(groups) - 1) * (50_000 // num_clients) if is_last else 50_000 // num_clients
        assert sum(sizes) == expected and min(sizes) >= int(0.5 * expected / members)
        first += members


class ScriptedGenerator:
    """Gives the wanted q, or uniform numbers, in turn, and no shuffle."""

    def __init__(self, *draws: list[float]) -> None:
        self.draws = list(draws)

    def permutation(self, count: int) -> np.ndarray:
        return np.arange(count)

    def dirichlet(self, alpha: np.ndarray, size: int | None = None) -> np.ndarray:
        return np.array(self.draws.pop(0))

    def random(self, size: int) -> np.ndarray:
        assert len(self.draws[0]) == size
        return np.array(self.draws.pop(0))


def test_feddf_by_hand(monkeypatch) -> None:
    """8 examples, classes 0 (numbers 0-3), 1 (4-5), 2 (6-7); 2 clients, so a client is full with 4, and needs 2.

    Draw one. Class 0, q = (.25, .75): cut at floor(.25 * 4) = 1 -> {0} | {1, 2, 3}. Class 1, q = (0, 1): {} | {4, 5}:
    sizes 1 and 5. Class 2, q = (0, 1): client 1 is full, nobody else has a share: the draw is void.
    Draw two. Class 0, q = (0, 1): {} | {0..3}. Client 1 is full, so class 1, q = (.1, .9) -> (1, 0): {4, 5} | {}, and
    class 2, q = (.5, .5) -> (1, 0): {6, 7} | {}. Lists {4, 5, 6, 7} and {0, 1, 2, 3}: both have 2 or more.
    """
    script = ScriptedGenerator([0.25, 0.75], [0, 1], [0, 1], [0, 1], [0.1, 0.9], [0.5, 0.5])
    monkeypatch.setattr(dirichlet, "numpy_generator", lambda *_: script)
    lists = DirichletFeddf().lists(np.array([0, 0, 0, 0, 1, 1, 2, 2]), 2, seed=0)
    assert [one.tolist() for one in lists] == [[4, 5, 6, 7], [0, 1, 2, 3]] and not script.draws


def test_hsu_serving_by_hand() -> None:
    """Three clients want 2 each of class 0, which has 3 left; classes 1 and 2 have 1 and 2.

    First choices in order of the clients: 2, 1 (one refused) and 0 (two refused). Class 0 is gone. Client 1's q had
    0.2 for class 1: renormalised, 1; it gets that one. Client 2's q has class 2 only: it gets both.
    """
    q = np.array([[1.0, 0.0, 0.0], [0.8, 0.2, 0.0], [0.7, 0.0, 0.3]])

    choices = [[[2, 0, 0], [2, 0, 0], [2, 0, 0]], [[0, 0, 0], [0, 1, 0], [0, 0, 2]]]

    class Generator:
        def dirichlet(self, concentration: np.ndarray, size: int) -> np.ndarray:
            return q

        def multinomial(self, need: np.ndarray, pvals: np.ndarray) -> np.ndarray:
            if len(choices) == 1:
                assert need.tolist() == [0, 1, 2]
                assert pvals[1:].tolist() == [[0, 1, 0], [0, 0, 1]]
                # Client 0's whole q has run out: it would draw by what is left, 1 of class 1 and 2 of class 2.
                assert np.allclose(pvals[0], [0, 1 / 3, 2 / 3])
            return np.array(choices.pop(0))

    counts = dirichlet._serve(np.array([2, 2, 2]), np.array([3, 1, 2]), np.ones(3), Generator())
    assert counts.tolist() == [[2, 0, 0], [1, 1, 0], [0, 0, 2]]


def test_class_dirichlet_redraws_until_the_minimum(monkeypatch) -> None:
    """Two clients, 4 of class 0, 2 of class 1. Stream 0: q = (1, 0) for both classes leaves client 1 with nothing.
    Stream 1: q = (.5, .5) cuts class 0 at 2; q = (.4, .6) cuts class 1 at floor(.8) = 0: sizes 2 and 4."""
    streams = {0: ScriptedGenerator([1, 0], [1, 0]), 1: ScriptedGenerator([0.5, 0.5], [0.4, 0.6])}
    monkeypatch.setattr(dirichlet, "numpy_generator", lambda purpose, seed, attempt: streams[attempt])
    partition = make_partition(ClassDirichlet(), np.array([0, 0, 1, 0, 1, 0]), 2, seed=0)
    assert held(partition) == [[0, 1], [3, 5, 2, 4]]


# Mixtures, examples of each client, left of each class, uniform numbers, and the classes drawn.
DRAWS: dict[str, tuple[list[list[float]], list[int], list[int], list[list[float]], list[int]]] = {
    # 0.1 takes the last of class 0: what was drawn after it does not count. Now q = (0, .50001, .00001) / .50002, so
    # the bound between classes 1 and 2 is .99998.
    "runs out": ([[0.5, 0.5, 0]], [4], [1, 3, 2], [[0.1, 0.2, 0.9, 0.6], [0.99997, 0.99999, 0.1]], [0, 1, 2, 1]),
    # The rule is applied to what it gave before: (.6, .3, .1, 0) is (0, .30001, .10001, .00001) / .40003 without class
    # 0, and without class 1 too (0, 0, .250016, .000035) / .250051, so that .99988 is class 3 (the rule applied once to
    # the client's own mixture would give class 2 up to .9999).
    "two run out": ([[0.6, 0.3, 0.1, 0]], [3], [1, 1, 3, 3], [[0.1, 0.2, 0.3], [0.1, 0.2], [0.99988]], [0, 1, 3]),
    # The first client takes 0 0 and the second its first, 0, the last one. What was drawn after that (0, 0, 1) does not
    # count: three more are drawn, for the second and the third by (0, .50001, .00001) / .50002.
    "clients after it": (
        [[1, 0, 0], [0.5, 0.5, 0], [0.5, 0.5, 0]],
        [2, 2, 2],
        [3, 3, 2],
        [[0.9, 0.1, 0.4, 0.2, 0.3, 0.8], [0.2, 0.99999, 0.5]],
        [0, 0, 0, 1, 2, 1],
    ),
}


@pytest.mark.parametrize("case", DRAWS)
def test_a_class_that_runs_out_by_hand(case: str) -> None:
    mixtures, sizes, left, draws, expected = DRAWS[case]
    generator = ScriptedGenerator(*draws)
    drawn = dirichlet._draw(np.array(mixtures, float), np.array(sizes), np.array(left), generator)
    assert drawn.tolist() == expected and not generator.draws


def test_shards_are_runs_in_file_order() -> None:
    """Classes of 5 and 4 in file order, two clients with 2 shards each: of class 0 examples 0 1 2 and 3 4, of class 1
    5 6 and 7 8. Whoever has both classes has one shard of each; nobody has two of one class."""
    labels = np.repeat([0, 1], [5, 4])
    seen = set()
    for seed in range(40):
        partition = make_partition(Shards(), labels, 2, seed)
        for own in held(partition):
            firsts = [numbers for numbers in ([0, 1, 2], [3, 4]) if set(numbers) <= set(own)]
            seconds = [numbers for numbers in ([5, 6], [7, 8]) if set(numbers) <= set(own)]
            assert len(firsts) <= 1 and len(seconds) <= 1 and list(itertools.chain(*firsts, *seconds)) == own
            seen.add(tuple(own))
    assert len(seen) == 8  # a shard of each class (4 ways), or one shard alone (4 ways)


@pytest.mark.parametrize(("balance", "second"), [(1.0, 20), (0.75, 15), (0.29, 5)])
def test_lottery_has_two_distinct_classes(balance: float, second: int) -> None:
    """20 examples of the first class and floor(20 * balance) of the second, whole shards of one class each."""
    for own in held(made(Lottery(balance=balance), 30), LABELS):
        assert len(own) == 20 + second and len(set(own[:20])) == 1 and len(set(own[20:])) == 1 and own[0] != own[-1]


@pytest.mark.parametrize("used", [[10, 10, 10], [1, 2, 9, 8, 10], [6, 6, 6, 6, 6], [0, 10, 10, 10]])
def test_distinct_classes_never_get_stuck(used: list[int]) -> None:
    """10 clients, 3 classes each, every class as often as said, also where it is all or nothing."""
    classes = plain._distinct_classes(np.array(used), 10, 3, np.random.default_rng(0))
    assert np.bincount(classes.ravel(), minlength=len(used)).tolist() == used
    many = plain._distinct_classes(500 * np.array(used), 5000, 3, np.random.default_rng(0))  # in blocks
    assert np.bincount(many.ravel(), minlength=len(used)).tolist() == [500 * times for times in used]
    assert all(len(set(row)) == 3 for row in [*classes.tolist(), *many.tolist()])


def test_natural_by_hand() -> None:
    """Writers 0, 1, 2 with 3, 1, 4 examples. Two clients: two whole writers, in file order. With min_examples 2 writer
    1 is out."""
    groups = np.array([2, 0, 2, 1, 0, 2, 0, 2])
    of_writer = {0: [1, 4, 6], 1: [3], 2: [0, 2, 5, 7]}
    seen = set()
    for seed in range(30):
        partition = make_partition(Natural(), np.zeros(8, np.int64), 2, seed, groups)
        own = held(partition)
        assert all(one in of_writer.values() for one in own) and own[0] != own[1]
        seen.add(tuple(int(groups[one[0]]) for one in own))
        many = make_partition(Natural(min_examples=2), np.zeros(8, np.int64), 2, seed, groups)
        assert {int(groups[many.client(i)[0]]) for i in range(2)} == {0, 2}
    assert len(seen) == 6


@pytest.mark.parametrize(
    ("options", "num_clients", "words"),
    [
        (Natural(), 151, "at most 150 clients"),
        (Natural(min_examples=1000), 1, "1 clients need 1 groups with 1000 or more examples, but there are 0"),
        (Lottery(samples=36), 19, "19 clients need 38 shards of 36 examples"),
        (Shards(shards_per_client=1), 1437, "cannot be cut"),
        (Shards(), 3, "into 0 to 1 shards"),
    ],
)
def test_refused_in_one_line(options: PartitionOptions, num_clients: int, words: str) -> None:
    assert words in refusal(lambda: made(options, num_clients))


@pytest.mark.parametrize(
    ("options", "most"), [(ClassDirichlet(), 718), (Iid(), 1437), (Natural(groups_per_client=10), 3)]
)
def test_problems_are_found_before_data_are_read(options: PartitionOptions, most: int) -> None:
    """1,437 examples give 718 clients two each, and 30 groups three clients ten each."""
    info = DataInfo("vector", (768,), 6, 1437, 700, num_groups=30)
    config = SimpleNamespace(clients=SimpleNamespace(count=most), data=SimpleNamespace(name="har", used=lambda: info))
    assert list(options.problems(config)) == []
    config.clients.count += 1
    ((key, text),) = options.problems(config)
    assert key == "clients.count" and f"at most {most}" in text and f"{most + 1} clients" in text


def test_saved_and_loaded(tmp_path) -> None:
    path, partition = tmp_path / "partition.h5", made(ClassDirichlet(), 20)
    path.write_bytes(partition.packed("ff"))
    loaded, digest = saved(path)
    assert digest == "ff"
    assert np.array_equal(loaded.indices, partition.indices) and np.array_equal(loaded.offsets, partition.offsets)
    assert loaded.indices.dtype == loaded.offsets.dtype == np.int64


def test_a_mixture_is_drawn_around_the_share_of_each_class() -> None:
    """Of 900 and 100 examples, at a concentration that leaves hardly any variance: ten clients with some 10 each."""
    labels = np.repeat([0, 1], [900, 100])
    partition = make_partition(Dirichlet(alpha=1e6), labels, 10, seed=0)
    counts = [np.count_nonzero(labels[partition.client(client)]) for client in range(5)]
    assert max(counts) <= 25  # 50, were the classes alike
