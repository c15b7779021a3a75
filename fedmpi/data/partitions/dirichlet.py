"""Skew by Dirichlet draws: of each client's class mixture, of each class over the clients, of the sizes."""

from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from fedmpi.config.fields import Positive
from fedmpi.data.dataset import DataInfo
from fedmpi.data.partition import PartitionOptions, by_class, equal_sizes, take
from fedmpi.data.subset import Ints, firsts, runs
from fedmpi.errors import ConfigError
from fedmpi.seeds import numpy_generator

Floats: TypeAlias = NDArray[np.float64]
MAX_DRAWS = 1000
BLOCK_CLIENTS = 4096
BLOCK_DRAWS = 16_384
GROUP_CLIENTS = 10
EPSILON = 1e-5


class Dirichlet(PartitionOptions):
    """T.-M. H. Hsu, H. Qi, M. Brown, Measuring the Effects of Non-Identical Data Distribution, arXiv:1909.06335, 3.1.

    Differences: every example is used, so sizes may differ by one. Clients are served in blocks of 4,096: within a
    block all first choices are served before any second ones (the paper leaves the order open; served one by one, the
    last clients would get mere left-overs).
    """

    by_classes = True
    has_equal_sizes = True
    name: str = "dirichlet"
    """Label skew of Hsu et al. 2019: a Dirichlet class mixture per client; equal sizes."""
    alpha: Positive = 0.5
    """Concentration, in all, not per class; 100 is close to IID, 0.01 close to one class per client."""

    def divide(self, labels: Ints, num_clients: int, seed: int, groups: Ints | None = None) -> tuple[Ints, Ints]:
        """Draws q ~ Dir(alpha * prior) for each client, then equally many examples by q without replacement.

        `prior` is the share of each class in `labels`. A class that runs out leaves q, which is renormalised; a client
        whose q has nothing left draws by what is left.
        """
        generator = numpy_generator("partition", seed)
        pool, class_sizes = by_class(generator.permutation(len(labels)), labels)
        concentration = self.alpha * class_sizes / len(labels)
        sizes = equal_sizes(len(labels), num_clients)
        starts = firsts(class_sizes)
        ends = np.cumsum(class_sizes)
        blocks = []
        for first in range(0, num_clients, BLOCK_CLIENTS):
            counts = _serve(sizes[first : first + BLOCK_CLIENTS], ends - starts, concentration, generator)
            blocks.append(take(pool, starts, counts))
            starts += counts.sum(axis=0)
        return np.concatenate(blocks), sizes


def _serve(sizes: Ints, left: Ints, concentration: Floats, generator: np.random.Generator) -> Ints:
    """Returns int64 (clients, classes): how many examples of each class each client gets out of `left` (classes,)."""
    left = left.copy()
    need = sizes.copy()
    counts = np.zeros((len(sizes), len(left)), dtype=np.int64)
    q = generator.dirichlet(concentration, len(sizes))
    while need.any():
        # One draw and a refusal of what has run out equals drawing one by one with renormalised q.
        q = np.where(left > 0, q, 0.0)
        q[q.sum(axis=1) == 0] = left / left.sum()
        wanted = generator.multinomial(need, q / q.sum(axis=1, keepdims=True))
        given = np.clip(left - (np.cumsum(wanted, axis=0) - wanted), 0, wanted)
        counts += given
        need -= given.sum(axis=1)
        left -= given.sum(axis=0)
    return counts


class ClassDirichlet(PartitionOptions):
    """M. Yurochkin et al., Bayesian Nonparametric Federated Learning of Neural Networks, ICML 2019, section 4."""

    least_examples = 2
    by_classes = True
    name: str = "class_dirichlet"
    """Each class divided among clients by a Dirichlet: uneven labels, sizes."""
    alpha: Positive = 0.5
    """Concentration of each class over clients; small means strong skew of labels and of sizes."""

    def divide(self, labels: Ints, num_clients: int, seed: int, groups: Ints | None = None) -> tuple[Ints, Ints]:
        """Splits each class at floor(cumsum(q) n_c), q ~ Dir(alpha), and draws again until no client is too small."""
        class_sizes = np.unique(labels, return_counts=True)[1]
        for attempt in range(MAX_DRAWS):
            generator = numpy_generator("partition", seed, attempt)
            counts = np.stack([_cut(self.alpha, n, num_clients, generator) for n in class_sizes], axis=1)
            if counts.sum(axis=1).min() >= self.least_examples:
                pool, _ = by_class(generator.permutation(len(labels)), labels)
                return take(pool, firsts(class_sizes), counts), counts.sum(axis=1)
        raise _too_few(self, num_clients, self.least_examples)


