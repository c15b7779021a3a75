"""Partitions of the examples as the files have them: in their order, by whose they are, or by shards of one class."""

import math

import numpy as np

from fedmpi.config.fields import Count, Share
from fedmpi.config.schema import Config
from fedmpi.data.dataset import DataInfo
from fedmpi.data.partition import PartitionOptions, Problems, by_class, equal_sizes
from fedmpi.data.subset import Ints, firsts, runs
from fedmpi.errors import ConfigError, counted
from fedmpi.seeds import numpy_generator

MAX_BLOCK = 65_536
CLASSES_PER_CLIENT = 2
"""Classes of a client of `lottery`, as in all experiments of LotteryFL and Hermes."""


class Iid(PartitionOptions):
    """FedHM's code (pcode/datasets/partition_data.py, derived from T. Lin et al., FedDF, arXiv:2006.07242).

    Difference: every example is used, so sizes may differ by one.
    """

    has_equal_sizes = True
    name: str = "iid"
    """Contiguous slices of equal size, in file order or shuffled."""
    shuffle: bool = False
    """Shuffle first (needed where the files are sorted by class)."""

    def divide(self, labels: Ints, num_clients: int, seed: int, groups: Ints | None = None) -> tuple[Ints, Ints]:
        """Gives client i the examples floor(i N / n) .. floor((i + 1) N / n), in order or shuffled."""
        order = np.arange(len(labels))
        if self.shuffle:
            order = numpy_generator("partition", seed).permutation(order)
        return order, equal_sizes(len(labels), num_clients)


class Natural(PartitionOptions):
    """S. Caldas et al., LEAF, arXiv:1812.01097; so Hermes divides EMNIST and HAR.

    Which groups become clients, and in which order, is drawn: files list writers by where they come from, and tiers are
    blocks of client numbers, so file order would tie capacity to kinds of people.
    """

    by_groups = True
    name: str = "natural"
    """By writer, subject or role, where the data say whose they are."""
    groups_per_client: Count = 1
    """Writers (subjects, roles) that make up one client."""
    min_examples: Count = 1
    """Groups with fewer training examples are left out."""

    def smallest_client_examples(self) -> int:
        return self.groups_per_client * self.min_examples

    def mean_examples(self, info: DataInfo, num_clients: int) -> float:
        return self.groups_per_client * max(info.num_train / max(info.num_groups, 1), self.min_examples)

    def problems(self, config: Config) -> Problems:
        info, num_clients = config.data.used(), config.clients.count
        if not info.num_groups:
            found = f"natural, but the examples of {config.data.name} do not say whose they are"
            yield "partition.name", f"{found}; take another partition, or data with writers, subjects or roles"
        elif num_clients * self.groups_per_client > info.num_groups:
            each = f" with {self.groups_per_client} groups each" if self.groups_per_client > 1 else ""
            groups = f"{info.num_groups} groups (writers, subjects, roles)"
            allowed = f"allowed: at most {info.num_groups // self.groups_per_client}"
            yield "clients.count", f"{num_clients} clients{each}, but {config.data.name} has {groups}; {allowed}"
        else:
            yield from super().problems(config)

    def divide(self, labels: Ints, num_clients: int, seed: int, groups: Ints | None = None) -> tuple[Ints, Ints]:
        """Gives each client all examples of `groups_per_client` groups; groups that are not needed belong to nobody."""
        assert groups is not None, "the config was checked"
        group_sizes = np.bincount(groups)
        large_enough = np.flatnonzero(group_sizes >= self.min_examples)
        needed = num_clients * self.groups_per_client
        if needed > len(large_enough):
            asked = f"{num_clients} clients need {needed} groups with {self.min_examples} or more examples"
            most = f"allowed: at most {counted(len(large_enough) // self.groups_per_client, 'client')}"
            raise ConfigError(f"partition.name={self.name}", f"{asked}, but there are {len(large_enough)}; {most}")
        chosen = numpy_generator("partition", seed).permutation(large_enough)[:needed]
        by_group = np.argsort(groups, kind="stable")
        lengths = group_sizes[chosen]
        return by_group[runs(firsts(group_sizes)[chosen], lengths)], lengths.reshape(num_clients, -1).sum(axis=1)


