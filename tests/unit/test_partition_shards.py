"""Partitions of equal or skewed sizes, by shards and by groups: invariants, hand-checked cases, refusals."""

import itertools
import math
from types import SimpleNamespace

import numpy as np
import pytest
from data_fixtures import SHARED_DATA
from golden_file import Told

from fedmpi import registry
from fedmpi.data.dataset import DataInfo, load_data
from fedmpi.data.partition import Partition, PartitionOptions, make_partition
from fedmpi.data.partitions import dirichlet_equal, lottery
from fedmpi.data.partitions.dirichlet_equal import DirichletEqual
from fedmpi.data.partitions.lottery import Lottery
from fedmpi.data.partitions.natural import Natural
from fedmpi.data.partitions.quantity_skew import QuantitySkew
from fedmpi.data.partitions.shards import Shards
from fedmpi.data.personal import personal_tests
from fedmpi.errors import ConfigError

LABELS = np.random.default_rng(0).integers(0, 10, 1437)
GROUPS = np.random.default_rng(1).integers(0, 150, 1437)


def made(options: PartitionOptions, num_clients: int, seed: int = 3) -> Partition:
    return make_partition(options, LABELS, num_clients, seed, GROUPS)


def held(partition: Partition, numbers: np.ndarray = LABELS) -> list[list[int]]:
    return [numbers[partition.client(client)].tolist() for client in range(partition.num_clients)]


# ---- dirichlet_equal


def test_round_robin_by_hand() -> None:
    """Sorted by class: examples 1 4 5 (class 0), 0 2 3 6 (class 1). Three clients in turn: 1 0 6, 4 2, 5 3. With one
    example each, three of the seven: those at 0, 7/3 and 14/3 of the sorted ones, rounded down."""
    labels = np.array([1, 0, 1, 1, 0, 0, 1])
    partition = make_partition(DirichletEqual(alpha=math.inf), labels, 3, seed=0)
    assert [partition.client(i).tolist() for i in range(3)] == [[1, 0, 6], [4, 2], [5, 3]]
    few = make_partition(DirichletEqual(alpha=math.inf, examples=1), labels, 3, seed=0)
    assert few.indices.tolist() == [1, 5, 2]


class Scripted:
    """A generator whose uniform numbers are given."""

    def __init__(self, *draws: list[float]) -> None:
        self.draws = list(draws)

    def random(self, size: int) -> np.ndarray:
        assert len(self.draws[0]) == size
        return np.array(self.draws.pop(0))