class QuantitySkew(PartitionOptions):
    """Q. Li et al., Federated Learning on Non-IID Data Silos, ICDE 2022, arXiv:2102.02079, section IV-C.

    Difference: every client's minimum is set apart before the draw; the paper's code draws until all have it.
    """

    least_examples = 2
    name: str = "quantity_skew"
    """Sizes by a Dirichlet draw, classes at random."""
    alpha: Positive = 0.5
    """Concentration (the paper's beta); small means that few clients have most of the examples."""

    def divide(self, labels: Ints, num_clients: int, seed: int, groups: Ints | None = None) -> tuple[Ints, Ints]:
        """Shuffles; gives each client two examples and floor differences of cumsum(q) of the rest, q ~ Dir(alpha)."""
        generator = numpy_generator("partition", seed)
        order = generator.permutation(len(labels))
        rest = _cut(self.alpha, len(labels) - num_clients * self.least_examples, num_clients, generator)
        return order, rest + self.least_examples

    def sizes_without_data(self, info: DataInfo, num_clients: int, seed: int) -> Ints:
        return self.divide(np.zeros(info.num_train, np.int64), num_clients, seed)[1]


def _cut(alpha: float, num_examples: int, num_clients: int, generator: np.random.Generator) -> Ints:
    """Returns int64 (clients,): `num_examples` cut at floor(cumsum(q) num_examples), q ~ Dir(alpha) over clients."""
    q = generator.dirichlet(np.full(num_clients, alpha))
    cuts = np.floor(np.cumsum(q[:-1]) * num_examples).astype(np.int64)
    return np.diff(cuts.clip(0, num_examples), prepend=0, append=num_examples)


