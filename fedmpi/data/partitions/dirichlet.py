"""Skew by Dirichlet draws: of each client's class mixture, of each class over the clients, of the sizes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from fedmpi.config.fields import Positive
from fedmpi.data.partition import MAX_DRAWS, PartitionOptions, by_class, equal_sizes, take
from fedmpi.data.subset import Ints, firsts
from fedmpi.errors import ConfigError
from fedmpi.seeds import numpy_generator

if TYPE_CHECKING:
    from fedmpi.data.dataset import DataInfo

BLOCK_CLIENTS = 4096


class Dirichlet(PartitionOptions):
    """T.-M. H. Hsu, H. Qi, M. Brown, Measuring the Effects of Non-Identical Data Distribution, arXiv:1909.06335, 3.1.

    Differences: every example is used, so sizes may differ by one. Clients are served in blocks of 4,096: within a
    block all first choices are served before any second ones (the paper leaves the order open; served one by one, the
    last clients would get mere left-overs).
    """

    by_classes = True
    has_equal_sizes = True
    name: str = "dirichlet"
    """Label skew of Hsu et al. 2019: a Dirichlet class mixture per client; equal sizes."""
    alpha: Positive = 0.5
    """Concentration, in all, not per class; 100 is close to IID, 0.01 close to one class per client."""

    def divide(self, labels: Ints, num_clients: int, seed: int, groups: Ints | None = None) -> tuple[Ints, Ints]:
        """Draws q ~ Dir(alpha * prior) for each client, then equally many examples by q without replacement.

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
    """Returns int64 (clients, classes): how many examples of each class each client gets out of `left` (classes,)."""
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


class ClassDirichlet(PartitionOptions):
    """M. Yurochkin et al., Bayesian Nonparametric Federated Learning of Neural Networks, ICML 2019, section 4."""

    least_examples = 2
    by_classes = True
    name: str = "class_dirichlet"
    """Each class divided among clients by a Dirichlet: uneven labels, sizes."""
    alpha: Positive = 0.5
    """Concentration of each class over clients; small means strong skew of labels and of sizes."""

    def divide(self, labels: Ints, num_clients: int, seed: int, groups: Ints | None = None) -> tuple[Ints, Ints]:
        """Splits each class at floor(cumsum(q) n_c), q ~ Dir(alpha), and draws again until no client is too small."""
        class_sizes = np.unique(labels, return_counts=True)[1]
        for attempt in range(MAX_DRAWS):
            generator = numpy_generator("partition", seed, attempt)
            counts = np.stack([_cut(self.alpha, n, num_clients, generator) for n in class_sizes], axis=1)
            if counts.sum(axis=1).min() >= self.least_examples:
                pool, _ = by_class(generator.permutation(len(labels)), labels)
                return take(pool, firsts(class_sizes), counts), counts.sum(axis=1)
        found = f"no draw of {MAX_DRAWS} gave each of {num_clients} clients {self.least_examples} examples"
        todo = f"raise partition.alpha (now {self.alpha:g}) or lower clients.count"
        raise ConfigError(f"partition.name={self.name}", f"{found}; {todo}")


class QuantitySkew(PartitionOptions):
    """Q. Li et al., Federated Learning on Non-IID Data Silos, ICDE 2022, arXiv:2102.02079, section IV-C.

    Difference: every client's minimum is set apart before the draw; the paper's code draws until all have it.
    """

    least_examples = 2
    name: str = "quantity_skew"
    """Sizes by a Dirichlet draw, classes at random."""
    alpha: Positive = 0.5
    """Concentration (the paper's beta); small means that few clients have most of the examples."""

    def divide(self, labels: Ints, num_clients: int, seed: int, groups: Ints | None = None) -> tuple[Ints, Ints]:
        """Shuffles; gives each client two examples and floor differences of cumsum(q) of the rest, q ~ Dir(alpha)."""
        generator = numpy_generator("partition", seed)
        order = generator.permutation(len(labels))
        rest = _cut(self.alpha, len(labels) - num_clients * self.least_examples, num_clients, generator)
        return order, rest + self.least_examples

    def sizes_without_data(self, info: DataInfo, num_clients: int, seed: int) -> Ints:
        return self.divide(np.zeros(info.num_train, np.int64), num_clients, seed)[1]


def _cut(alpha: float, num_examples: int, num_clients: int, generator: np.random.Generator) -> Ints:
    """Returns int64 (clients,): `num_examples` cut at floor(cumsum(q) num_examples), q ~ Dir(alpha) over clients."""
    q = generator.dirichlet(np.full(num_clients, alpha))
    cuts = np.floor(np.cumsum(q[:-1]) * num_examples).astype(np.int64)
    return np.diff(cuts.clip(0, num_examples), prepend=0, append=num_examples)