# Mixtures, examples of each client, left of each class, uniform numbers, and the classes drawn.
DRAWS: dict[str, tuple[list[list[float]], list[int], list[int], list[list[float]], list[int]]] = {
    # 0.1 takes the last of class 0: what was drawn after it does not count. Now q = (0, .50001, .00001) / .50002, so
    # the bound between classes 1 and 2 is .99998.
    "runs out": ([[0.5, 0.5, 0]], [4], [1, 3, 2], [[0.1, 0.2, 0.9, 0.6], [0.99997, 0.99999, 0.1]], [0, 1, 2, 1]),
    # Class 0 is not asked for more than it has, yet the second draw knows that it is gone.
    "just enough": ([[0.5, 0.5, 0]], [2], [1, 3, 2], [[0.1, 0.6], [0.99999]], [0, 2]),
    # The rule is applied to what it gave before: (.6, .3, .1, 0) is (0, .30001, .10001, .00001) / .40003 without class
    # 0, and without class 1 too (0, 0, .250016, .000035) / .250051, so that .99988 is class 3 (the rule applied once to
    # the client's own mixture would give class 2 up to .9999).
    "two run out": ([[0.6, 0.3, 0.1, 0]], [3], [1, 1, 3, 3], [[0.1, 0.2, 0.3], [0.1, 0.2], [0.99988]], [0, 1, 3]),
    # All of its mixture is class 0, which an earlier client emptied: classes 1 and 2 get 1e-5 each, so one half.
    "gone before": ([[1, 0, 0]], [2], [0, 3, 3], [[0.49, 0.51]], [1, 2]),
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
    generator = Scripted(*draws)
    drawn = dirichlet_equal._draw(np.array(mixtures, float), np.array(sizes), np.array(left), generator)
    assert drawn.tolist() == expected and not generator.draws


def test_blocks_of_clients_change_no_invariant(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dirichlet_equal, "BLOCK_DRAWS", 200)
    partition = made(DirichletEqual(alpha=0.1), 20)
    assert sorted(partition.indices) == list(range(1437)) and set(partition.sizes) == {71, 72}


def test_equal_skew_follows_alpha() -> None:
    """Concentration is per class: 0.01 gives mostly one class each while classes last, 1e6 gives all ten."""
    labels = np.repeat(np.arange(10), 1000)
    skewed, even = (make_partition(DirichletEqual(alpha=alpha, examples=50), labels, 60, 0) for alpha in (0.01, 1e6))
    assert np.median([len(set(own)) for own in held(skewed, labels)]) == 1
    assert min(len(set(own)) for own in held(even, labels)) >= 9


# ---- quantity_skew


def test_quantity_skew() -> None:
    """Every example has an owner, nobody is below the minimum, sizes are far apart, classes are not."""
    labels = np.random.default_rng(0).integers(0, 4, 20_000)
    partition = make_partition(QuantitySkew(alpha=0.3, min_size=10), labels, 50, 0)
    assert sorted(partition.indices) == list(range(20_000)) and partition.sizes.min() >= 10
    assert partition.sizes.max() > 5 * np.median(partition.sizes)
    largest = labels[partition.client(int(partition.sizes.argmax()))]
    assert (np.abs(np.bincount(largest) / len(largest) - 0.25) < 0.05).all()


# ---- shards


def test_a_client_has_few_classes_of_shards() -> None:
    """20 clients, 2 each: 40 shards, 4 of each class, so a shard is a quarter of its class (to one example)."""
    quarter = np.bincount(LABELS) / 4
    partition = made(Shards(), 20)
    for own in held(partition):
        counts = np.bincount(own, minlength=10)
        present = np.flatnonzero(counts)
        assert len(present) in (1, 2) and (np.abs(counts - quarter)[present] < 1).all()


def test_shards_are_runs_in_file_order() -> None:
    """Classes of 5 and 4 in file order, two clients with 2 shards each: of class 0 examples 0 1 2 and 3 4, of class 1
    5 6 and 7 8. Whoever has both classes has one shard of each; nobody has two of one class."""
    labels = np.repeat([0, 1], [5, 4])
    seen = set()
    for seed in range(40):
        partition = make_partition(Shards(), labels, 2, seed)
        for own in (partition.client(i).tolist() for i in range(2)):
            firsts = [numbers for numbers in ([0, 1, 2], [3, 4]) if set(numbers) <= set(own)]
            seconds = [numbers for numbers in ([5, 6], [7, 8]) if set(numbers) <= set(own)]
            assert len(firsts) <= 1 and len(seconds) <= 1 and list(itertools.chain(*firsts, *seconds)) == own
            seen.add(tuple(own))
    assert len(seen) == 8  # a shard of each class (4 ways), or one shard alone (4 ways)


def test_shards_forecast_what_is_held() -> None:
    """The mean over 200 seeds is within 1 % of what the plan says before anything is drawn."""
    info = DataInfo("image", (1, 8, 8), 10, 1437, 1)
    sizes = [made(Shards(shards_per_client=3), 20, seed).sizes.mean() for seed in range(200)]
    assert Shards(shards_per_client=3).mean_examples(info, 20) == pytest.approx(np.mean(sizes), rel=0.01)


# ---- lottery


@pytest.mark.parametrize(("balance", "second"), [(1.0, 20), (0.75, 15), (0.5, 10), (0.25, 5), (0.29, 5)])
def test_lottery_has_two_distinct_classes(balance: float, second: int) -> None:
    """20 examples of the first class and floor(20 * balance) of the second, whole shards of one class each."""
    for own in held(made(Lottery(balance=balance), 30)):
        assert len(own) == 20 + second and len(set(own[:20])) == 1 and len(set(own[20:])) == 1 and own[0] != own[-1]


def test_one_large_class_is_not_everything() -> None:
    """A class of 100 shards beside two of 2, three clients: nobody gets the large one twice, so it is used thrice."""
    labels = np.repeat([0, 1, 2], [100, 2, 2])
    for seed in range(10):
        own = held(make_partition(Lottery(samples=1), labels, 3, seed), labels)
        assert all(len(set(one)) == 2 for one in own)


def test_lottery_balance_is_not_rounded_down() -> None:
    assert made(Lottery(samples=100, balance=0.29), 3).sizes.tolist() == [129] * 3


def test_lottery_shards_begin_at_multiples() -> None:
    """Classes of 7 and 5 in file order, shards of 2: three begin at 0, 2, 4, two at 7 and 9; 6 and 11 are nobody's."""
    labels = np.repeat([0, 1], [7, 5])
    starts = set()
    for seed in range(30):
        partition = make_partition(Lottery(samples=2), labels, 2, seed)
        for own in (partition.client(i).tolist() for i in range(2)):
            assert own[1] == own[0] + 1 and own[3] == own[2] + 1 and (own[0] < 7) != (own[2] < 7)
            starts |= {own[0], own[2]}
    assert starts == {0, 2, 4, 7, 9}


@pytest.mark.parametrize("used", [[10, 10, 10], [1, 2, 9, 8, 10], [6, 6, 6, 6, 6], [0, 10, 10, 10]])
def test_distinct_classes_never_get_stuck(used: list[int]) -> None:
    """10 clients, 3 classes each, every class as often as said, also where it is all or nothing."""
    classes = lottery._distinct_classes(np.array(used), 10, 3, np.random.default_rng(0))
    assert np.bincount(classes.ravel(), minlength=len(used)).tolist() == used
    many = lottery._distinct_classes(500 * np.array(used), 5000, 3, np.random.default_rng(0))  # in blocks
    assert np.bincount(many.ravel(), minlength=len(used)).tolist() == [500 * times for times in used]
    assert all(len(set(row)) == 3 for row in many.tolist())
    assert all(len(set(row)) == 3 for row in classes.tolist())


def test_lottery_pairs_are_uniform() -> None:
    """All classes alike: each of the 6 pairs out of 4 classes for a sixth of 6,000 clients (sigma 29)."""
    classes = lottery._distinct_classes(np.full(4, 3000), 6000, 2, np.random.default_rng(0))
    pairs = np.unique(np.sort(classes, axis=1), axis=0, return_counts=True)[1]
    assert len(pairs) == 6 and (np.abs(pairs - 1000) < 120).all()
    assert (np.abs(np.bincount(classes[:, 0]) - 1500) < 150).all()  # any of them may be the first, whole one


# ---- natural


def test_natural_by_hand() -> None:
    """Writers 0, 1, 2 with 3, 1, 4 examples. Two clients: two whole writers, in file order. With min_examples 2 writer
    1 is out."""
    groups = np.array([2, 0, 2, 1, 0, 2, 0, 2])
    of_writer = {0: [1, 4, 6], 1: [3], 2: [0, 2, 5, 7]}
    seen = set()
    for seed in range(30):
        partition = make_partition(Natural(), np.zeros(8, np.int64), 2, seed, groups)
        own = [partition.client(i).tolist() for i in range(2)]
        assert all(one in of_writer.values() for one in own) and own[0] != own[1]
        seen.add(tuple(int(groups[one[0]]) for one in own))
        many = make_partition(Natural(min_examples=2), np.zeros(8, np.int64), 2, seed, groups)
        assert {int(groups[many.client(i)[0]]) for i in range(2)} == {0, 2}
    assert len(seen) == 6


def test_several_groups_a_client() -> None:
    """10 writers each, whole and disjoint: 15 clients have all 150."""
    partition = made(Natural(groups_per_client=10), 15)
    writers = [set(own) for own in held(partition, GROUPS)]
    assert all(len(one) == 10 for one in writers) and len(set().union(*writers)) == 150
    assert sorted(partition.indices) == list(range(1437))


# ---- refusals


@pytest.mark.parametrize(
    ("options", "num_clients", "words"),
    [
        (Natural(), 151, "at most 150 clients"),
        (Natural(min_examples=1000), 1, "1 clients need 1 groups with 1000 or more examples, but there are 0"),
        (Lottery(samples=36), 19, "19 clients need 38 shards of 36 examples"),
        (Shards(shards_per_client=1), 1437, "cannot be cut"),
        (Shards(), 3, "into 0 to 1 shards"),
        (DirichletEqual(examples=100), 15, "cannot each get 100"),
        (QuantitySkew(min_size=100), 15, "cannot each get 100"),
    ],
)
def test_refused_in_one_line(options: PartitionOptions, num_clients: int, words: str) -> None:
    with pytest.raises(ConfigError, match=words) as caught:
        made(options, num_clients)
    assert "\n" not in caught.value.text()


@pytest.mark.parametrize(("groups_per_client", "most"), [(1, 30), (10, 3)])
def test_natural_knows_its_groups_without_data(groups_per_client: int, most: int, told: Told) -> None:
    info = DataInfo("vector", (768,), 6, 7000, 700, num_groups=30)
    config = SimpleNamespace(clients=SimpleNamespace(count=most), data=SimpleNamespace(name="har", used=lambda: info))
    options = Natural(groups_per_client=groups_per_client)
    assert list(options.problems(config)) == []
    assert options.mean_examples(info, most) == pytest.approx(7000 / most)
    config.clients.count += 1
    ((key, text),) = options.problems(config)
    assert key == "clients.count"
    told(text)


def test_real_digits_by_writer() -> None:
    """QMNIST's 539 writers: ten whole writers for each of 50 clients, and test shares that follow their classes."""
    if not (SHARED_DATA / "mnist").is_dir():
        pytest.skip(f"real QMNIST needs {SHARED_DATA / 'mnist'}")
    options = registry.options("data", "qmnist")(root=str(SHARED_DATA / "mnist"))
    digits = load_data(options)
    partition = make_partition(Natural(groups_per_client=10), digits.train_y, 50, 0, digits.groups)
    writers = [set(digits.groups[partition.client(client)].tolist()) for client in range(50)]
    assert all(len(own) == 10 for own in writers) and len(set().union(*writers)) == 500
    assert partition.sizes.sum() == np.isin(digits.groups, list(set().union(*writers))).sum()
    tests = personal_tests("matching", partition, digits, 0)
    assert sorted(tests.indices) == list(range(10_000))
