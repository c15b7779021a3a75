"""The division of the training examples among clients: its options, and the result, which is saved with the run."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from fedmpi.config.fields import Section
from fedmpi.data.subset import Ints, runs
from fedmpi.errors import ConfigError, DataError, RunDirError, counted

if TYPE_CHECKING:
    from fedmpi.config.schema import Config
    from fedmpi.data.dataset import DataInfo

KIND = "partition"
MAX_COLUMNS = 500
Problems = Iterator[tuple[str, str]]


class PartitionOptions(Section):
    """The options that all partitions share: no client may be left without examples."""

    by_groups: ClassVar[bool] = False
    """True if it goes by whose the examples are (writer, subject, role)."""
    by_classes: ClassVar[bool] = False
    """True if it needs targets that are classes."""
    has_equal_sizes: ClassVar[bool] = False
    """True if the clients' sizes differ by one at most."""
    least_examples: ClassVar[int] = 1
    name: str

    def smallest_client_examples(self) -> int:
        """Returns the fewest examples a client may hold."""
        return self.least_examples

    def mean_examples(self, info: DataInfo, num_clients: int) -> float:
        """Returns the mean over clients of the examples of one, as far as it is known without the data."""
        return info.num_train / num_clients

    def sizes_without_data(self, info: DataInfo, num_clients: int, seed: int) -> Ints | None:
        """Returns how many examples each client has, int64 (clients,), or None where only the data say it."""
        return equal_sizes(info.num_train, num_clients) if self.has_equal_sizes else None

    def problems(self, config: Config) -> Problems:
        if problem := self.too_many(config.data.used().num_train, config.clients.count):
            yield "clients.count", problem

    def too_many(self, num_examples: int, num_clients: int) -> str:
        """Returns what is wrong where the clients cannot each get their smallest number of examples, else ''."""
        least = self.smallest_client_examples()
        if num_clients <= num_examples // least:
            return ""
        missing = f"{num_clients} clients cannot each get {least} or more of {num_examples} training examples"
        return f"{missing}; allowed: at most {num_examples // least}"

    def divide(self, labels: Ints, num_clients: int, seed: int, groups: Ints | None = None) -> tuple[Ints, Ints]:
        """Returns the examples' numbers, client after client, int64, and the clients' sizes, int64 (num_clients,).

        A pure function of the targets `labels` (classes int64 (N,), or float32 (N, outputs)), of the seed and, with
        `by_groups`, of `groups`, int64 (N,). Raises ConfigError if the options cannot be met.
        """
        raise NotImplementedError


@dataclass(frozen=True)
class Partition:
    """Client i holds the examples indices[offsets[i]:offsets[i + 1]]; a million clients are two arrays.

    `indices` int64 (examples in use,), each at most once; `offsets` int64 (clients + 1,). Both are made read-only.
    """

    indices: Ints
    offsets: Ints

    def __post_init__(self) -> None:
        self.indices.flags.writeable = False
        self.offsets.flags.writeable = False

    def __repr__(self) -> str:
        sizes = f"{self.sizes.min(initial=len(self.indices))} to {self.sizes.max(initial=0)}"
        return f"{type(self).__name__}({counted(self.num_clients, 'client')} with {sizes} examples each)"

    @property
    def num_clients(self) -> int:
        return len(self.offsets) - 1

    @property
    def sizes(self) -> Ints:
        """Examples per client, int64 (clients,)."""
        return np.diff(self.offsets)

    def client(self, client: int) -> Ints:
        """Returns the numbers of the examples of one client, a read-only view."""
        return self.indices[self.offsets[client] : self.offsets[client + 1]]

    @property
    def owners(self) -> Ints:
        """Returns the client that has each of `indices`."""
        return np.repeat(np.arange(self.num_clients), self.sizes)

    def packed(self, data_digest: str) -> memoryview:
        """Returns the bytes of an HDF5 file that `saved` reads; `data_digest` is that of the data set it divides."""
        from fedmpi.store import hdf5

        return hdf5.pack(KIND, {"data_digest": data_digest}, {"indices": self.indices, "offsets": self.offsets})

    @classmethod
    def of(cls, examples: Ints, sizes: Ints) -> Partition:
        """Makes a partition of the clients' examples, one client after the other, `sizes` (clients,) of them each."""
        return cls(examples.astype(np.int64), np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64))


