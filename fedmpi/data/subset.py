"""Subsets for trials: `data.num_train` and `data.num_test` of a data set's examples, in file order.

The examples are drawn class by class, in proportion, and at least one of each class. Where they have groups (writers,
subjects, roles) they are drawn group by group instead, so every group stays and a natural partition has the same
clients with fewer examples; within a group every class gives its share, rounded up or down at random. The draw is a
function of the data and the number alone: runs of several seeds have the same examples.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from fedmpi.data.dataset import Dataset
from fedmpi.data.dealing import Ints, firsts, runs
from fedmpi.errors import DataError
from fedmpi.seeds import numpy_generator

if TYPE_CHECKING:
    import numpy as np

    from fedmpi.data.options import DataOptions, Part


def problems(options: DataOptions) -> Iterator[tuple[str, str]]:
    """(key, message) where a config asks for more examples than there are, or for too few, as far as `info` knows."""
    info = options.info()
    kind, least = ("group", info.num_groups) if info.num_groups else ("class", info.num_classes)
    if problem := _problem(options.asked("train"), "train", info.num_train, kind, least):
        yield "data.num_train", problem
    least = 1 if info.num_groups else least  # whose the test examples are, `info` does not say
    if problem := _problem(options.asked("test"), "test", info.num_test, kind, least):
        yield "data.num_test", problem


def taken(options: DataOptions, dataset: Dataset) -> Dataset:
    """The part of `dataset` that `options` ask for; `dataset` itself if that is all. Raises `DataError`."""
    import numpy as np

    groups_of: dict[Part, str] = {"train": "groups", "test": "test_groups"}
    for part, groups in groups_of.items():
        x, y = f"{part}_x", f"{part}_y"
        number, labels, own_groups = options.asked(part), getattr(dataset, y), getattr(dataset, groups)
        if number in (0, len(labels)):
            continue
        kind, strata = ("class", labels) if own_groups is None else ("group", own_groups)
        if problem := _problem(number, part, len(labels), kind, len(np.unique(strata))):
            raise DataError(f"data.num_{part}={number}", problem)
        chosen = choose(labels, own_groups, number, numpy_generator(f"subset-{part}"))
        arrays = {x: getattr(dataset, x)[chosen], y: labels[chosen]}
        if own_groups is not None:
            arrays[groups] = own_groups[chosen]
        dataset = replace(dataset, **arrays, digest="")
    return dataset


def _problem(number: int, part: str, has: int, kind: str, least: int) -> str:
    """What is wrong with `number` of `has` examples, of which each of `least` kinds keeps one; empty if nothing is."""
    if number in (0, has) or least <= number < has:
        return ""
    allowed = f"allowed: {least} to {has}, or 0 for all"
    if number > has:
        return f"{number}, but there are {has} {part}{'ing' * (part == 'train')} examples; {allowed}"
    return f"{number}, but each of {least} {kind}{'e' * (kind == 'class')}s keeps an example; {allowed}"


def choose(labels: Ints, groups: Ints | None, number: int, generator: np.random.Generator) -> Ints:
    """Numbers of the chosen examples, int64 (number,), ascending.

    `labels` int64 (N,), `groups` int64 (N,) or None; `number` is at most N, and at least the number of groups or,
    without groups, of classes. Where c of a group's n examples are chosen, they are every n/c-th of its examples in the
    order of their classes, those of a class shuffled.
    """
    import numpy as np

    strata = labels if groups is None else groups
    order = np.lexsort((generator.random(len(labels)), labels, strata))
    sizes = np.unique(strata, return_counts=True)[1]
    counts = shares(sizes, number)
    begins = generator.integers(0, sizes)
    step, begin, count = (np.repeat(values, counts) for values in (sizes, begins, counts))
    within = (runs(np.zeros_like(counts), counts) * step + begin) // count
    return np.sort(order[np.repeat(firsts(sizes), counts) + within])


def shares(sizes: Ints, number: int) -> Ints:
    """`number` divided in proportion to `sizes` (all positive) by largest remainder (ties: the first); at least 1 each.

    A size whose share is less than 1 gets 1, and the others share the rest. No share is larger than its size.
    """
    import numpy as np

    counts, is_large = np.ones_like(sizes), np.full(len(sizes), True)
    while True:
        large = sizes[is_large]
        quotas, total = (number - int((~is_large).sum())) * large, int(large.sum())
        if not (is_small := quotas < total).any():
            break
        is_large[np.flatnonzero(is_large)[is_small]] = False
    wholes, remainders = np.divmod(quotas, max(total, 1))
    left = int(quotas.sum()) // max(total, 1) - int(wholes.sum())
    wholes[np.argsort(-remainders, kind="stable")[:left]] += 1
    counts[is_large] = wholes
    return counts
