"""Shows the examples and classes of the clients, as a table and as a heat map, for any number of clients."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedmpi.data.partition import Partition
from fedmpi.data.subset import Ints

MAX_COLUMNS = 500


def class_counts(partition: Partition, labels: Ints, num_classes: int) -> Ints:
    """Returns int64 (clients, classes): how many examples of each class the clients have."""
    cells = partition.owners * num_classes + labels[partition.indices]
    return np.bincount(cells, minlength=partition.num_clients * num_classes).reshape(-1, num_classes)


def table(partition: Partition, labels: Ints, num_classes: int, groups: Ints | None = None) -> str:
    """Returns a few lines of text: examples in use, clients, sizes, classes for each client, of each class, groups."""
    sizes = partition.sizes
    rows = [
        ("clients", f"{partition.num_clients:,}"),
        ("examples", f"{len(partition.indices):,} of {len(labels):,} in use"),
        ("per client", _spread(sizes)),
    ]
    if num_classes > 1:
        rows.append(("classes per client", _spread(_kinds(partition, labels, num_classes))))
        rows.append(("per class", _spread(np.bincount(labels[partition.indices], minlength=num_classes))))
    if groups is not None:
        num_groups = int(groups.max()) + 1
        in_use = len(np.unique(groups[partition.indices]))
        rows.append(("groups", f"{in_use:,} of {num_groups:,} in use"))
        rows.append(("groups per client", _spread(_kinds(partition, groups, num_groups))))
    return "\n".join(f"{name:18}  {text}" for name, text in rows)


def _kinds(partition: Partition, numbers: Ints, num_numbers: int) -> Ints:
    """Returns how many different `numbers` each client has, in memory as for the examples."""
    pairs = np.unique(partition.owners * num_numbers + numbers[partition.indices])
    return np.bincount(pairs // num_numbers, minlength=partition.num_clients)


def _spread(values: Ints) -> str:
    low, middle, high = int(values.min()), float(np.median(values)), int(values.max())
    return f"{low:,}" if low == high else f"{low:,} to {high:,}, median {middle:,.10g}"


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
