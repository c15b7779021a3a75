"""Partitions: who holds what. Invariants, hand-checked small cases, seeds, scale, files."""

import math
from types import SimpleNamespace

import h5py
import numpy as np
import pytest
from golden_file import Told

from fedmpi.data.partition import Partition, PartitionOptions, make_partition, present_labels, saved, take
from fedmpi.data.partitions import class_dirichlet, dirichlet, dirichlet_feddf
from fedmpi.data.partitions.class_dirichlet import ClassDirichlet
from fedmpi.data.partitions.dirichlet import Dirichlet
from fedmpi.data.partitions.dirichlet_equal import DirichletEqual
from fedmpi.data.partitions.dirichlet_feddf import DirichletFeddf
from fedmpi.data.partitions.iid import Iid
from fedmpi.data.partitions.lottery import Lottery
from fedmpi.data.partitions.natural import Natural
from fedmpi.data.partitions.quantity_skew import QuantitySkew
from fedmpi.data.partitions.shards import Shards
from fedmpi.data.sets.digits import Digits
from fedmpi.disk import hdf5
from fedmpi.errors import ConfigError, DataError

COMPLETE = [
    Iid(),
    Iid(shuffle=True),
    Dirichlet(),
    ClassDirichlet(),
    DirichletEqual(),
    DirichletEqual(alpha=math.inf),
    QuantitySkew(),
]
ALL = [
    *COMPLETE,
    DirichletFeddf(),
    DirichletEqual(alpha=0.05, examples=30),
    DirichletEqual(alpha=math.inf, examples=17),
    Shards(),
    Shards(shards_per_client=5),
    Lottery(samples=7),
    Lottery(samples=4, balance=0.5, classes_per_client=4),
    Natural(),
    Natural(groups_per_client=3, min_examples=4),
]
GROUPS = np.random.default_rng(1).integers(0, 150, 1437)


def labels_of(num_examples: int, num_classes: int = 10, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, num_classes, num_examples)


def label_of(options: PartitionOptions) -> str:
    return options.model_dump_json()


def class_counts(partition: Partition, labels: np.ndarray, num_classes: int) -> np.ndarray:
    """int (clients, classes)."""
    rows = [np.bincount(labels[partition.client(i)], minlength=num_classes) for i in range(partition.num_clients)]
    return np.stack(rows)


@pytest.mark.parametrize("options", ALL, ids=label_of)
@pytest.mark.parametrize("num_clients", [7, 20, 33])
def test_no_example_has_two_owners(options: PartitionOptions, num_clients: int) -> None:
    partition = make_partition(options, labels_of(1437), num_clients, 3, GROUPS)
    assert partition.num_clients == len(partition.sizes) == num_clients
    assert partition.sizes.sum() == len(partition.indices) == len(np.unique(partition.indices))
    assert partition.indices.min() >= 0 and partition.indices.max() < 1437 and partition.sizes.min() >= 1
    assert np.array_equal(np.concatenate([partition.client(i) for i in range(num_clients)]), partition.indices)


@pytest.mark.parametrize("options", COMPLETE, ids=label_of)
@pytest.mark.parametrize("num_clients", [1, 20])
def test_every_example_has_an_owner(options: PartitionOptions, num_clients: int) -> None:
    partition = make_partition(options, labels_of(1437), num_clients, seed=3)
    assert sorted(partition.indices) == list(range(1437))


@pytest.mark.parametrize("options", ALL, ids=label_of)
def test_a_pure_function_of_the_seed(options: PartitionOptions) -> None:
    labels = labels_of(1437)
    first, again, other = (make_partition(options, labels, 20, seed, GROUPS) for seed in (0, 0, 1))
    assert np.array_equal(first.indices, again.indices) and np.array_equal(first.offsets, again.offsets)
    is_drawn = getattr(options, "shuffle", True) and getattr(options, "alpha", 1.0) != math.inf
    assert np.array_equal(first.indices, other.indices) != is_drawn


# ---- iid


