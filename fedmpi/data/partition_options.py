"""The ways a configuration can divide the training set among clients."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, ClassVar

from pydantic import Field

from fedmpi.config.schema import Count, Positive, Section, Share

if TYPE_CHECKING:
    from fedmpi.config.schema import Config
    from fedmpi.data.options import DataInfo

Problems = Iterator[tuple[str, str]]


class PartitionOptions(Section):
    """What all partitions share: no client may be left without examples."""

    by_groups: ClassVar[bool] = False
    """Whether it goes by whose the examples are (writer, subject, role)."""

    def smallest_client_examples(self) -> int:
        """The fewest examples a client may hold."""
        return 1

    def mean_examples(self, info: DataInfo, num_clients: int) -> float:
        """How many examples a client will have, the mean over clients, as far as it is known without the data."""
        return info.num_train / num_clients

    def problems(self, config: Config) -> Problems:
        num_train, num_clients = config.data.info().num_train, config.clients.count
        most = num_train // self.smallest_client_examples()
        if num_clients > most:
            yield (
                "clients.count",
                f"{num_clients} clients cannot each get {self.smallest_client_examples()} or more of "
                f"{num_train} training examples; allowed: at most {most}",
            )


class Iid(PartitionOptions):
    """FedHM's IID setting: slices of the training set in file order."""

    name: str = "iid"
    """Contiguous slices of equal size, in file order or shuffled."""
    shuffle: bool = False
    """Shuffle first (needed where the files are sorted by class)."""


class DirichletFeddf(PartitionOptions):
    """FedDF's procedure as FedHM's code uses it."""

    name: str = "dirichlet_feddf"
    """Label skew as in FedHM's tables (FedDF's procedure): equal sizes."""
    alpha: Positive = 0.5
    """Concentration of the Dirichlet distribution; small means strong label skew."""


class Dirichlet(PartitionOptions):
    """T.-M. H. Hsu, H. Qi, M. Brown, Measuring the Effects of Non-Identical Data Distribution, arXiv:1909.06335."""

    name: str = "dirichlet"
    """Label skew of Hsu et al. 2019: a Dirichlet class mixture per client; equal sizes."""
    alpha: Positive = 0.5
    """Concentration, in all, not per class; 100 is close to IID, 0.01 close to one class per client."""
    min_size: Count = 1
    """The fewest examples a client may hold; sizes are equal, so this only refuses too many clients."""

    def smallest_client_examples(self) -> int:
        return self.min_size


class DirichletEqual(PartitionOptions):
    """Y. Niu et al., Overcoming Resource Constraints in Federated Learning (PriSM), arXiv:2208.13141, section 4."""

    name: str = "dirichlet_equal"
    """Label skew as in PriSM: a class mixture per client, equal sizes."""
    alpha: Annotated[float, Field(gt=0)] = 1.0
    """Concentration of each class (`dirichlet` has that of all classes together); `.inf` deals the examples, sorted by
    class, to the clients in turn, so that all have the same mixture.
    """
    examples: Annotated[int, Field(ge=0, le=2**31 - 1)] = 0
    """Examples of each client; 0 shares out the whole training set (sizes then differ by at most one)."""

    def smallest_client_examples(self) -> int:
        return self.examples or 1

    def mean_examples(self, info: DataInfo, num_clients: int) -> float:
        return self.examples or super().mean_examples(info, num_clients)


class ClassDirichlet(PartitionOptions):
    """M. Yurochkin et al., Bayesian Nonparametric Federated Learning of Neural Networks, ICML 2019, section 4."""

    name: str = "class_dirichlet"
    """Each class divided among clients by a Dirichlet: uneven labels, sizes."""
    alpha: Positive = 0.5
    """Concentration of each class over clients; small means strong skew of labels and of sizes."""
    min_size: Count = 2
    """The fewest examples a client may hold; the whole draw is repeated until all have them."""

    def smallest_client_examples(self) -> int:
        return self.min_size


