"""Exact statistics of paired differences between two methods, one difference for each seed.

Under the hypothesis that the methods do not differ, each difference is as likely to be positive as negative (Fisher,
The Design of Experiments, 1935). All 2^n ways to choose the signs are equally likely, and the p-value is the share of
those whose mean is at least as far from 0. So six seeds give 2/64 = 0.031 at best. No distribution is assumed but
symmetry.
"""

import statistics
from collections.abc import Sequence

import numpy as np
import pandas as pd

ALPHA = 0.05
"""The level of the tests."""


def mean_std(values: Sequence[float]) -> tuple[float | None, float | None]:
    """Returns mean and sample standard deviation (n - 1), None where there are too few values."""
    mean = statistics.fmean(values) if values else None
    return mean, statistics.stdev(values) if len(values) > 1 else None


def sign_flip_p(differences: Sequence[float]) -> float:
    """Returns the two-sided p-value of the exact sign-flip permutation test for a mean of 0; 1 for one difference."""
    if len(differences) < 2 or not any(differences):  # no test of one seed can tell
        return 1.0
    from scipy.stats import permutation_test  # comes with scikit-learn

    found = permutation_test(
        (np.array(differences),), np.mean, permutation_type="samples", n_resamples=np.inf, vectorized=True
    )
    return float(found.pvalue)


def interval(differences: Sequence[float], alpha: float = ALPHA) -> tuple[float, float, float]:
    """Returns (low, high, confidence) of the mean difference: the means that the two-sided sign-flip test keeps.

    The 2^n - 1 means of all subsets cut the line into 2^n pieces, each of which holds the true mean with probability
    2^-n (Hartigan, Using subsample values as typical values, JASA 64, 1969). So the k-th lowest and the k-th highest
    of them have confidence 1 - 2k / 2^n. k is the largest with confidence of at least 1 - `alpha`, or 1 where so few
    seeds allow none. With six seeds and 0.05 these are the lowest and the highest difference, and 96.9 %.
    """
    values = np.array(differences, dtype=float)
    count = len(differences)
    chosen = (np.arange(1, 2**count)[:, None] >> np.arange(count)) & 1
    means = np.sort(chosen @ values / chosen.sum(axis=1))
    place = max(1, int(alpha / 2 * 2**count + 1e-9))
    return float(means[place - 1]), float(means[-place]), 1 - 2 * place / 2**count


def holm(p_values: Sequence[float]) -> list[float]:
    """Adjusts p-values, to control the error rate of the whole family (Holm, Scand. J. Statist. 6, 1979)."""
    rising = pd.Series(p_values, dtype=float).sort_values(kind="stable")
    adjusted = (rising * np.arange(len(rising), 0, -1)).cummax().clip(upper=1.0)
    return adjusted.sort_index().tolist()


def smallest_p(num_seeds: int, num_tests: int) -> float:
    """Returns the smallest adjusted p-value that a test of the family can have."""
    return min(1.0, num_tests * 2 / 2**num_seeds)
