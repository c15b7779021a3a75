"""The validation part of a client's examples: its size, its classes, and that it is the same in every round."""

import numpy as np
import pytest

from fedmpi.data.subset import holdout_size, stratified_holdout


@pytest.mark.parametrize(
    ("num_examples", "share", "size"),
    [
        (100, 0.2, 20),
        (12, 0.2, 2),
        (13, 0.2, 3),
        (6, 0.2, 2),
        (4, 0.2, 2),
        (3, 0.2, 0),
        (1, 0.5, 0),
        (9, 0.0, 0),
        (5, 0.5, 2),
        (1000, 0.001, 2),
        (5, 0.9, 3),
    ],
)
def test_size(num_examples: int, share: float, size: int) -> None:
    """round(share n), but 2 at least on either side; none of fewer than 4."""
    assert holdout_size(num_examples, share) == size


def parts(labels: list[int], share: float, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    examples = 100 + 3 * np.arange(len(labels))
    return stratified_holdout(examples, np.array(labels), share, np.random.default_rng(seed))


def test_parts_are_disjoint_complete_and_in_order() -> None:
    training, validation = parts([0, 1, 2] * 20, 0.2)
    assert len(validation) == 12
    assert sorted([*training, *validation]) == [100 + 3 * i for i in range(60)]
    assert (np.diff(training) > 0).all() and (np.diff(validation) > 0).all()


@pytest.mark.parametrize("seed", range(20))
def test_each_class_gives_its_share(seed: int) -> None:
    """60, 30, 10 and 7 examples at 0.2: 12, 6, 2 and 1.4, each within one."""
    labels = [0] * 60 + [1] * 30 + [2] * 10 + [3] * 7
    _, validation = parts(labels, 0.2, seed)
    counts = np.bincount([labels[(number - 100) // 3] for number in validation], minlength=4)
    assert counts.sum() == 21 and (abs(counts - np.array([12, 6, 2, 1.4])) < 1.01).all()


def test_a_pure_function_of_the_generator() -> None:
    assert np.array_equal(parts([0, 1] * 10, 0.3)[1], parts([0, 1] * 10, 0.3)[1])
    drawn = {tuple(parts([0, 1] * 10, 0.3, seed)[1]) for seed in range(10)}
    assert len(drawn) > 5


def test_nothing_is_held_out_where_there_is_too_little() -> None:
    training, validation = parts([0, 1, 1], 0.2)
    assert list(training) == [100, 103, 106] and len(validation) == 0
