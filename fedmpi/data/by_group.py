"""The natural partition: a client is a writer, a subject, a role, or several of them (LEAF, arXiv:1812.01097).

Which groups become clients, and in which order, is drawn: files list writers by where they come
from, and tiers are blocks of client numbers, so file order would tie capacity to kinds of people.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fedmpi.data.partition_options import Natural
from fedmpi.data.splits import runs
from fedmpi.errors import ConfigError
from fedmpi.seeds import numpy_generator

Ints = NDArray[np.int64]


def natural(
    options: Natural, labels: Ints, num_clients: int, seed: int, groups: Ints | None = None
) -> tuple[Ints, Ints]:
    """All examples of `groups_per_client` groups for each client; groups that are not needed belong to nobody.

    `groups` int64 (N,), of 0 .. G - 1. A client's examples stand group after group, in file order.
    """
    if groups is None:
        raise ConfigError(f"partition.name={options.name}", "nobody knows whose these examples are; take another one")
    group_sizes = np.bincount(groups)
    large_enough = np.flatnonzero(group_sizes >= options.min_examples)
    needed = num_clients * options.groups_per_client
    if needed > len(large_enough):
        raise ConfigError(
            f"partition.name={options.name}",
            f"{num_clients} clients need {needed} groups with {options.min_examples} or more examples, "
            f"but there are {len(large_enough)}; allowed: at most "
            f"{len(large_enough) // options.groups_per_client} clients",
        )
    chosen = numpy_generator("partition", seed).permutation(large_enough)[:needed]
    by_group = np.argsort(groups, kind="stable")
    starts, lengths = (np.cumsum(group_sizes) - group_sizes)[chosen], group_sizes[chosen]
    return by_group[runs(starts, lengths)], lengths.reshape(num_clients, -1).sum(axis=1)
