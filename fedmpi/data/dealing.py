"""What all partitions share: options, and how examples are counted, sorted and dealt out.

A partition is a subclass of `PartitionOptions` in a file of its own in `partitions/`, which `registry.py` lists.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, ClassVar, TypeAlias

from fedmpi.config.fields import Section

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from fedmpi.config.schema import Config
    from fedmpi.data.options import DataInfo

Ints: TypeAlias = "NDArray[np.int64]"
Problems = Iterator[tuple[str, str]]
MAX_DRAWS = 1000


class PartitionOptions(Section):
    """What all partitions share: no client may be left without examples."""

    by_groups: ClassVar[bool] = False
    """Whether it goes by whose the examples are (writer, subject, role)."""
    name: str

    def smallest_client_examples(self) -> int:
        """The fewest examples a client may hold: `min_size`, if there is such an option."""
        return int(getattr(self, "min_size", 1))

    def mean_examples(self, info: DataInfo, num_clients: int) -> float:
        """How many examples a client will have, the mean over clients, as far as it is known without the data."""
        return info.num_train / num_clients

    def problems(self, config: Config) -> Problems:
        if problem := self.too_many(config.data.used().num_train, config.clients.count):
            yield "clients.count", problem

    def too_many(self, num_examples: int, num_clients: int) -> str:
        """What is wrong where the clients cannot each get their smallest number of examples; else empty."""
        least = self.smallest_client_examples()
        if num_clients <= (most := num_examples // least):
            return ""
        missing = f"{num_clients} clients cannot each get {least} or more of {num_examples} training examples"
        return f"{missing}; allowed: at most {most}"

    def divide(self, labels: Ints, num_clients: int, seed: int, groups: Ints | None = None) -> tuple[Ints, Ints]:
        """The examples' numbers, client after client, int64, and the clients' sizes, int64 (num_clients,).

        A pure function of the classes `labels`, int64 (N,), of the seed and, with `by_groups`, of `groups`, int64 (N,).
        There are `smallest_client_examples` for each client. Raises ConfigError if the options cannot be met.
        """
        raise NotImplementedError


def equal_sizes(num_examples: int, num_clients: int) -> Ints:
    """Sizes that differ by at most one and add up to `num_examples`."""
    import numpy as np

    return np.diff(np.arange(num_clients + 1, dtype=np.int64) * num_examples // num_clients)


def by_class(examples: Ints, labels: Ints) -> tuple[Ints, Ints]:
    """`examples` class after class, otherwise in the given order, and the sizes of the classes that occur."""
    import numpy as np

    own = labels[examples]
    return examples[np.argsort(own, kind="stable")], np.unique(own, return_counts=True)[1]


def runs(starts: Ints, lengths: Ints) -> Ints:
    """starts[0], starts[0] + 1, ... (lengths[0] of them), then as many from starts[1] on, and so forth."""
    import numpy as np

    within: Ints = np.arange(lengths.sum()) - np.repeat(np.cumsum(lengths) - lengths, lengths)
    return within + np.repeat(starts, lengths)


def take(pool: Ints, firsts: Ints, counts: Ints) -> Ints:
    """Client after client, class after class, `counts` (clients, classes) examples; class c from pool[firsts[c]] on."""
    import numpy as np

    starts = firsts + np.cumsum(counts, axis=0) - counts
    return pool[runs(starts.ravel(), counts.ravel())]


def class_counts(alpha: float, num_examples: int, num_clients: int, generator: np.random.Generator) -> Ints:
    """int64 (clients,): `num_examples` cut at floor(cumsum(q) num_examples), q ~ Dir(alpha) over the clients."""
    import numpy as np

    q = generator.dirichlet(np.full(num_clients, alpha))
    cuts = np.floor(np.cumsum(q[:-1]) * num_examples).astype(np.int64)
    return np.diff(cuts.clip(0, num_examples), prepend=0, append=num_examples)


def any_shards(classes: Ints, num_shards: Ints, generator: np.random.Generator) -> Ints:
    """A shard for each of `classes`, drawn without replacement: its number within the class."""
    import numpy as np

    chosen = np.empty(len(classes), dtype=np.int64)
    order, counts = np.argsort(classes, kind="stable"), np.bincount(classes, minlength=len(num_shards))
    numbers = [generator.permutation(total)[:taken] for total, taken in zip(num_shards, counts, strict=True)]
    chosen[order] = np.concatenate(numbers)
    return chosen


def firsts(sizes: Ints) -> Ints:
    """Where each of consecutive runs of these sizes begins."""
    import numpy as np

    return np.cumsum(sizes) - sizes
