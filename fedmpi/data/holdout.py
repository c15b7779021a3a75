"""A client's own examples in two: those that it trains on, and those that it validates on.

A pure function of the labels and the generator, so a client has the same parts in every round.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fedmpi.data.dealing import Ints

if TYPE_CHECKING:
    import numpy as np

# BatchNorm on a single example has no variance, so neither part may have just one.
LEAST = 2


def holdout_size(num_examples: int, share: float) -> int:
    """How many of a client's examples validate: the nearest number, such that neither part has a single one; or 0."""
    if share == 0 or num_examples < 2 * LEAST:
        return 0
    return min(max(round(share * num_examples), LEAST), num_examples - LEAST)


def stratified_holdout(examples: Ints, labels: Ints, share: float, generator: np.random.Generator) -> tuple[Ints, Ints]:
    """`examples` (with their `labels`) as (training, validation), both in their old order.

    Each class gives `share` of its examples, as near as whole numbers go: class by class, example j
    of n stands at (j + u) / n with u random, and the examples that stand lowest are validation.
    """
    import numpy as np

    place = np.empty(len(examples))
    for label in np.unique(labels):
        own = generator.permutation(np.flatnonzero(labels == label))
        place[own] = (np.arange(len(own)) + generator.random()) / len(own)
    validates = np.zeros(len(examples), dtype=bool)
    validates[np.argsort(place, kind="stable")[: holdout_size(len(examples), share)]] = True
    return examples[~validates], examples[validates]