class QuantitySkew(PartitionOptions):
    """Q. Li et al., Federated Learning on Non-IID Data Silos, ICDE 2022, arXiv:2102.02079, section IV-C."""

    name: str = "quantity_skew"
    """Sizes by a Dirichlet draw, classes at random."""
    alpha: Positive = 0.5
    """Concentration (the paper's beta); small means that few clients have most of the examples."""
    min_size: Count = 2
    """The fewest examples a client may hold: everybody is given these, and the draw shares out the rest."""

    def smallest_client_examples(self) -> int:
        return self.min_size


class Shards(PartitionOptions):
    """E. Diao, J. Ding, V. Tarokh, HeteroFL, ICLR 2021, arXiv:2010.01264: its non-IID setting ("non-iid-n")."""

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
        classes, least = config.data.info().num_classes, self.shards_per_client * config.clients.count
        if least < classes:
            yield (
                "partition.shards_per_client",
                f"{config.clients.count} clients with {self.shards_per_client} each hold {least} shards, but the data "
                f"have {classes} classes; allowed: {-(-classes // config.clients.count)} or more",
            )


def _log_choices(count: int, chosen: int) -> float:
    """ln of (count over chosen), whose own digits would fill a disk for millions."""
    if chosen > count:
        return -math.inf
    return math.lgamma(count + 1) - math.lgamma(chosen + 1) - math.lgamma(count - chosen + 1)


class Lottery(PartitionOptions):
    """A. Li et al., LotteryFL, arXiv:2008.03371, section 5.1; Hermes (MobiCom 2021) divides CIFAR-10 by it."""

    name: str = "lottery"
    """A few examples of two distinct classes per client, as in LotteryFL and Hermes."""
    classes_per_client: Count = 2
    """Classes of each client, all different."""
    samples: Count = 20
    """Examples of a client's first class."""
    balance: Share = 1.0
    """Each other class has floor(balance * samples) examples."""

    def class_samples(self) -> tuple[int, ...]:
        """Examples of a client's first class, second class, ..."""
        return (self.samples, *[self._other_samples] * (self.classes_per_client - 1))

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
        classes = config.data.info().num_classes
        if self.classes_per_client > classes:
            yield (
                "partition.classes_per_client",
                f"{self.classes_per_client}, but the data have {classes} classes; allowed: at most {classes}",
            )
        if self.classes_per_client > 1 and self._other_samples == 0:
            yield (
                "partition.balance",
                f"{self.balance:g} of {self.samples} examples is less than one; "
                f"allowed: {1 / self.samples:g} or more, or raise partition.samples",
            )


class Natural(PartitionOptions):
    """By whose the examples are: LEAF's setting (S. Caldas et al., arXiv:1812.01097), Hermes's EMNIST and HAR."""

    by_groups: ClassVar[bool] = True
    name: str = "natural"
    """By writer, subject or role, where the data say whose they are."""
    groups_per_client: Count = 1
    """Writers (subjects, roles) that make up one client."""
    min_examples: Count = 1
    """Groups with fewer training examples are left out."""

    def smallest_client_examples(self) -> int:
        return self.groups_per_client * self.min_examples

    def mean_examples(self, info: DataInfo, num_clients: int) -> float:
        of_a_group = max(info.num_train / max(info.num_groups, 1), self.min_examples)
        return of_a_group * self.groups_per_client

    def problems(self, config: Config) -> Problems:
        info, num_clients = config.data.info(), config.clients.count
        if not info.num_groups:
            yield (
                "partition.name",
                f"natural, but nobody knows whose the examples of {config.data.name} are; "
                "take another partition, or data with writers, subjects or roles",
            )
        elif num_clients * self.groups_per_client > info.num_groups:
            each = f" with {self.groups_per_client} groups each" if self.groups_per_client > 1 else ""
            yield (
                "clients.count",
                f"{num_clients} clients{each}, but {config.data.name} has {info.num_groups} groups "
                f"(writers, subjects, roles); allowed: at most {info.num_groups // self.groups_per_client}",
            )
        else:
            yield from super().problems(config)
