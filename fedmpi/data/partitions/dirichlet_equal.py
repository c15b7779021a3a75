"""PriSM's partition: a class mixture for each client, equally many examples for all.

Source: Y. Niu et al., Overcoming Resource Constraints in Federated Learning (PriSM), arXiv:2208.13141, section 4, and
its code (data/common.py). Clients are served in order. Each draws its examples one by one from its class probabilities,
without replacement from the shuffled examples of each class. When a class runs out its probability becomes 0, the
others' grow by 1e-5, and all are renormalised; so a client whose own classes are gone continues what is left.

Differences from the source. Where the clients' number does not divide that of the examples, sizes
differ by one instead of leaving examples out. Client i of the round robin (`alpha` infinite) has
the examples i, i + n, i + 2 n, ... of those sorted by class, in file order within a class; where
`examples` asks for fewer than there are, of evenly spaced ones among them.
"""

from __future__ import annotations

import math
from typing import Annotated, TypeAlias

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from fedmpi.data.dataset import DataInfo, NumExamples
from fedmpi.data.partition import PartitionOptions, by_class, equal_sizes
from fedmpi.data.subset import Ints, runs
from fedmpi.seeds import numpy_generator

Floats: TypeAlias = NDArray[np.float64]
BLOCK_DRAWS = 16_384
EPSILON = 1e-5


class DirichletEqual(PartitionOptions):
    name: str = "dirichlet_equal"
    """Label skew as in PriSM: a class mixture per client, equal sizes."""
    alpha: Annotated[float, Field(gt=0)] = 1.0
    """Concentration of each class (`dirichlet` has that of all classes together); `.inf` deals the examples, sorted by
    class, to the clients in turn, so that all have the same mixture.
    """
    examples: NumExamples = 0
    """Examples of each client; 0 shares out the whole training set (sizes then differ by at most one)."""

    def smallest_client_examples(self) -> int:
        return self.examples or 1

    def mean_examples(self, info: DataInfo, num_clients: int) -> float:
        return self.examples or super().mean_examples(info, num_clients)

    def divide(self, labels: Ints, num_clients: int, seed: int, groups: Ints | None = None) -> tuple[Ints, Ints]:
        """`examples` for each client (0: equal shares of all), by q ~ Dir(alpha, ..., alpha) over the classes."""
        total = self.examples * num_clients or len(labels)
        sizes = equal_sizes(total, num_clients)
        if math.isinf(self.alpha):
            return _round_robin(labels, sizes)
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
    """The classes of `sizes` (clients,) examples, client after client, each drawn by its client's row of `mixtures`.

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
    """How many of `classes` can be served until one of them has run out, or all of them."""
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


def _round_robin(labels: Ints, sizes: Ints) -> tuple[Ints, Ints]:
    """The examples sorted by class, all or evenly spaced ones of them, dealt to the clients in turn."""
    num_clients, total = len(sizes), int(sizes.sum())
    sorted_by_class = by_class(np.arange(len(labels)), labels)[0]
    dealt = sorted_by_class[np.arange(total) * len(labels) // total]
    turn = np.arange(sizes.max() * num_clients).reshape(-1, num_clients).T
    in_use = turn < total
    return dealt[turn[in_use]], in_use.sum(axis=1)