def saved(path: Path) -> tuple[Partition, str]:
    """Reads a partition that was `packed`, and the digest of its data set. Raises DataError."""
    from fedmpi.store import hdf5

    try:
        attributes, arrays = hdf5.read(path, KIND)
    except RunDirError as error:
        raise DataError(str(path), f"{error.problems[0]}; remove it, and a resume makes it again") from error
    return Partition(**arrays), str(attributes["data_digest"])


def make_partition(
    options: PartitionOptions, labels: NDArray[Any], num_clients: int, seed: int, groups: Ints | None = None
) -> Partition:
    """Divides the examples with the targets `labels`, (N, ...), among clients; a pure function of its arguments.

    `groups`, int64 (N,), says whose each example is. Raises ConfigError if the options cannot be met, and DataError for
    examples that are not there or that go to two clients.
    """
    where = f"partition.name={options.name}"
    if problem := options.too_many(len(labels), num_clients):
        raise ConfigError(where, f"{problem} clients")
    indices, sizes = options.divide(np.asarray(labels), num_clients, seed, groups if options.by_groups else None)
    if indices.min() < 0 or indices.max() >= len(labels):
        found = f"{indices.min()} to {indices.max()}"
        raise DataError(where, f"gave the examples {found}; there are 0 to {len(labels) - 1}")
    times = np.bincount(indices)
    if times.max() > 1:
        raise DataError(where, f"gave the example {times.argmax()} to more than one client, or twice to one")
    return Partition.of(indices, sizes)


def present_labels(labels: Ints, indices: Ints, num_classes: int) -> NDArray[np.bool_]:
    """Returns bool (num_classes,): which classes occur among the examples `indices` of `labels`, int64 (N,)."""
    return np.bincount(labels[indices], minlength=num_classes) > 0


def equal_sizes(num_examples: int, num_clients: int) -> Ints:
    """Returns sizes that differ by at most one and add up to `num_examples`."""
    return np.diff(np.arange(num_clients + 1, dtype=np.int64) * num_examples // num_clients)


def by_class(examples: Ints, labels: Ints) -> tuple[Ints, Ints]:
    """Sorts `examples` by class, otherwise in the given order; returns also the sizes of the classes that occur."""
    own = labels[examples]
    return examples[np.argsort(own, kind="stable")], np.unique(own, return_counts=True)[1]


def take(pool: Ints, starts: Ints, counts: Ints) -> Ints:
    """Takes `counts` (clients, classes) examples, client after client, class c from pool[starts[c]] on."""
    begins = starts + np.cumsum(counts, axis=0) - counts
    return pool[runs(begins.ravel(), counts.ravel())]


def class_counts(partition: Partition, labels: Ints, num_classes: int) -> Ints:
    """Returns int64 (clients, classes): how many examples of each class the clients have."""
    cells = partition.owners * num_classes + labels[partition.indices]
    return np.bincount(cells, minlength=partition.num_clients * num_classes).reshape(-1, num_classes)


def draw_classes(axes: Any, partition: Partition, labels: Ints, num_classes: int) -> None:
    """Draws a heat map of the clients' class shares, for any number of clients."""
    shares = sorted_shares(class_counts(partition, labels, num_classes))
    image = axes.imshow(shares.T, aspect="auto", cmap="magma_r", vmin=0, interpolation="nearest")
    some = f"{len(shares):,} of " if len(shares) < partition.num_clients else ""
    axes.set(xlabel=f"{some}{partition.num_clients:,} clients, by most frequent class", ylabel="class", xticks=[])
    axes.yaxis.get_major_locator().set_params(integer=True, min_n_ticks=1)
    axes.figure.colorbar(image, ax=axes, label="share of a client's examples")


def sorted_shares(counts: Ints) -> NDArray[np.float64]:
    """Returns the class shares (clients, classes) of clients with these counts, at most MAX_COLUMNS of them,
    evenly spaced among all when sorted by most frequent class and its share; clients without examples are left out."""
    counts = counts[counts.any(axis=1)]
    shares = counts / counts.sum(axis=1, keepdims=True)
    order = np.lexsort((-shares.max(axis=1), counts.argmax(axis=1)))
    chosen = np.linspace(0, len(order) - 1, min(MAX_COLUMNS, len(order))).astype(np.int64)
    return shares[order[chosen]]
