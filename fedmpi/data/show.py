"""Shows the examples and classes of the clients, as a table and as a picture, for any number of clients.

The picture has two parts: which classes the clients have, and how many examples. Up to 60 clients
are one bar each; more are sorted by their most frequent class and drawn as a heat map of class
shares, in at most 500 columns, each the mean of neighbouring clients.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedmpi.data.partition import Partition
from fedmpi.data.subset import Ints

MAX_BARS = 60
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
        ("classes per client", _spread(_kinds(partition, labels, num_classes))),
        ("per class", _spread(np.bincount(labels[partition.indices], minlength=num_classes))),
    ]
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


def picture(partition: Partition, labels: Ints, num_classes: int, path: str | Path, title: str = "") -> None:
    """Writes the picture to `path`, whose ending says the format (.png, .pdf, .svg)."""
    # Loaded here: a second of imports that nothing else needs. No pyplot, which keeps figures and a backend globally.
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 6), layout="constrained")
    classes, sizes = figure.subplots(2, 1, height_ratios=[3, 1])
    draw_classes(classes, partition, labels, num_classes)
    if classes.get_legend_handles_labels()[0]:
        classes.legend(title="class", loc="center left", bbox_to_anchor=(1.0, 0.5), fontsize="small")
    edges = _edges(int(partition.sizes.min()), int(partition.sizes.max()))
    sizes.hist(partition.sizes, bins=edges, color="tab:gray")
    sizes.set(xlabel="examples of a client", ylabel="clients", xlim=(edges[0], edges[-1]))
    for axis in (classes.xaxis, classes.yaxis, sizes.xaxis, sizes.yaxis):
        axis.get_major_locator().set_params(integer=True, min_n_ticks=1)  # else it cuts 0 to 1 into fractions
    figure.suptitle(title)
    figure.savefig(path, dpi=120)


def draw_classes(axes: Any, partition: Partition, labels: Ints, num_classes: int) -> None:
    """Draws which classes the clients have: bars, which have labels for a legend, or a heat map of many clients."""
    if partition.num_clients <= MAX_BARS:
        _bars(axes, class_counts(partition, labels, num_classes))
    else:
        _heat_map(axes, partition, labels, num_classes)


def _edges(low: int, high: int) -> NDArray[np.float64]:
    """Returns about MAX_BARS bins of whole sizes or fewer, from 0 if `low` is near it, else from just below `low`."""
    begin = 0 if low <= high - low else low - 1
    step = -(-(high - begin + 1) // MAX_BARS)
    return np.arange(begin, high + step + 2, step, dtype=np.float64) - 0.5


def _bars(axes: Any, counts: Ints) -> None:
    """Draws one stacked bar for each client."""
    from matplotlib import colormaps

    num_clients, num_classes = counts.shape
    colors = colormaps["tab20" if 10 < num_classes <= 20 else "tab10" if num_classes <= 10 else "turbo"]
    bottom = np.zeros(num_clients)
    for label in range(num_classes):
        color = colors(label) if num_classes <= 20 else colors(label / (num_classes - 1))
        name = str(label) if num_classes <= 20 else None
        axes.bar(np.arange(num_clients), counts[:, label], bottom=bottom, color=color, width=0.9, label=name)
        bottom += counts[:, label]
    axes.set(xlabel="client", ylabel="examples by class", xlim=(-0.6, num_clients - 0.4))


def _heat_map(axes: Any, partition: Partition, labels: Ints, num_classes: int) -> None:
    """Draws the shares of the classes (rows) of the clients (columns), these sorted by most frequent class."""
    image = axes.imshow(
        sorted_shares(partition, labels, num_classes).T, aspect="auto", cmap="magma_r", vmin=0, interpolation="nearest"
    )
    axes.set(xlabel=f"{partition.num_clients:,} clients, sorted by their most frequent class", ylabel="class")
    axes.tick_params(bottom=False, labelbottom=False)
    axes.grid(False)
    axes.figure.colorbar(image, ax=axes, label="share of a client's examples")


def sorted_shares(partition: Partition, labels: Ints, num_classes: int) -> NDArray[np.float64]:
    """Returns (columns, classes), rows adding up to 1: class shares of neighbouring clients, averaged to MAX_COLUMNS.

    Clients are sorted by their most frequent class and, within it, by its share; those without examples are left out.
    Memory is as for the examples, whatever the number of clients.
    """
    cells, counts = np.unique(partition.owners * num_classes + labels[partition.indices], return_counts=True)
    owners, classes = np.divmod(cells, num_classes)
    shares = counts / partition.sizes[owners]
    by_share = np.lexsort((classes, -shares, owners))
    favourites = by_share[np.unique(owners, return_index=True)[1]]
    order = owners[favourites[np.lexsort((-shares[favourites], classes[favourites]))]]
    columns = np.arange(len(order)) * min(MAX_COLUMNS, len(order)) // len(order)
    column_of = np.zeros(partition.num_clients, dtype=np.int64)
    column_of[order] = columns
    sums = np.bincount(column_of[owners] * num_classes + classes, shares, (columns[-1] + 1) * num_classes)
    return sums.reshape(-1, num_classes) / np.bincount(columns)[:, None]
