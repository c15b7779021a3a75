"""Label skew by a class mixture for each client, equal sizes.

Source: T.-M. H. Hsu, H. Qi, M. Brown, Measuring the Effects of Non-Identical Data Distribution, arXiv:1909.06335,
section 3.1. Differences: every example is used; where the number of clients does not divide that of the examples, sizes
differ by one. Clients are served in blocks of 4,096: within a block every client's first choices are served before any
second choices (the paper leaves the order open; served one by one, the last clients would get mere left-overs).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fedmpi.config.fields import Count, Positive
from fedmpi.data.partition import PartitionOptions, by_class, equal_sizes, take
from fedmpi.data.subset import Ints, firsts
from fedmpi.seeds import numpy_generator

BLOCK_CLIENTS = 4096


class Dirichlet(PartitionOptions):
    name: str = "dirichlet"
    """Label skew of Hsu et al. 2019: a Dirichlet class mixture per client; equal sizes."""
    alpha: Positive = 0.5
    """Concentration, in all, not per class; 100 is close to IID, 0.01 close to one class per client."""
    min_size: Count = 1
    """The fewest examples a client may hold; sizes are equal, so this only refuses too many clients."""

    def divide(self, labels: Ints, num_clients: int, seed: int, groups: Ints | None = None) -> tuple[Ints, Ints]:
        """Hsu et al.: per client q ~ Dir(alpha * prior), then equally many examples by q without replacement.

        `prior` is the share of each class in `labels`. A class that runs out leaves q, which is
        renormalised; a client whose q has nothing left draws by what is left. Every example is used.
        """
        generator = numpy_generator("partition", seed)
        pool, class_sizes = by_class(generator.permutation(len(labels)), labels)
        concentration = self.alpha * class_sizes / len(labels)
        left, sizes, blocks = class_sizes.copy(), equal_sizes(len(labels), num_clients), []
        for start in range(0, num_clients, BLOCK_CLIENTS):
            used = class_sizes - left
            counts = _serve(sizes[start : start + BLOCK_CLIENTS], left, concentration, generator)
            blocks.append(take(pool, firsts(class_sizes) + used, counts))
            left -= counts.sum(axis=0)
        return np.concatenate(blocks), sizes


def _serve(sizes: Ints, left: Ints, concentration: NDArray[np.float64], generator: np.random.Generator) -> Ints:
    """int64 (clients, classes): how many examples of each class each client gets out of `left` (classes,)."""
    left, need = left.copy(), sizes.copy()
    counts = np.zeros((len(sizes), len(left)), dtype=np.int64)
    q = generator.dirichlet(concentration, len(sizes))
    while need.any():
        # One draw and a refusal of what has run out equals drawing one by one with renormalised q.
        q = np.where(left > 0, q, 0.0)
        q[q.sum(axis=1) == 0] = left / left.sum()
        wanted = generator.multinomial(need, q / q.sum(axis=1, keepdims=True))
        given = np.clip(left - (np.cumsum(wanted, axis=0) - wanted), 0, wanted)
        counts += given
        need -= given.sum(axis=1)
        left -= given.sum(axis=0)
    return counts
