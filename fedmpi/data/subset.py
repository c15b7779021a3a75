"""Chooses among examples by class or group: a subset for trials, and the share of a client's examples that is held out.

A subset takes examples class by class, in proportion, at least one of each; where examples have groups, group by group.
"""

from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

Ints: TypeAlias = NDArray[np.int64]
LEAST = 2
"""BatchNorm on a single example has no variance, so neither part of a held-out division may have just one."""


def firsts(sizes: Ints) -> Ints:
    """Returns where each of consecutive runs of these sizes begins."""
    return np.cumsum(sizes) - sizes


def runs(starts: Ints, lengths: Ints) -> Ints:
    """Returns starts[0], starts[0] + 1, ... (lengths[0] of them), then as many from starts[1] on, and so forth."""
    within: Ints = np.arange(lengths.sum()) - np.repeat(firsts(lengths), lengths)
    return within + np.repeat(starts, lengths)


def choose(labels: Ints, groups: Ints | None, number: int, generator: np.random.Generator) -> Ints:
    """Returns the numbers of the chosen examples, int64 (number,), ascending.

    `labels` int64 (N,), `groups` int64 (N,) or None; `number` is at most N, and at least that of the groups or, without
    groups, of the classes. The c chosen ones of a group's n examples are every n/c-th of them in the order of their
    classes, those of a class shuffled.
    """
    strata = labels if groups is None else groups
    order = np.lexsort((generator.random(len(labels)), labels, strata))
    sizes = np.unique(strata, return_counts=True)[1]
    counts = shares(sizes, number)
    begins = generator.integers(0, sizes)
    steps = runs(np.zeros_like(counts), counts) * np.repeat(sizes, counts)
    within = (steps + np.repeat(begins, counts)) // np.repeat(counts, counts)
    return np.sort(order[np.repeat(firsts(sizes), counts) + within])


def shares(sizes: Ints, number: int) -> Ints:
    """Divides `number` in proportion to `sizes` (all positive) by largest remainder (ties: the first). A size whose
    share is less than 1 gets 1, and the others share the rest."""
    large = np.arange(len(sizes))
    while True:
        num_shared = number - (len(sizes) - len(large))
        total = sizes[large].sum()
        quotas = num_shared * sizes[large]
        if (quotas >= total).all():
            break
        large = large[quotas >= total]
    wholes, remainders = np.divmod(quotas, total)
    rest = num_shared - wholes.sum()
    wholes[np.argsort(-remainders, kind="stable")[:rest]] += 1
    counts = np.ones_like(sizes)
    counts[large] = wholes
    return counts


def holdout_size(num_examples: int, share: float) -> int:
    """Returns how many examples are held out: the nearest number that leaves no part a single one, or 0."""
    if share == 0 or num_examples < 2 * LEAST:
        return 0
    return min(max(round(share * num_examples), LEAST), num_examples - LEAST)


def stratified_holdout(examples: Ints, labels: Ints, share: float, generator: np.random.Generator) -> tuple[Ints, Ints]:
    """Divides `examples` (with their `labels`) into (training, held out), both in their old order.

    Class by class, example j of n stands at (j + u) / n with u random; the examples that stand lowest are held out.
    """
    place = np.empty(len(examples))
    for label in np.unique(labels):
        own = generator.permutation(np.flatnonzero(labels == label))
        place[own] = (np.arange(len(own)) + generator.random()) / len(own)
    is_held_out = np.zeros(len(examples), dtype=bool)
    is_held_out[np.argsort(place, kind="stable")[: holdout_size(len(examples), share)]] = True
    return examples[~is_held_out], examples[is_held_out]
