"""Which client holds which training examples: made once from the seed, saved with the run.

Stored as one array of example numbers and the offsets of the clients in it, so a million clients
are two arrays, not a million.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fedmpi.data.dealing import Ints, PartitionOptions
from fedmpi.disk import hdf5
from fedmpi.errors import ConfigError, DataError, reason

KIND = "partition"


@dataclass(frozen=True)
class Partition:
    """Client i holds the examples indices[offsets[i]:offsets[i + 1]].

    `indices` int64 (examples in use,), each at most once; `offsets` int64 (clients + 1,). Both
    are made read-only.
    """

    indices: Ints
    offsets: Ints

    def __post_init__(self) -> None:
        self.indices.flags.writeable = False
        self.offsets.flags.writeable = False

    @property
    def num_clients(self) -> int:
        return len(self.offsets) - 1

    @property
    def sizes(self) -> Ints:
        """Examples per client, int64 (clients,)."""
        return np.diff(self.offsets)

    def size(self, client: int) -> int:
        """How many examples one client has."""
        return int(self.offsets[client + 1] - self.offsets[client])

    def client(self, client: int) -> Ints:
        """Numbers of the examples of one client, a read-only view."""
        return self.indices[self.offsets[client] : self.offsets[client + 1]]

    @property
    def owners(self) -> Ints:
        """Which client has each of `indices`."""
        return np.repeat(np.arange(self.num_clients), self.sizes)

    def packed(self, data_digest: str = "") -> memoryview:
        """The bytes of an HDF5 file that `saved` reads; `data_digest` is that of the data set that it divides."""
        attributes = {"data_digest": data_digest} if data_digest else {}
        return hdf5.pack(KIND, attributes, {"indices": self.indices, "offsets": self.offsets})

    @classmethod
    def of(cls, examples: Ints, sizes: Ints) -> Partition:
        """The clients' examples, one client after the other, `sizes` (clients,) of them each."""
        return cls(examples.astype(np.int64), np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64))


def saved(path: Path) -> tuple[Partition, str]:
    """A partition that was `packed`, and the digest of its data set; empty in a file that has none.

    Raises DataError if it is anything else.
    """
    try:
        with hdf5.opened(path, KIND) as file:
            arrays = {name: file.array(name) for name in file.entries}
            digest = str(file.attributes.get("data_digest", ""))
    except (hdf5.Damaged, OSError) as error:
        raise DataError(str(path), f"{reason(error)}; remove it, and a resume makes it again") from error
    if arrays.keys() != {"indices", "offsets"} or not _is_csr(**arrays):
        raise DataError(str(path), "does not hold a partition")
    return Partition(**arrays), digest


def _is_csr(indices: Ints, offsets: Ints) -> bool:
    return bool(
        indices.dtype == offsets.dtype == np.int64
        and indices.ndim == offsets.ndim == 1
        and len(offsets) >= 1
        and offsets[0] == 0
        and offsets[-1] == len(indices)
        and (offsets[:-1] <= offsets[1:]).all()  # differences could overflow
    )


def make_partition(
    options: PartitionOptions, labels: Ints, num_clients: int, seed: int, groups: Ints | None = None
) -> Partition:
    """Divide the examples with `labels`, int64 (N,), among clients; a pure function of its arguments.

    `groups`, int64 (N,), says whose each example is; only a partition by groups needs it. Raises
    ConfigError if the options cannot be met (too many clients, a minimum size never reached).
    """
    if problem := options.too_many(len(labels), num_clients):
        raise ConfigError(f"partition.name={options.name}", f"{problem} clients")
    indices, sizes = options.divide(np.asarray(labels), num_clients, seed, groups if options.by_groups else None)
    return Partition.of(indices, sizes)


def present_labels(labels: Ints, indices: Ints, num_classes: int) -> NDArray[np.bool_]:
    """bool (num_classes,): which classes occur among the examples `indices` of `labels`, int64 (N,)."""
    return np.bincount(labels[indices], minlength=num_classes) > 0
