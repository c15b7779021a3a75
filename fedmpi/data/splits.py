"""The procedures behind the partitions: (options, labels, clients, seed) -> (example numbers, sizes).

Each returns the example numbers, client after client, int64, and the clients' sizes, int64
(num_clients,). Sources: `iid` and `dirichlet_feddf` are FedHM's code (pcode/datasets/
partition_data.py, derived from T. Lin et al., FedDF, arXiv:2006.07242); `dirichlet` is T.-M. H.
Hsu et al., arXiv:1909.06335, section 3.1; `class_dirichlet` is M. Yurochkin et al., ICML 2019;
`quantity_skew` is Q. Li et al., arXiv:2102.02079, section IV-C. Others stand in `shards.py`,
`dirichlet_equal.py` and `by_group.py`.

Differences from the sources. `iid` and `dirichlet` use every example: where the number of clients
does not divide that of the examples, sizes differ by one. `dirichlet` serves clients in blocks of
4,096: within a block every client's first choices are served before anybody's second choices (the
paper leaves the order open; served one by one, the last clients would get mere left-overs).
`quantity_skew` sets everybody's minimum apart before the draw; the paper's code draws anew until
nobody is below it, which for a hundred clients would take for ever.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fedmpi.data.partition_options import ClassDirichlet, Dirichlet, DirichletFeddf, Iid, QuantitySkew
from fedmpi.errors import ConfigError
from fedmpi.seeds import numpy_generator

Ints = NDArray[np.int64]
GROUP_CLIENTS = 10
BLOCK_CLIENTS = 4096
MAX_DRAWS = 1000


def iid(options: Iid, labels: Ints, num_clients: int, seed: int) -> tuple[Ints, Ints]:
    """Contiguous slices of the examples, in order or shuffled; client i gets floor(i N / n) .. floor((i + 1) N / n)."""
    refuse_small(options.name, len(labels), num_clients, 1)
    order = np.arange(len(labels))
    if options.shuffle:
        order = numpy_generator("partition", seed).permutation(order)
    return order, equal_sizes(len(labels), num_clients)


def equal_sizes(num_examples: int, num_clients: int) -> Ints:
    """Sizes that differ by at most one and add up to `num_examples`."""
    return np.diff(np.arange(num_clients + 1, dtype=np.int64) * num_examples // num_clients)


def dirichlet_feddf(options: DirichletFeddf, labels: Ints, num_clients: int, seed: int) -> tuple[Ints, Ints]:
    """FedHM's non-IID split: `feddf_lists` joined and cut again into equal slices of floor(N / n).

    The up to n - 1 examples after the last slice belong to nobody.
    """
    refuse_small(options.name, len(labels), num_clients, 1)
    lists = feddf_lists(options, labels, num_clients, seed)
    size = len(labels) // num_clients
    return np.concatenate(lists)[: size * num_clients], np.full(num_clients, size, dtype=np.int64)


def feddf_lists(options: DirichletFeddf, labels: Ints, num_clients: int, seed: int) -> list[Ints]:
    """One list of examples per client, before the recut: uneven, each >= floor(half of its group's mean size).

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
    raise ConfigError(
        f"partition.name={options.name}",
        f"no draw of {MAX_DRAWS} gave each of a group's {members} clients {least} examples; raise partition.alpha "
        f"(now {options.alpha:g}) or lower clients.count",
    )


def _feddf_draw(alpha: float, by_class: list[Ints], members: int, generator: np.random.Generator) -> list[Ints] | None:
    """Class after class, split by q ~ Dir(alpha) among those not yet full; None if q is zero for all of them."""
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


def dirichlet(options: Dirichlet, labels: Ints, num_clients: int, seed: int) -> tuple[Ints, Ints]:
    """Hsu et al.: per client q ~ Dir(alpha * prior), then equally many examples by q without replacement.

    `prior` is the share of each class in `labels`. A class that runs out leaves q, which is
    renormalised; a client whose q has nothing left draws by what is left. Every example is used.
    """
    refuse_small(options.name, len(labels), num_clients, options.min_size)
    generator = numpy_generator("partition", seed)
    pool, class_sizes = by_class(generator.permutation(len(labels)), labels)
    concentration = options.alpha * class_sizes / len(labels)
    left, sizes, blocks = class_sizes.copy(), equal_sizes(len(labels), num_clients), []
    for start in range(0, num_clients, BLOCK_CLIENTS):
        used = class_sizes - left
        counts = _serve(sizes[start : start + BLOCK_CLIENTS], left, concentration, generator)
        blocks.append(_take(pool, np.cumsum(class_sizes) - class_sizes + used, counts))
        left -= counts.sum(axis=0)
    return np.concatenate(blocks), sizes


def _serve(sizes: Ints, left: Ints, concentration: NDArray[np.float64], generator: np.random.Generator) -> Ints:
    """int64 (clients, classes): how many examples of each class each client gets out of `left` (classes,)."""
    left, need = left.copy(), sizes.copy()
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


def _take(pool: Ints, firsts: Ints, counts: Ints) -> Ints:
    """Client after client, class after class, `counts` (clients, classes) examples; class c from pool[firsts[c]] on."""
    starts = firsts + np.cumsum(counts, axis=0) - counts
    return pool[runs(starts.ravel(), counts.ravel())]


def runs(starts: Ints, lengths: Ints) -> Ints:
    """starts[0], starts[0] + 1, ... (lengths[0] of them), then as many from starts[1] on, and so forth."""
    within = np.arange(lengths.sum()) - np.repeat(np.cumsum(lengths) - lengths, lengths)
    return np.repeat(starts, lengths) + within


def by_class(examples: Ints, labels: Ints) -> tuple[Ints, Ints]:
    """`examples` class after class, otherwise in the given order, and the sizes of the classes that occur."""
    own = labels[examples]
    return examples[np.argsort(own, kind="stable")], np.unique(own, return_counts=True)[1]


def class_dirichlet(options: ClassDirichlet, labels: Ints, num_clients: int, seed: int) -> tuple[Ints, Ints]:
    """Each class is split at floor(cumsum(q) n_c), q ~ Dir(alpha) over the clients; all examples are used.

    Repeated with the seed's next stream until the smallest client has `min_size` examples.
    """
    refuse_small(options.name, len(labels), num_clients, options.min_size)
    class_sizes = np.unique(labels, return_counts=True)[1]
    for attempt in range(MAX_DRAWS):
        generator = numpy_generator("partition", seed, attempt)
        counts = np.stack([_class_counts(options.alpha, n, num_clients, generator) for n in class_sizes], axis=1)
        if counts.sum(axis=1).min() >= options.min_size:
            pool, _ = by_class(generator.permutation(len(labels)), labels)
            return _take(pool, np.cumsum(class_sizes) - class_sizes, counts), counts.sum(axis=1)
    raise ConfigError(
        f"partition.name={options.name}",
        f"no draw of {MAX_DRAWS} gave each of {num_clients} clients {options.min_size} examples; raise partition.alpha "
        f"(now {options.alpha:g}), or lower partition.min_size or clients.count",
    )


def _class_counts(alpha: float, num_examples: int, num_clients: int, generator: np.random.Generator) -> Ints:
    """int64 (clients,): `num_examples` cut at floor(cumsum(q) num_examples), q ~ Dir(alpha) over the clients."""
    q = generator.dirichlet(np.full(num_clients, alpha))
    cuts = np.floor(np.cumsum(q[:-1]) * num_examples).astype(np.int64)
    return np.diff(cuts.clip(0, num_examples), prepend=0, append=num_examples)


def quantity_skew(options: QuantitySkew, labels: Ints, num_clients: int, seed: int) -> tuple[Ints, Ints]:
    """Shuffled examples: `min_size` for each client and floor differences of cumsum(q) of the rest, q ~ Dir(alpha)."""
    refuse_small(options.name, len(labels), num_clients, options.min_size)
    generator = numpy_generator("partition", seed)
    order = generator.permutation(len(labels))
    rest = _class_counts(options.alpha, len(labels) - num_clients * options.min_size, num_clients, generator)
    return order, rest + options.min_size


def refuse_small(name: str, num_examples: int, num_clients: int, least: int) -> None:
    """Raises ConfigError where `num_clients` cannot each get `least` examples."""
    if num_examples // num_clients < least:
        raise ConfigError(
            f"partition.name={name}",
            f"{num_clients} clients cannot each get {least} or more of {num_examples} training examples; "
            f"allowed: at most {num_examples // least} clients",
        )
