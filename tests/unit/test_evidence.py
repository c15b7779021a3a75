"""Statistics of a study, by hand."""

import statistics

import numpy as np
import pytest

from fedmpi.results.evidence import holm, interval, sign_flip_p, smallest_p


@pytest.mark.parametrize(
    ("differences", "p"),
    [
        ([1.0, 2.0, 3.0, 4.0, 5.0, 6.0], 2 / 64),  # all of one sign: only all + and all - are as far
        ([-0.1] * 8, 2 / 256),
        ([1.0, 2.0, -0.5], 4 / 8),  # sums 2.5 of 3.5, 2.5, 1.5, ...: +++, ++- and their opposites
        ([3.0, -1.0], 1.0),  # of sums 4, 2, -2, -4 all are as far as 2
        ([1.0], 1.0),
        ([0.0, 0.0], 1.0),
        ([], 1.0),
    ],
)
def test_sign_flips_by_hand(differences: list[float], p: float) -> None:
    assert sign_flip_p(differences) == p


def test_interval_by_hand() -> None:
    """Of 1, 2, 6 the seven subset means are 1, 1.5, 2, 3, 3.5, 4, 6: at 0.25 the first and the last (75 %), at 0.5 the
    second ones (50 %). Six values give the lowest and the highest, and 1 - 2/64."""
    assert interval([1.0, 2.0, 6.0], 0.25) == (1.0, 6.0, 0.75)
    assert interval([6.0, 1.0, 2.0], 0.5) == (1.5, 4.0, 0.5)
    assert interval([1.0, 2.0, 6.0], 0.05) == (1.0, 6.0, 0.75), "three seeds allow no better one"
    assert interval([3.0, 1.0, 4.0, 1.5, 9.0, 2.0], 0.05) == (1.0, 9.0, 1 - 2 / 64)
    assert interval([5.0], 0.05) == (5.0, 5.0, 0.0)
    assert interval([1.0] * 8, 0.05)[2] == 1 - 12 / 256


@pytest.mark.parametrize("seed", range(5))
def test_interval_has_what_the_test_does_not_reject(seed: int) -> None:
    differences = np.random.default_rng(seed).normal(1, 2, 8).tolist()
    low, high, confidence = interval(differences, 0.05)
    for mean, is_inside in ((low - 1e-6, False), (low + 1e-6, True), (high - 1e-6, True), (high + 1e-6, False)):
        p = sign_flip_p([difference - mean for difference in differences])
        assert (p > 1 - confidence + 1e-12) == is_inside
    assert low <= statistics.fmean(differences) <= high


def test_holm_by_hand() -> None:
    """0.01 x 4, then 0.02 x 3 = 0.06, then 0.03 x 2 = 0.06 (not below the one before), then 0.5."""
    assert holm([0.03, 0.01, 0.5, 0.02]) == pytest.approx([0.06, 0.04, 0.5, 0.06])
    assert holm([0.9, 0.8]) == [1.0, 1.0] and holm([0.03]) == [0.03] and holm([]) == []


def test_what_six_and_eight_seeds_can_show() -> None:
    assert smallest_p(6, 1) == 0.03125 and smallest_p(6, 2) == 0.0625
    assert smallest_p(5, 1) == 0.0625 and smallest_p(8, 6) == 0.046875 and smallest_p(1, 3) == 1.0
