"""FedHM's IID setting: slices of the training set in file order.

Source: FedHM's code (pcode/datasets/partition_data.py, derived from T. Lin et al., FedDF, arXiv:2006.07242).
Difference: every example is used; where the clients' number does not divide that of the examples, sizes differ by one.
"""

from __future__ import annotations

import numpy as np

from fedmpi.data.partition import PartitionOptions, equal_sizes
from fedmpi.data.subset import Ints
from fedmpi.seeds import numpy_generator


class Iid(PartitionOptions):
    name: str = "iid"
    """Contiguous slices of equal size, in file order or shuffled."""
    shuffle: bool = False
    """Shuffle first (needed where the files are sorted by class)."""

    def divide(self, labels: Ints, num_clients: int, seed: int, groups: Ints | None = None) -> tuple[Ints, Ints]:
        """Contiguous slices, in order or shuffled; client i has the examples floor(i N / n) .. floor((i + 1) N / n)."""
        order = np.arange(len(labels))
        if self.shuffle:
            order = numpy_generator("partition", seed).permutation(order)
        return order, equal_sizes(len(labels), num_clients)
