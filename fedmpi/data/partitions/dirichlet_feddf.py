"""FedHM's label skew, which is FedDF's procedure.

Source: FedHM's code (pcode/datasets/partition_data.py, derived from T. Lin et al., FedDF, arXiv:2006.07242).
"""

import numpy as np

from fedmpi.config.fields import Positive
from fedmpi.data.partition import MAX_DRAWS, PartitionOptions
from fedmpi.data.subset import Ints
from fedmpi.errors import ConfigError
from fedmpi.seeds import numpy_generator

GROUP_CLIENTS = 10


class DirichletFeddf(PartitionOptions):
    by_classes = True
    name: str = "dirichlet_feddf"
    """Label skew as in FedHM's tables (FedDF's procedure): equal sizes."""
    alpha: Positive = 0.5
    """Concentration of the Dirichlet distribution; small means strong label skew."""

    def divide(self, labels: Ints, num_clients: int, seed: int, groups: Ints | None = None) -> tuple[Ints, Ints]:
        """FedHM's non-IID split: `feddf_lists` joined and cut again into equal slices of floor(N / n).

        The up to n - 1 examples after the last slice belong to nobody.
        """
        lists = feddf_lists(self, labels, num_clients, seed)
        size = len(labels) // num_clients
        return np.concatenate(lists)[: size * num_clients], np.full(num_clients, size, dtype=np.int64)


def feddf_lists(options: DirichletFeddf, labels: Ints, num_clients: int, seed: int) -> list[Ints]:
    """Returns the list of each client before the recut: uneven, each >= floor(half of its group's mean size).

    All examples are shuffled and cut into ceil(n / 10) groups that share 10 N / n examples among
    10 clients; the last group has the clients and the examples that remain.
    """
    generator = numpy_generator("partition", seed)
    shuffled = generator.permutation(len(labels))
    num_groups = -(-num_clients // GROUP_CLIENTS)
    group_examples = GROUP_CLIENTS * len(labels) // num_clients
    lists: list[Ints] = []
    for group in range(num_groups):
        is_last = group == num_groups - 1
        start, stop = group * group_examples, len(labels) if is_last else (group + 1) * group_examples
        members = num_clients - group * GROUP_CLIENTS if is_last else GROUP_CLIENTS
        lists += _feddf_group(options, labels, shuffled[start:stop], members, generator)
    return lists


def _feddf_group(
    options: DirichletFeddf, labels: Ints, examples: Ints, members: int, generator: np.random.Generator
) -> list[Ints]:
    by_class = [examples[labels[examples] == label] for label in np.unique(labels[examples])]
    least = int(0.5 * len(examples) / members)
    for _ in range(MAX_DRAWS):
        lists = _feddf_draw(options.alpha, by_class, members, generator)
        if lists is not None and min(len(one) for one in lists) >= least:
            return lists
    found = f"no draw of {MAX_DRAWS} gave each of a group's {members} clients {least} examples"
    todo = f"raise partition.alpha (now {options.alpha:g}) or lower clients.count"
    raise ConfigError(f"partition.name={options.name}", f"{found}; {todo}")


def _feddf_draw(alpha: float, by_class: list[Ints], members: int, generator: np.random.Generator) -> list[Ints] | None:
    """Splits each class by q ~ Dir(alpha) among those not yet full. Returns None if q is zero for all of them."""
    full = sum(len(examples) for examples in by_class) / members
    lists: list[list[Ints]] = [[] for _ in range(members)]
    sizes = np.zeros(members, dtype=np.int64)
    for examples in by_class:
        q = generator.dirichlet(np.full(members, alpha)) * (sizes < full)
        if q.sum() == 0:
            return None
        cuts = (np.cumsum(q / q.sum()) * len(examples)).astype(np.int64)[:-1]
        for member, part in enumerate(np.split(examples, cuts)):
            lists[member].append(part)
            sizes[member] += len(part)
    return [np.concatenate(parts) for parts in lists]
