"""Shards of distinct classes for each client: LotteryFL's.

Source: A. Li et al., LotteryFL, arXiv:2008.03371, section 5.1, by which Hermes (MobiCom 2021) divides CIFAR-10, too.
The examples of a class are taken in file order. Differences: a client's classes are distinct, as both papers say (the
code lets two shards be of one class), and no shard reaches over from one class into the next; which of a client's
classes is the first one, and whole, is drawn.
"""

from __future__ import annotations

import math

import numpy as np

from fedmpi.config.fields import Count, Share
from fedmpi.config.schema import Config
from fedmpi.data.dataset import DataInfo
from fedmpi.data.partition import PartitionOptions, Problems, any_shards, by_class
from fedmpi.data.subset import Ints, firsts, runs
from fedmpi.errors import ConfigError
from fedmpi.seeds import numpy_generator

MAX_BLOCK = 65_536


class Lottery(PartitionOptions):
    name: str = "lottery"
    """A few examples of two distinct classes per client, as in LotteryFL and Hermes."""
    classes_per_client: Count = 2
    """Classes of each client, all different."""
    samples: Count = 20
    """Examples of a client's first class."""
    balance: Share = 1.0
    """Each other class has floor(balance * samples) examples."""

    @property
    def _other_samples(self) -> int:
        # 0.29 * 100 is 28.999999999999996: a share that a person can type is not to lose an example to rounding.
        return math.floor(self.balance * self.samples + 1e-9)

    def smallest_client_examples(self) -> int:
        """What is set apart for a client: a whole shard of each class."""
        return self.samples * self.classes_per_client

    def mean_examples(self, info: DataInfo, num_clients: int) -> float:
        return self.samples + self._other_samples * (self.classes_per_client - 1)

    def problems(self, config: Config) -> Problems:
        yield from super().problems(config)
        classes = config.data.used().num_classes
        if self.classes_per_client > classes:
            found = f"{self.classes_per_client}, but the data have {classes} classes"
            yield "partition.classes_per_client", f"{found}; allowed: at most {classes}"
        if self.classes_per_client > 1 and self._other_samples == 0:
            found = f"{self.balance:g} of {self.samples} examples is less than one"
            yield "partition.balance", f"{found}; allowed: {1 / self.samples:g} or more, or raise partition.samples"

    def divide(self, labels: Ints, num_clients: int, seed: int, groups: Ints | None = None) -> tuple[Ints, Ints]:
        """Each client's distinct classes are drawn by how many shards of `samples` examples are left of each class.

        The shard of its first class is taken whole, of the others floor(balance * samples) examples.
        """
        generator = numpy_generator("partition", seed)
        pool, class_sizes = by_class(np.arange(len(labels)), labels)
        num_shards = class_sizes // self.samples
        usable = np.minimum(num_shards, num_clients)
        needed = num_clients * self.classes_per_client
        if usable.sum() < needed:
            asked = f"{num_clients} clients need {needed} shards of {self.samples} examples"
            found = f"of {self.classes_per_client} distinct classes each, but the data give {usable.sum()}"
            todo = "lower clients.count, partition.samples or partition.classes_per_client"
            raise ConfigError(f"partition.name={self.name}", f"{asked}, {found}; {todo}")
        used = generator.multivariate_hypergeometric(usable, needed)
        classes = _distinct_classes(used, num_clients, self.classes_per_client, generator).ravel()
        number = any_shards(classes, num_shards, generator)
        lengths = np.tile([self.samples, *[self._other_samples] * (self.classes_per_client - 1)], num_clients)
        starts = firsts(class_sizes)[classes] + number * self.samples
        return pool[runs(starts, lengths)], lengths.reshape(num_clients, -1).sum(axis=1)


def _distinct_classes(used: Ints, num_clients: int, per_client: int, generator: np.random.Generator) -> Ints:
    """int64 (clients, per_client): distinct classes in each row, class c `used[c]` times in all.

    Clients draw without replacement, by what is left of each class. A class of which as many shards are left as
    clients is open to all: so the last clients find enough classes. Clients draw in blocks, by what is left when
    their block begins, so small that no class runs out or becomes open to all within a block.
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
