"""PriSM's partition: a class mixture for each client, equally many examples for all.

Source: Y. Niu et al., Overcoming Resource Constraints in Federated Learning (PriSM), arXiv:2208.13141, section 4, and
its code (data/common.py). Clients are served in order. Each draws its examples one by one from its class probabilities,
without replacement from the shuffled examples of each class. When a class runs out its probability becomes 0, the
others' grow by 1e-5, and all are renormalised; so a client whose own classes are gone continues what is left.

Difference: where the clients' number does not divide that of the examples, sizes differ by one.
"""

from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from fedmpi.config.fields import Positive
from fedmpi.data.partition import PartitionOptions, by_class, equal_sizes
from fedmpi.data.subset import Ints, runs
from fedmpi.seeds import numpy_generator

Floats: TypeAlias = NDArray[np.float64]
BLOCK_DRAWS = 16_384
EPSILON = 1e-5


class DirichletEqual(PartitionOptions):
    by_classes = True
    has_equal_sizes = True
    name: str = "dirichlet_equal"
    """Label skew as in PriSM: a class mixture per client, equal sizes."""
    alpha: Positive = 1.0
    """Concentration of each class (`dirichlet` has that of all classes together)."""

    def divide(self, labels: Ints, num_clients: int, seed: int, groups: Ints | None = None) -> tuple[Ints, Ints]:
        """Divides all examples into equal shares, by q ~ Dir(alpha, ..., alpha) over the classes."""
        sizes = equal_sizes(len(labels), num_clients)
        generator = numpy_generator("partition", seed)
        pool, class_sizes = by_class(generator.permutation(len(labels)), labels)
        ends, left, drawn = np.cumsum(class_sizes), class_sizes.copy(), []
        step = max(1, BLOCK_DRAWS // int(sizes.max()))
        for first in range(0, num_clients, step):
            own = sizes[first : first + step]
            classes = _draw(generator.dirichlet(np.full(len(left), self.alpha), len(own)), own, left, generator)
            by_label, counts = np.argsort(classes, kind="stable"), np.bincount(classes, minlength=len(left))
            examples = np.empty(len(classes), dtype=np.int64)
            examples[by_label] = pool[runs(ends - left, counts)]
            drawn.append(examples)
            left -= counts
        return np.concatenate(drawn), sizes


def _draw(mixtures: Floats, sizes: Ints, left: Ints, generator: np.random.Generator) -> Ints:
    """Draws the classes of `sizes` (clients,) examples, client after client, by each client's row of `mixtures`.

    `left` says how many examples of each class there are. All that are still needed are drawn at once, and those after
    the draw that empties a class are drawn anew: the same distribution as one by one, in at most `classes` steps.
    """
    left, need, taken = left.copy(), sizes.copy(), []
    q = _without_empty(mixtures, left)
    while True:
        owners, edges = np.repeat(np.arange(len(need)), need), np.cumsum(q, axis=1)
        edges /= edges[:, -1:]
        classes = (generator.random(len(owners))[:, None] >= edges[owners]).sum(axis=1)
        stop = _first_emptied(classes, left)
        taken.append(classes[:stop])
        if stop == len(owners):
            return np.concatenate(taken)
        left -= np.bincount(classes[:stop], minlength=len(left))
        now = owners[stop - 1]
        need[:now] = 0
        need[now] -= np.count_nonzero(owners[:stop] == now)
        current = _without_empty(q[now], left)
        q = _without_empty(mixtures, left)
        q[now] = current


def _first_emptied(classes: Ints, left: Ints) -> int:
    """Returns how many of `classes` can be served until one of them has run out; else all of them."""
    counts = np.bincount(classes, minlength=len(left))
    emptied = np.flatnonzero((counts >= left) & (counts > 0))
    return min((1 + int(np.flatnonzero(classes == label)[left[label] - 1]) for label in emptied), default=len(classes))


def _without_empty(q: Floats, left: Ints) -> Floats:
    """PriSM's rule for classes that have run out; `q` (..., classes)."""
    if left.all():
        return q.copy()
    kept: Floats = np.where(left > 0, q + EPSILON, 0.0)
    kept /= kept.sum(axis=-1, keepdims=True)
    return kept