class DirichletEqual(PartitionOptions):
    """Y. Niu et al., PriSM, arXiv:2208.13141, section 4, and its code (data/common.py).

    Clients are served in order. Each draws its examples one by one from its class probabilities, without replacement
    from the shuffled examples of each class. When a class runs out its probability becomes 0, the others' grow by 1e-5,
    and all are renormalised; so a client whose own classes are gone continues what is left.
    Difference: where the clients' number does not divide that of the examples, sizes differ by one.
    """

    by_classes = True
    has_equal_sizes = True
    name: str = "dirichlet_equal"
    """Label skew as in PriSM: a class mixture per client, equal sizes."""
    alpha: Positive = 1.0
    """Concentration of each class (`dirichlet` has that of all classes together)."""

    def divide(self, labels: Ints, num_clients: int, seed: int, groups: Ints | None = None) -> tuple[Ints, Ints]:
        """Divides all examples into equal shares, by q ~ Dir(alpha, ..., alpha) over the classes."""
        sizes = equal_sizes(len(labels), num_clients)
        generator = numpy_generator("partition", seed)
        pool, class_sizes = by_class(generator.permutation(len(labels)), labels)
        ends = np.cumsum(class_sizes)
        left = class_sizes.copy()
        drawn = []
        step = max(1, BLOCK_DRAWS // int(sizes.max()))
        for first in range(0, num_clients, step):
            own = sizes[first : first + step]
            classes = _draw(generator.dirichlet(np.full(len(left), self.alpha), len(own)), own, left, generator)
            counts = np.bincount(classes, minlength=len(left))
            examples = np.empty(len(classes), dtype=np.int64)
            examples[np.argsort(classes, kind="stable")] = pool[runs(ends - left, counts)]
            drawn.append(examples)
            left -= counts
        return np.concatenate(drawn), sizes


def _draw(mixtures: Floats, sizes: Ints, left: Ints, generator: np.random.Generator) -> Ints:
    """Draws the classes of `sizes` (clients,) examples, client after client, by each client's row of `mixtures`.

    `left` says how many examples of each class there are. All that are still needed are drawn at once, and those after
    the draw that empties a class are drawn anew: the same distribution as one by one, in at most `classes` steps.
    """
    left = left.copy()
    need = sizes.copy()
    taken = []
    q = _without_empty(mixtures, left)
    while True:
        owners = np.repeat(np.arange(len(need)), need)
        edges = np.cumsum(q, axis=1)
        edges /= edges[:, -1:]
        classes = (generator.random(len(owners))[:, None] >= edges[owners]).sum(axis=1)
        stop = _first_emptied(classes, left)
        taken.append(classes[:stop])
        if stop == len(owners):
            return np.concatenate(taken)
        left -= np.bincount(classes[:stop], minlength=len(left))
        need -= np.bincount(owners[:stop], minlength=len(need))
        current = owners[stop - 1]
        its_q = _without_empty(q[current], left)
        q = _without_empty(mixtures, left)
        q[current] = its_q


def _first_emptied(classes: Ints, left: Ints) -> int:
    """Returns how many of `classes` can be served until one of them has run out; else all of them."""
    counts = np.bincount(classes, minlength=len(left))
    emptied = np.flatnonzero((counts >= left) & (counts > 0))
    return min((1 + int(np.flatnonzero(classes == label)[left[label] - 1]) for label in emptied), default=len(classes))


def _without_empty(q: Floats, left: Ints) -> Floats:
    """PriSM's rule for classes that have run out; `q` (..., classes)."""
    if left.all():
        return q.copy()
    kept: Floats = np.where(left > 0, q + EPSILON, 0.0)
    kept /= kept.sum(axis=-1, keepdims=True)
    return kept


class DirichletFeddf(PartitionOptions):
    """FedHM's code (pcode/datasets/partition_data.py, derived from T. Lin et al., FedDF, arXiv:2006.07242)."""

    by_classes = True
    name: str = "dirichlet_feddf"
    """Label skew as in FedHM's tables (FedDF's procedure): equal sizes."""
    alpha: Positive = 0.5
    """Concentration of the Dirichlet distribution; small means strong label skew."""

    def divide(self, labels: Ints, num_clients: int, seed: int, groups: Ints | None = None) -> tuple[Ints, Ints]:
        """Joins `lists` and cuts them again into equal slices of floor(N / n); what is left belongs to nobody."""
        size = len(labels) // num_clients
        examples = np.concatenate(self.lists(labels, num_clients, seed))
        return examples[: size * num_clients], np.full(num_clients, size, dtype=np.int64)

    def lists(self, labels: Ints, num_clients: int, seed: int) -> list[Ints]:
        """Returns the uneven list of each client before the recut. All examples are shuffled and cut into groups that
        share 10 N / n examples among 10 clients; the last group has the clients and the examples that remain."""
        generator = numpy_generator("partition", seed)
        shuffled = generator.permutation(len(labels))
        share = GROUP_CLIENTS * len(labels) // num_clients
        later_groups = np.arange(1, -(-num_clients // GROUP_CLIENTS))
        lists: list[Ints] = []
        for group, examples in enumerate(np.split(shuffled, later_groups * share)):
            members = min(GROUP_CLIENTS, num_clients - group * GROUP_CLIENTS)
            lists += self._of_group(labels, examples, members, generator)
        return lists

    def _of_group(self, labels: Ints, examples: Ints, members: int, generator: np.random.Generator) -> list[Ints]:
        """Draws until every list has floor(half of the group's mean size). Raises ConfigError."""
        of_class = [examples[labels[examples] == label] for label in np.unique(labels[examples])]
        least = int(0.5 * len(examples) / members)
        for _ in range(MAX_DRAWS):
            lists = _split(self.alpha, of_class, members, generator)
            if lists is not None and min(map(len, lists)) >= least:
                return lists
        raise _too_few(self, members, least)


def _split(alpha: float, of_class: list[Ints], members: int, generator: np.random.Generator) -> list[Ints] | None:
    """Splits each class by q ~ Dir(alpha) among those not yet full. Returns None if q is zero for all of them."""
    full = sum(len(examples) for examples in of_class) / members
    lists: list[list[Ints]] = [[] for _ in range(members)]
    sizes = np.zeros(members, dtype=np.int64)
    for examples in of_class:
        q = generator.dirichlet(np.full(members, alpha)) * (sizes < full)
        if q.sum() == 0:
            return None
        cuts = (np.cumsum(q / q.sum()) * len(examples)).astype(np.int64)[:-1]
        for member, part in enumerate(np.split(examples, cuts)):
            lists[member].append(part)
            sizes[member] += len(part)
    return [np.concatenate(parts) for parts in lists]


def _too_few(options: ClassDirichlet | DirichletFeddf, num_clients: int, least: int) -> ConfigError:
    found = f"no draw of {MAX_DRAWS} gave each of {num_clients} clients {least} examples"
    todo = f"raise partition.alpha (now {options.alpha:g}) or lower clients.count"
    return ConfigError(f"partition.name={options.name}", f"{found}; {todo}")
