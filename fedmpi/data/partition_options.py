"""The ways a configuration can divide the training set among clients."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, ClassVar, Literal

from fedmpi.config.schema import Count, Positive, Section

if TYPE_CHECKING:
    from fedmpi.config.schema import Config


class PartitionOptions(Section):
    """What all partitions share: no client may be left without examples."""

    by_groups: ClassVar[bool] = False
    """Whether it goes by whose the examples are (writer, subject, role)."""

    def smallest_client_examples(self) -> int:
        """The fewest examples a client may hold."""
        return 1

    def problems(self, config: Config) -> Iterator[tuple[str, str]]:
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

    name: Literal["iid"] = "iid"
    """Contiguous slices whose sizes differ by at most one example."""
    shuffle: bool = False
    """Shuffle first (needed where the files are sorted by class)."""


class DirichletFeddf(PartitionOptions):
    """FedDF's procedure as FedHM's code uses it."""

    name: Literal["dirichlet_feddf"] = "dirichlet_feddf"
    """Each class is divided among a group of 10 clients by a Dirichlet draw; the lists are recut to equal sizes."""
    alpha: Positive = 0.5
    """Concentration of the Dirichlet distribution; small means strong label skew."""


class Dirichlet(PartitionOptions):
    """T.-M. H. Hsu, H. Qi, M. Brown, Measuring the Effects of Non-Identical Data Distribution, arXiv:1909.06335."""

    name: Literal["dirichlet"] = "dirichlet"
    """Each client draws class proportions q ~ Dir(alpha * prior) and equally many examples by them."""
    alpha: Positive = 0.5
    """Concentration, in all, not per class; 100 is close to IID, 0.01 close to one class per client."""
    min_size: Count = 1
    """The fewest examples a client may hold; sizes are equal, so this only refuses too many clients."""

    def smallest_client_examples(self) -> int:
        return self.min_size


class ClassDirichlet(PartitionOptions):
    """M. Yurochkin et al., Bayesian Nonparametric Federated Learning of Neural Networks, ICML 2019, section 4."""

    name: Literal["class_dirichlet"] = "class_dirichlet"
    """Each class is divided among all clients by a Dirichlet draw: classes and sizes are uneven."""
    alpha: Positive = 0.5
    """Concentration of each class over clients; small means strong skew of labels and of sizes."""
    min_size: Count = 2
    """The fewest examples a client may hold; the whole draw is repeated until all have them."""

    def smallest_client_examples(self) -> int:
        return self.min_size
