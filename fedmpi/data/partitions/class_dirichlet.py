"""Each class divided among the clients by a Dirichlet draw: M. Yurochkin et al., ICML 2019."""

from __future__ import annotations

import numpy as np

from fedmpi.config.fields import Count, Positive
from fedmpi.data.partition import MAX_DRAWS, PartitionOptions, by_class, class_counts, take
from fedmpi.data.subset import Ints, firsts
from fedmpi.errors import ConfigError
from fedmpi.seeds import numpy_generator


class ClassDirichlet(PartitionOptions):
    """M. Yurochkin et al., Bayesian Nonparametric Federated Learning of Neural Networks, ICML 2019, section 4."""

    name: str = "class_dirichlet"
    """Each class divided among clients by a Dirichlet: uneven labels, sizes."""
    alpha: Positive = 0.5
    """Concentration of each class over clients; small means strong skew of labels and of sizes."""
    min_size: Count = 2
    """The fewest examples a client may hold; the whole draw is repeated until all have them."""

    def divide(self, labels: Ints, num_clients: int, seed: int, groups: Ints | None = None) -> tuple[Ints, Ints]:
        """Each class is split at floor(cumsum(q) n_c), q ~ Dir(alpha) over the clients; all examples are used.

        Repeated with the seed's next stream until the smallest client has `min_size` examples.
        """
        class_sizes = np.unique(labels, return_counts=True)[1]
        for attempt in range(MAX_DRAWS):
            generator = numpy_generator("partition", seed, attempt)
            counts = np.stack([class_counts(self.alpha, n, num_clients, generator) for n in class_sizes], axis=1)
            if counts.sum(axis=1).min() >= self.min_size:
                pool, _ = by_class(generator.permutation(len(labels)), labels)
                return take(pool, firsts(class_sizes), counts), counts.sum(axis=1)
        found = f"no draw of {MAX_DRAWS} gave each of {num_clients} clients {self.min_size} examples"
        todo = f"raise partition.alpha (now {self.alpha:g}), or lower partition.min_size or clients.count"
        raise ConfigError(f"partition.name={self.name}", f"{found}; {todo}")