class Shards(PartitionOptions):
    """E. Diao, J. Ding, V. Tarokh, HeteroFL, ICLR 2021, arXiv:2010.01264, setting "non-iid-n", as in its src/data.py.

    Differences: n clients' shards need not be a multiple of the number of classes, some classes then have one shard
    more; a class's left-over examples lengthen its first shards where they stand.
    """

    by_classes = True
    name: str = "shards"
    """A few shards of one class each per client, as in HeteroFL."""
    shards_per_client: Count = 2
    """Shards dealt to a client. Of two of the same class it keeps one, so it has this many classes or fewer."""

    def smallest_client_examples(self) -> int:
        return self.shards_per_client

    def mean_examples(self, info: DataInfo, num_clients: int) -> float:
        """Counts on n labels that are nearly independent draws among C classes: C (1 - (1 - 1 / C)^n) differ."""
        num_different = info.num_classes * (1 - (1 - 1 / info.num_classes) ** self.shards_per_client)
        return info.num_train / (self.shards_per_client * num_clients) * num_different

    def divide(self, labels: Ints, num_clients: int, seed: int, groups: Ints | None = None) -> tuple[Ints, Ints]:
        """Deals a shuffled deck of labels, as many of each class as it has shards; a client drops what it has already.

        For each label that it keeps it gets one of that class's shards at random; the others belong to nobody.
        """
        generator = numpy_generator("partition", seed)
        pool, class_sizes = by_class(np.arange(len(labels)), labels)
        num_shards = equal_sizes(num_clients * self.shards_per_client, len(class_sizes))
        if (num_shards > class_sizes).any() or not num_shards.all():
            found = f"classes of {class_sizes.min()} to {class_sizes.max()} examples"
            asked = f"cannot be cut into {num_shards.min()} to {num_shards.max()} shards each"
            todo = f"change partition.shards_per_client (now {self.shards_per_client}) or clients.count"
            raise ConfigError(f"partition.name={self.name}", f"{found} {asked}; {todo} (now {num_clients})")
        deck = generator.permutation(np.repeat(np.arange(len(class_sizes)), num_shards))
        dealt = np.sort(deck.reshape(num_clients, -1), axis=1)
        kept = np.ones(dealt.shape, dtype=bool)
        kept[:, 1:] = dealt[:, 1:] != dealt[:, :-1]
        classes = dealt[kept]
        number = _any_shards(classes, num_shards, generator)
        length, longer = class_sizes // num_shards, class_sizes % num_shards
        starts = firsts(class_sizes)[classes] + number * length[classes] + np.minimum(number, longer[classes])
        lengths = length[classes] + (number < longer[classes])
        client = np.repeat(np.arange(num_clients), kept.sum(axis=1))
        sizes = np.bincount(client, lengths, minlength=num_clients).astype(np.int64)
        return pool[runs(starts, lengths)], sizes


class Lottery(PartitionOptions):
    """A. Li et al., LotteryFL, arXiv:2008.03371, section 5.1, by which Hermes (MobiCom 2021) divides CIFAR-10, too.

    Differences: a client's classes are distinct, as both papers say (the code lets two shards be of one class), and no
    shard reaches over from one class into the next; which of a client's classes is the first one, and whole, is drawn.
    """

    by_classes = True
    name: str = "lottery"
    """A few examples of two distinct classes per client, as in LotteryFL and Hermes."""
    samples: Count = 20
    """Examples of a client's first class."""
    balance: Share = 1.0
    """The other class has floor(balance * samples) examples."""

    @property
    def _other_samples(self) -> int:
        # 0.29 * 100 is 28.999999999999996: a share that a person can type is not to lose an example to rounding.
        return math.floor(self.balance * self.samples + 1e-9)

    def smallest_client_examples(self) -> int:
        """Returns what is set apart for a client: a whole shard of each class."""
        return self.samples * CLASSES_PER_CLIENT

    def mean_examples(self, info: DataInfo, num_clients: int) -> float:
        return self.samples + self._other_samples

    def sizes_without_data(self, info: DataInfo, num_clients: int, seed: int) -> Ints:
        return np.full(num_clients, self.samples + self._other_samples)

    def problems(self, config: Config) -> Problems:
        if not self._other_samples:
            found = f"{self.balance:g} of {self.samples} samples is less than one example of a class"
            yield "partition.balance", f"{found}; raise partition.balance or partition.samples"
        yield from super().problems(config)

    def divide(self, labels: Ints, num_clients: int, seed: int, groups: Ints | None = None) -> tuple[Ints, Ints]:
        """Draws each client's distinct classes by how many shards of `samples` examples are left of each class.

        The shard of its first class is taken whole, of the other floor(balance * samples) examples.
        """
        generator = numpy_generator("partition", seed)
        pool, class_sizes = by_class(np.arange(len(labels)), labels)
        num_shards = class_sizes // self.samples
        usable = np.minimum(num_shards, num_clients)
        needed = num_clients * CLASSES_PER_CLIENT
        if usable.sum() < needed:
            asked = f"{num_clients} clients need {needed} shards of {self.samples} examples"
            found = f"of {CLASSES_PER_CLIENT} distinct classes each, but the data give {usable.sum()}"
            todo = "lower clients.count or partition.samples"
            raise ConfigError(f"partition.name={self.name}", f"{asked}, {found}; {todo}")
        used = generator.multivariate_hypergeometric(usable, needed)
        classes = _distinct_classes(used, num_clients, CLASSES_PER_CLIENT, generator).ravel()
        number = _any_shards(classes, num_shards, generator)
        lengths = np.tile([self.samples, self._other_samples], num_clients)
        starts = firsts(class_sizes)[classes] + number * self.samples
        return pool[runs(starts, lengths)], lengths.reshape(num_clients, -1).sum(axis=1)


def _distinct_classes(used: Ints, num_clients: int, per_client: int, generator: np.random.Generator) -> Ints:
    """Returns int64 (clients, per_client): distinct classes in each row, class c `used[c]` times in all.

    Clients draw without replacement, by what is left of each class. All take a class of which as many shards are left
    as clients, so the last ones find enough classes. They draw in blocks, by what is left when their block begins, so
    small that no class runs out or has to be taken by all within a block.
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
    """Draws a shard for each of `classes` without replacement; returns its number within the class."""
    chosen = np.empty(len(classes), dtype=np.int64)
    order, counts = np.argsort(classes, kind="stable"), np.bincount(classes, minlength=len(num_shards))
    numbers = [generator.permutation(total)[:taken] for total, taken in zip(num_shards, counts, strict=True)]
    chosen[order] = np.concatenate(numbers)
    return chosen
