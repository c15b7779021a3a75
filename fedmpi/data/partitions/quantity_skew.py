"""Skew of sizes alone: Q. Li et al., Federated Learning on Non-IID Data Silos, ICDE 2022, arXiv:2102.02079, IV-C.

Difference from the source: every client's minimum is set apart before the draw; the paper's code draws anew until no
client is below it, which for a hundred clients would take for ever.
"""

from __future__ import annotations

from fedmpi.config.fields import Count, Positive
from fedmpi.data.partition import PartitionOptions, class_counts
from fedmpi.data.subset import Ints
from fedmpi.seeds import numpy_generator


class QuantitySkew(PartitionOptions):
    name: str = "quantity_skew"
    """Sizes by a Dirichlet draw, classes at random."""
    alpha: Positive = 0.5
    """Concentration (the paper's beta); small means that few clients have most of the examples."""
    min_size: Count = 2
    """The fewest examples a client may hold: every client is given these, and the draw shares out the rest."""

    def divide(self, labels: Ints, num_clients: int, seed: int, groups: Ints | None = None) -> tuple[Ints, Ints]:
        """Shuffled; each client has `min_size` and floor differences of cumsum(q) of the rest, q ~ Dir(alpha)."""
        generator = numpy_generator("partition", seed)
        order = generator.permutation(len(labels))
        rest = class_counts(self.alpha, len(labels) - num_clients * self.min_size, num_clients, generator)
        return order, rest + self.min_size
