"""Shards of one class each, dealt to the clients: HeteroFL's.

Source: the setting "non-iid-n" of E. Diao, J. Ding, V. Tarokh, HeteroFL, ICLR 2021, arXiv:2010.01264, as its code
makes it (src/data.py). The examples of a class are taken in file order. Differences: n clients' shards need not be a
multiple of the number of classes, some classes then have one shard more; a class's left-over examples lengthen its
first shards where they stand instead of being appended from its end.
"""

from __future__ import annotations

import math

import numpy as np

from fedmpi.config.fields import Count
from fedmpi.config.schema import Config
from fedmpi.data.dataset import DataInfo
from fedmpi.data.partition import PartitionOptions, Problems, any_shards, by_class, equal_sizes
from fedmpi.data.subset import Ints, firsts, runs
from fedmpi.errors import ConfigError
from fedmpi.seeds import numpy_generator


class Shards(PartitionOptions):
    name: str = "shards"
    """A few shards of one class each per client, as in HeteroFL."""
    shards_per_client: Count = 2
    """Shards dealt to a client. Of two of the same class it keeps one, so it has this many classes or fewer."""

    def smallest_client_examples(self) -> int:
        return self.shards_per_client

    def mean_examples(self, info: DataInfo, num_clients: int) -> float:
        """Dealt n of a deck of n N labels with n N / C of each class, a client holds some of a class or does not."""
        deck, dealt = self.shards_per_client * num_clients, self.shards_per_client
        without = math.exp(_log_choices(deck - deck // info.num_classes, dealt) - _log_choices(deck, dealt))
        return info.num_train / deck * info.num_classes * (1 - without)

    def problems(self, config: Config) -> Problems:
        yield from super().problems(config)
        classes, least = config.data.used().num_classes, self.shards_per_client * config.clients.count
        if least < classes:
            found = f"{config.clients.count} clients with {self.shards_per_client} each hold {least} shards"
            allowed = f"allowed: {-(-classes // config.clients.count)} or more"
            yield "partition.shards_per_client", f"{found}, but the data have {classes} classes; {allowed}"

    def divide(self, labels: Ints, num_clients: int, seed: int, groups: Ints | None = None) -> tuple[Ints, Ints]:
        """Deals a shuffled deck of labels, as many of each class as it has shards; a client drops what it has already.

        For each label that it keeps it gets one of that class's shards at random. So it has n classes or fewer, and the
        shards of the dropped labels belong to nobody.
        """
        generator = numpy_generator("partition", seed)
        pool, class_sizes = by_class(np.arange(len(labels)), labels)
        num_shards = equal_sizes(num_clients * self.shards_per_client, len(class_sizes))
        if (num_shards > class_sizes).any() or not num_shards.all():
            found = f"classes of {class_sizes.min()} to {class_sizes.max()} examples"
            asked = f"{num_shards.min()} to {num_shards.max()} shards each"
            todo = f"change partition.shards_per_client (now {self.shards_per_client}) or clients.count"
            problem = f"{found} cannot be cut into {asked}; {todo} (now {num_clients})"
            raise ConfigError(f"partition.name={self.name}", problem)
        deck = generator.permutation(np.repeat(np.arange(len(class_sizes)), num_shards))
        dealt = np.sort(deck.reshape(num_clients, -1), axis=1)
        kept = np.ones(dealt.shape, dtype=bool)
        kept[:, 1:] = dealt[:, 1:] != dealt[:, :-1]
        classes = dealt[kept]
        number = any_shards(classes, num_shards, generator)
        length, longer = class_sizes // num_shards, class_sizes % num_shards
        starts = firsts(class_sizes)[classes] + number * length[classes] + np.minimum(number, longer[classes])
        lengths = length[classes] + (number < longer[classes])
        client = np.repeat(np.arange(num_clients), kept.sum(axis=1))
        sizes = np.bincount(client, lengths, minlength=num_clients).astype(np.int64)
        return pool[runs(starts, lengths)], sizes


def _log_choices(count: int, chosen: int) -> float:
    """ln of (count over chosen), whose own digits would fill a disk for millions."""
    if chosen > count:
        return -math.inf
    return math.lgamma(count + 1) - math.lgamma(chosen + 1) - math.lgamma(count - chosen + 1)