def test_iid_cuts_file_order() -> None:
    """10 examples, 4 clients: bounds floor(i * 10 / 4) = 0, 2, 5, 7, 10."""
    partition = make_partition(Iid(), np.zeros(10, np.int64), 4, seed=9)
    assert [partition.client(i).tolist() for i in range(4)] == [[0, 1], [2, 3, 4], [5, 6], [7, 8, 9]]


# ---- dirichlet_feddf


@pytest.mark.parametrize(("num_examples", "num_clients"), [(50_000, 20), (1437, 20), (5000, 25), (1000, 4)])
def test_feddf_sizes_are_exactly_equal(num_examples: int, num_clients: int) -> None:
    """Every client has floor(N / n); at most n - 1 examples are left over."""
    partition = make_partition(DirichletFeddf(), labels_of(num_examples), num_clients, seed=1)
    assert set(partition.sizes) == {num_examples // num_clients}


@pytest.mark.parametrize(
    ("num_clients", "groups"), [(20, [10, 10]), (25, [10, 10, 5]), (10, [10]), (4, [4]), (11, [10, 1])]
)
def test_feddf_groups_before_the_recut(num_clients: int, groups: list[int]) -> None:
    """Groups of 10 share 10 N / n examples, the last group what remains; in a group the smallest list has at least
    floor(half of the group's mean) examples, and together the lists hold every example once."""
    lists = dirichlet_feddf.feddf_lists(DirichletFeddf(), labels_of(5000), num_clients, seed=2)
    assert len(lists) == num_clients and sorted(np.concatenate(lists)) == list(range(5000))
    first = 0
    for group, members in enumerate(groups):
        sizes = [len(one) for one in lists[first : first + members]]
        is_last = group == len(groups) - 1
        expected = 5000 - (len(groups) - 1) * (50_000 // num_clients) if is_last else 50_000 // num_clients
        assert sum(sizes) == expected and min(sizes) >= int(0.5 * expected / members)
        first += members


class ScriptedGenerator:
    """Gives the wanted q in turn, and no shuffle."""

    def __init__(self, *draws: list[float]) -> None:
        self.draws = list(draws)

    def permutation(self, count: int) -> np.ndarray:
        return np.arange(count)

    def dirichlet(self, alpha: np.ndarray, size: int | None = None) -> np.ndarray:
        return np.array(self.draws.pop(0))


def test_feddf_by_hand(monkeypatch) -> None:
    """8 examples, classes 0 (numbers 0-3), 1 (4-5), 2 (6-7); 2 clients, so a client is full with 4, and needs 2.

    Draw one. Class 0, q = (.25, .75): cut at floor(.25 * 4) = 1 -> {0} | {1, 2, 3}. Class 1, q = (0, 1): {} | {4, 5}:
    sizes 1 and 5. Class 2, q = (0, 1): client 1 is full, nobody else has a share: the draw is void.
    Draw two. Class 0, q = (0, 1): {} | {0..3}. Client 1 is full, so class 1, q = (.1, .9) -> (1, 0): {4, 5} | {}, and
    class 2, q = (.5, .5) -> (1, 0): {6, 7} | {}. Lists {4, 5, 6, 7} and {0, 1, 2, 3}: both have 2 or more.
    """
    script = ScriptedGenerator([0.25, 0.75], [0, 1], [0, 1], [0, 1], [0.1, 0.9], [0.5, 0.5])
    monkeypatch.setattr(dirichlet_feddf, "numpy_generator", lambda *_: script)
    lists = dirichlet_feddf.feddf_lists(DirichletFeddf(), np.array([0, 0, 0, 0, 1, 1, 2, 2]), 2, seed=0)
    assert [one.tolist() for one in lists] == [[4, 5, 6, 7], [0, 1, 2, 3]] and not script.draws


def test_feddf_recut_straddles_lists(monkeypatch) -> None:
    """6 of one class, 2 clients, q = (.7, .3): cut at floor(4.2) = 4, so the lists are {0..3} and {4, 5} (each has
    floor(.5 * 3) = 1 or more), recut to {0, 1, 2} and {3, 4, 5}."""
    monkeypatch.setattr(dirichlet_feddf, "numpy_generator", lambda *_: ScriptedGenerator([0.7, 0.3]))
    partition = make_partition(DirichletFeddf(), np.zeros(6, np.int64), 2, seed=0)
    assert [partition.client(i).tolist() for i in range(2)] == [[0, 1, 2], [3, 4, 5]]


def test_feddf_that_cannot_succeed_says_so(monkeypatch) -> None:
    """One client always gets all of the only class, 10 of 10 examples, where each needs floor(.5 * 5) = 2."""
    monkeypatch.setattr(dirichlet_feddf, "numpy_generator", lambda *_: ScriptedGenerator(*[[1.0, 0.0]] * 1000))
    with pytest.raises(ConfigError, match="raise partition.alpha"):
        dirichlet_feddf.feddf_lists(DirichletFeddf(), np.zeros(10, np.int64), 2, seed=0)


# ---- dirichlet (Hsu et al.)


def test_hsu_sizes_are_equal_and_skew_follows_alpha() -> None:
    """alpha = 1e-3: nearly one class each (until classes run out); alpha = 1e6: every client's counts are
    multinomial with the prior, whose variance is below 100 * 0.09 = 9, so 60 % of the prior is 13 sigma away."""
    labels = np.repeat(np.arange(10), 2000)
    skewed = class_counts(make_partition(Dirichlet(alpha=1e-3), labels, 200, 0), labels, 10)
    even = class_counts(make_partition(Dirichlet(alpha=1e6), labels, 200, 0), labels, 10)
    assert (skewed.sum(axis=1) == 100).all() and (even.sum(axis=1) == 100).all()
    assert np.median(skewed.max(axis=1)) == 100
    assert np.median(even.max(axis=1)) < 25


def test_hsu_follows_the_prior() -> None:
    """Shares 0.9 and 0.1: q of every client is close to them for a large alpha, not close to one half each."""
    labels = np.repeat([0, 1], [9000, 1000])
    counts = class_counts(make_partition(Dirichlet(alpha=1e6), labels, 10, 0), labels, 2)
    assert (np.abs(counts[:, 1] - 100) < 60).all()


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


def test_take_by_hand() -> None:
    """Pool: class 0 is 10 11 12, class 1 is 20 21 22. Client 0 takes 1 and 2, client 1 takes 2 and 0 of them, when
    the first of class 1 is used already (its next is at position 4): class 1 gives 21 and 22."""
    pool = np.array([10, 11, 12, 20, 21, 22])
    assert take(pool, np.array([0, 4]), np.array([[1, 2], [2, 0]])).tolist() == [10, 21, 22, 11, 12]


def test_hsu_in_several_blocks(monkeypatch) -> None:
    """Blocks of 4 clients for 11: still disjoint, complete and of equal sizes."""
    monkeypatch.setattr(dirichlet, "BLOCK_CLIENTS", 4)
    partition = make_partition(Dirichlet(alpha=0.1), labels_of(1000), 11, seed=0)
    assert sorted(partition.indices) == list(range(1000)) and set(partition.sizes) == {90, 91}


# ---- class_dirichlet


def test_class_dirichlet_is_uneven_above_its_minimum() -> None:
    partition = make_partition(ClassDirichlet(alpha=0.3, min_size=20), labels_of(1437), 20, seed=0)
    assert partition.sizes.min() >= 20 and partition.sizes.max() > 2 * partition.sizes.min()


def test_class_dirichlet_redraws_until_the_minimum(monkeypatch) -> None:
    """Two clients, 4 of class 0, 2 of class 1. Stream 0: q = (1, 0) for both classes leaves client 1 with nothing.
    Stream 1: q = (.5, .5) cuts class 0 at 2; q = (.4, .6) cuts class 1 at floor(.8) = 0: sizes 2 and 4."""
    streams = {0: ScriptedGenerator([1, 0], [1, 0]), 1: ScriptedGenerator([0.5, 0.5], [0.4, 0.6])}
    monkeypatch.setattr(class_dirichlet, "numpy_generator", lambda purpose, seed, attempt: streams[attempt])
    partition = make_partition(ClassDirichlet(), np.array([0, 0, 1, 0, 1, 0]), 2, seed=0)
    assert [partition.client(i).tolist() for i in range(2)] == [[0, 1], [3, 5, 2, 4]]


def test_class_dirichlet_that_cannot_succeed_says_so() -> None:
    """Each class goes almost whole to one client: 3 classes cannot feed 4 clients."""
    with pytest.raises(ConfigError) as caught:
        make_partition(ClassDirichlet(alpha=1e-6), labels_of(60, 3), 4, seed=0)
    assert "\n" not in caught.value.text()
    assert "4 clients 2 examples" in caught.value.text() and "partition.min_size" in caught.value.text()


# ---- refusals, scale, files, labels


@pytest.mark.parametrize("options", ALL[:5], ids=label_of)
def test_more_clients_than_examples(options: PartitionOptions, told: Told) -> None:
    with told.by(ConfigError):
        make_partition(options, labels_of(10), 11, seed=0)


FAKE_CONFIG = SimpleNamespace(clients=SimpleNamespace(count=720), data=Digits())


@pytest.mark.parametrize(("options", "most"), [(Dirichlet(min_size=2), 718), (ClassDirichlet(), 718), (Iid(), None)])
def test_problems_are_found_before_data_are_read(options: PartitionOptions, most: int | None) -> None:
    """1,437 digits give 718 clients two each; 720 are too many, unless one example is enough."""
    problems = list(options.problems(FAKE_CONFIG))
    assert [key for key, _ in problems] == (["clients.count"] if most else [])
    assert not most or (f"at most {most}" in problems[0][1] and "720 clients" in problems[0][1])


def test_saved_and_loaded(tmp_path) -> None:
    path, made = tmp_path / "partition.h5", make_partition(ClassDirichlet(), labels_of(1437), 20, seed=0)
    path.write_bytes(made.packed())
    loaded, _ = saved(path)
    assert np.array_equal(loaded.indices, made.indices) and np.array_equal(loaded.offsets, made.offsets)
    assert loaded.indices.dtype == loaded.offsets.dtype == np.int64


def test_clients_views_are_read_only() -> None:
    partition = make_partition(Iid(), labels_of(10), 2, seed=0)
    with pytest.raises(ValueError, match="read-only"):
        partition.client(0)[0] = 5


def test_damaged_files_are_one_line(tmp_path) -> None:
    path = tmp_path / "partition.h5"
    path.write_bytes(make_partition(Iid(), labels_of(10), 2, seed=0).packed())
    cut_off, foreign, wrong = tmp_path / "cut", tmp_path / "foreign", tmp_path / "wrong"
    cut_off.write_bytes(path.read_bytes()[:500])
    with h5py.File(foreign, "w") as file:
        file["indices"] = [1]
    wrong.write_bytes(path.read_bytes())
    with h5py.File(wrong, "a") as file:
        file["offsets"][...] = [0, 5, 11]
    for bad in (cut_off, foreign, wrong, tmp_path / "absent"):
        with pytest.raises(DataError) as caught:
            saved(bad)
        assert str(bad) in caught.value.text() and "\n" not in caught.value.text()


def test_offsets_whose_differences_overflow(tmp_path, told: Told) -> None:
    """-2 - (2**63 - 1) is 2**63 - 1 in 64 bits; and no offsets at all."""
    for offsets in ([0, 2**63 - 1, -2, 10], [0, 11, 10], [], [[0], [10]]):
        path = tmp_path / "partition.h5"
        arrays = {"indices": np.arange(10), "offsets": np.array(offsets, dtype=np.int64)}
        path.write_bytes(hdf5.pack("partition", {}, arrays))
        with told.by(DataError):
            saved(path)


def test_present_labels() -> None:
    """Examples 1, 2 and 4 have the labels 3, 0 and 3; there is no example of class 4 at all."""
    present = present_labels(np.array([1, 3, 0, 2, 3]), np.array([1, 2, 4]), 5)
    assert present.tolist() == [True, False, False, True, False] and present.dtype == bool
