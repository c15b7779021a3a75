"""Partitions that deal out shards, runs of examples of one class: HeteroFL's and LotteryFL's.

Sources: `shards` is the setting "non-iid-n" of E. Diao et al., HeteroFL, arXiv:2010.01264, as its
code makes it (src/data.py); `lottery` is A. Li et al., LotteryFL, arXiv:2008.03371, section 5.1,
which Hermes uses, too. Both take the examples of a class in file order.

Differences from the sources. `shards`: n clients' shards need not be a multiple of the number of
classes, some classes then have one shard more; a class's left-over examples lengthen its first
shards where they stand instead of being appended from its end. `lottery`: a client's classes are
distinct, as both papers say (the code lets two shards be of one class), and no shard reaches over
from one class into the next; which of a client's classes is the first one, and whole, is drawn.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fedmpi.data.partition_options import Lottery, Shards
from fedmpi.data.splits import by_class, equal_sizes, refuse_small, runs
from fedmpi.errors import ConfigError
from fedmpi.seeds import numpy_generator

Ints = NDArray[np.int64]
MAX_BLOCK = 65_536


def shards(options: Shards, labels: Ints, num_clients: int, seed: int) -> tuple[Ints, Ints]:
    """Deals a shuffled deck of labels, as many of each class as it has shards; a client drops a label it has already.

    For each label that it keeps it gets one of that class's shards at random. So it has n classes or fewer, and the
    shards of the dropped labels belong to nobody.
    """
    refuse_small(options.name, len(labels), num_clients, options.shards_per_client)
    generator = numpy_generator("partition", seed)
    pool, class_sizes = by_class(np.arange(len(labels)), labels)
    num_shards = equal_sizes(num_clients * options.shards_per_client, len(class_sizes))
    if (num_shards > class_sizes).any() or not num_shards.all():
        raise ConfigError(
            f"partition.name={options.name}",
            f"classes of {class_sizes.min()} to {class_sizes.max()} examples cannot be cut into "
            f"{num_shards.min()} to {num_shards.max()} shards each; change partition.shards_per_client "
            f"(now {options.shards_per_client}) or clients.count (now {num_clients})",
        )
    deck = generator.permutation(np.repeat(np.arange(len(class_sizes)), num_shards))
    dealt = np.sort(deck.reshape(num_clients, -1), axis=1)
    kept = np.ones(dealt.shape, dtype=bool)
    kept[:, 1:] = dealt[:, 1:] != dealt[:, :-1]
    classes = dealt[kept]
    number = _any_shards(classes, num_shards, generator)
    length, longer = class_sizes // num_shards, class_sizes % num_shards
    starts = _firsts(class_sizes)[classes] + number * length[classes] + np.minimum(number, longer[classes])
    lengths = length[classes] + (number < longer[classes])
    client = np.repeat(np.arange(num_clients), kept.sum(axis=1))
    sizes = np.zeros(num_clients, dtype=np.int64)
    np.add.at(sizes, client, lengths)
    return pool[runs(starts, lengths)], sizes


def lottery(options: Lottery, labels: Ints, num_clients: int, seed: int) -> tuple[Ints, Ints]:
    """Each client's distinct classes are drawn by how many shards of `samples` examples are left of each class.

    The shard of its first class is taken whole, of the others floor(balance * samples) examples.
    """
    generator = numpy_generator("partition", seed)
    pool, class_sizes = by_class(np.arange(len(labels)), labels)
    num_shards = class_sizes // options.samples
    usable = np.minimum(num_shards, num_clients)
    needed = num_clients * options.classes_per_client
    if usable.sum() < needed:
        raise ConfigError(
            f"partition.name={options.name}",
            f"{num_clients} clients need {needed} shards of {options.samples} examples, of "
            f"{options.classes_per_client} distinct classes each, but the data give {usable.sum()}; "
            "lower clients.count, partition.samples or partition.classes_per_client",
        )
    used = generator.multivariate_hypergeometric(usable, needed)
    classes = _distinct_classes(used, num_clients, options.classes_per_client, generator).ravel()
    number = _any_shards(classes, num_shards, generator)
    lengths = np.tile(np.array(options.class_samples()), num_clients)
    starts = _firsts(class_sizes)[classes] + number * options.samples
    return pool[runs(starts, lengths)], lengths.reshape(num_clients, -1).sum(axis=1)


def _distinct_classes(used: Ints, num_clients: int, per_client: int, generator: np.random.Generator) -> Ints:
    """int64 (clients, per_client): distinct classes in each row, class c `used[c]` times in all.

    Clients draw without replacement, by what is left of each class. A class of which as many shards are left as
    clients is everybody's: so nobody finds too few classes at the end. Clients draw in blocks, by what is left when
    their block begins, so small that no class runs out or becomes everybody's within a block.
    """
    left = used.copy()
    classes = np.empty((num_clients, per_client), dtype=np.int64)
    first = 0
    while first < num_clients:
        clients_left = num_clients - first
        open_ones = np.minimum(left, clients_left - left)
        block = min(clients_left, MAX_BLOCK, *np.maximum(open_ones[open_ones > 0] // 16, 1).tolist())
        # The smallest of exponential times with these rates are a draw without replacement by these weights.
        times = generator.standard_exponential((block, len(left))) / np.maximum(left, 1)
        times[:, left == 0] = np.inf
        times[:, left == clients_left] = -1.0
        chosen = np.argpartition(times, per_client - 1, axis=1)[:, :per_client]
        classes[first : first + block] = chosen
        left -= np.bincount(chosen.ravel(), minlength=len(left))
        first += block
    return generator.permuted(classes, axis=1)


def _any_shards(classes: Ints, num_shards: Ints, generator: np.random.Generator) -> Ints:
    """For each of `classes` another one of that class's shards, at random: its number within the class."""
    chosen = np.empty(len(classes), dtype=np.int64)
    order, counts = np.argsort(classes, kind="stable"), np.bincount(classes, minlength=len(num_shards))
    numbers = [generator.permutation(total)[:taken] for total, taken in zip(num_shards, counts, strict=True)]
    chosen[order] = np.concatenate(numbers)
    return chosen


def _firsts(sizes: Ints) -> Ints:
    """Where each of consecutive runs of these sizes begins."""
    return np.cumsum(sizes) - sizes
