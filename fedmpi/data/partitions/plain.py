"""Partitions as the files have the examples: in their order, or by whose they are."""

import numpy as np

from fedmpi.config.fields import Count
from fedmpi.config.schema import Config
from fedmpi.data.dataset import DataInfo
from fedmpi.data.partition import PartitionOptions, Problems, equal_sizes
from fedmpi.data.subset import Ints, firsts, runs
from fedmpi.errors import ConfigError, counted
from fedmpi.seeds import numpy_generator


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
