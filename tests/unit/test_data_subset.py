"""`data.num_train` and `data.num_test`: which examples a trial takes, by hand, and what a run makes of the keys."""

from pathlib import Path

import numpy as np
import pytest
from data_fixtures import refusal
from small_data import dataset, options_in

from fedmpi.config.load import load
from fedmpi.data import files
from fedmpi.data.dataset import digest_of, load_data
from fedmpi.data.partition import make_partition
from fedmpi.data.sets.digits import Digits
from fedmpi.data.subset import choose, holdout_size, shares, stratified_holdout
from fedmpi.seeds import numpy_generator

OWN = ("model.name=mlp", "clients.count=2", "clients.per_round=2", "partition.name=iid", "method.name=fedavg")


@pytest.mark.parametrize(
    ("sizes", "number", "expected"),
    [
        ([50, 30, 20], 10, [5, 3, 2]),
        ([7, 5, 3], 7, [3, 2, 2]),  # 3.27, 2.33, 1.4: the one that is left goes to the largest remainder
        ([5, 5, 5], 4, [2, 1, 1]),  # a tie: the first
        ([97, 1, 1, 1], 5, [2, 1, 1, 1]),  # 0.05 of an example is one; the large class has the rest
        ([4, 4, 2], 10, [4, 4, 2]),
        ([3, 9], 2, [1, 1]),
    ],
)
def test_shares_by_hand(sizes: list[int], number: int, expected: list[int]) -> None:
    assert shares(np.array(sizes), number).tolist() == expected


def test_groups_keep_their_shares_and_their_classes() -> None:
    """Writers with 12, 6 and 6 examples, half of them of class 0: 12 examples are 6, 3 and 3 of
    theirs, every second one in the order of the classes.
    """
    groups = np.repeat([0, 1, 2], [12, 6, 6])
    labels = np.arange(24) % 2
    chosen = choose(labels, groups, 12, numpy_generator("test"))
    assert chosen.tolist() == sorted(set(chosen.tolist()))
    assert np.bincount(groups[chosen]).tolist() == [6, 3, 3]
    for writer, least in ((0, 3), (1, 1), (2, 1)):
        assert min(np.bincount(labels[chosen][groups[chosen] == writer], minlength=2)) >= least


def test_a_built_in_set() -> None:
    """Digits: the counts of the classes by largest remainder, in file order, the same for every seed of a run."""
    whole, part = load_data(Digits()), load_data(Digits(num_train=100, num_test=36))
    again, other = load_data(Digits(num_train=100, num_test=36)), load_data(Digits(num_train=101, num_test=36))
    for name, number in (("train", 100), ("test", 36)):
        ours, theirs = getattr(part, f"{name}_y"), getattr(whole, f"{name}_y")
        assert np.bincount(ours).tolist() == shares(np.bincount(theirs), number).tolist()
    places = [np.flatnonzero((whole.train_x == image).all(axis=(1, 2, 3)))[0] for image in part.train_x]
    assert places == sorted(places) and (whole.train_y[places] == part.train_y).all()
    assert part.digest == again.digest == digest_of(part.arrays)
    assert len({whole.digest, part.digest, other.digest}) == 3
    assert (Digits(num_train=100).used().num_train, Digits().used()) == (100, Digits().info())


def test_a_prepared_set_keeps_every_group(tmp_path: Path) -> None:
    """Of more examples in the file a subset, of whom every subject keeps its share; natural clients."""
    options = options_in(tmp_path)
    files.save(options, dataset())
    whole = load_data(options)
    part = load_data(options.model_copy(update={"num_train": len(whole.train_y) // 2}))
    sizes = np.bincount(whole.groups)
    assert np.bincount(part.groups).tolist() == shares(sizes, len(whole.train_y) // 2).tolist()
    config = load(None, ["data.name=har", "model.name=mlp", "partition.name=natural"])
    clients = make_partition(config.partition, part.train_y, len(sizes), 0, part.groups)
    assert sorted(clients.sizes) == sorted(np.bincount(part.groups))
    few = options.model_copy(update={"num_train": len(sizes) - 1})
    assert f"{len(sizes)} (one for each of the groups) to {len(whole.train_y)}" in refusal(lambda: load_data(few))
    more = options.model_copy(update={"num_train": len(whole.train_y) + 1})
    assert f"{len(whole.train_y) + 1} of {len(whole.train_y)} examples" in refusal(lambda: load_data(more))


@pytest.mark.parametrize(
    ("words", "key", "found"),
    [
        (("data.num_train=1438",), "data.num_train", "10 (one for each of the classes) to 1437"),
        (("data.num_train=9", "clients.count=5", "clients.per_round=5"), "data.num_train", "9 of 1437 examples"),
        (("data.num_train=15",), "clients.count", "15 training examples"),  # 20 clients
        (("data.num_train=-1",), "data.num_train", "-1"),
    ],
)
def test_a_mistake_is_one_line(words: tuple[str, ...], key: str, found: str) -> None:
    line = refusal(lambda: load(None, words))
    assert key in line and found in line


@pytest.mark.parametrize(
    ("num_examples", "share", "size"),
    [(100, 0.2, 20), (13, 0.2, 3), (4, 0.2, 2), (3, 0.2, 0), (1, 0.5, 0), (9, 0.0, 0), (1000, 0.001, 2), (5, 0.9, 3)],
)
def test_size(num_examples: int, share: float, size: int) -> None:
    """round(share n), but 2 at least on either side; none of fewer than 4."""
    assert holdout_size(num_examples, share) == size


@pytest.mark.parametrize("seed", range(20))
def test_each_class_gives_its_share(seed: int) -> None:
    """60, 30, 10 and 7 examples at 0.2: 12, 6, 2 and 1.4, each within one."""
    labels = np.repeat([0, 1, 2, 3], [60, 30, 10, 7])
    _, validation = stratified_holdout(100 + 3 * np.arange(107), labels, 0.2, np.random.default_rng(seed))
    counts = np.bincount(labels[(validation - 100) // 3], minlength=4)
    assert counts.sum() == 21 and (abs(counts - np.array([12, 6, 2, 1.4])) < 1.01).all()
