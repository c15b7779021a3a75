"""Examples and labels in memory, and the check that they are what was promised."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedmpi.data.options import DataInfo
from fedmpi.errors import DataError

DTYPES = {"image": np.uint8, "vector": np.float32, "tokens": np.int16}


@dataclass(frozen=True)
class Dataset:
    """N training and M test examples.

    Images are uint8 (N, H, W, C), vectors float32 (N, features), tokens int16 (N, length);
    labels int64 (N,). `groups` int64 (N,), where a data set has them, says whose a training
    example is (writer, subject, role), numbered from 0 without gaps; `test_groups` int64 (M,) the
    same for test examples, with the numbers of the training groups where these are the same people.
    """

    train_x: NDArray[np.generic]
    train_y: NDArray[np.int64]
    test_x: NDArray[np.generic]
    test_y: NDArray[np.int64]
    groups: NDArray[np.int64] | None = None
    test_groups: NDArray[np.int64] | None = None


def check(where: str, dataset: Dataset, info: DataInfo) -> Dataset:
    """`dataset`, if shapes, types, counts and labels are those of `info`; else a DataError that begins with `where`."""
    shape = info.example_shape
    if info.kind == "image":
        shape = (*shape[1:], shape[0])
    problems = [
        *_part_problems("training", dataset.train_x, dataset.train_y, info.num_train, shape, info),
        *_part_problems("test", dataset.test_x, dataset.test_y, info.num_test, shape, info),
        *_group_problems(dataset, info),
    ]
    if problems:
        raise DataError(where, *problems)
    return dataset


def _part_problems(
    part: str,
    x: NDArray[np.generic],
    y: NDArray[np.int64],
    num_examples: int,
    shape: tuple[int, ...],
    info: DataInfo,
) -> list[str]:
    problems = []
    if x.shape != (num_examples, *shape) or x.dtype != DTYPES[info.kind]:
        expected = f"{np.dtype(DTYPES[info.kind])} {(num_examples, *shape)}"
        problems.append(f"{part} examples are {x.dtype} {x.shape}, expected {expected}")
    elif info.kind == "tokens" and len(x) and (x.min() < 0 or x.max() >= info.vocabulary_size):
        problems.append(f"{part} tokens reach from {x.min()} to {x.max()}, expected 0 to {info.vocabulary_size - 1}")
    if y.shape != (num_examples,) or y.dtype != np.int64:
        problems.append(f"{part} labels are {y.dtype} {y.shape}, expected int64 {(num_examples,)}")
    elif y.min() < 0 or y.max() >= info.num_classes:
        problems.append(f"{part} labels reach from {y.min()} to {y.max()}, expected 0 to {info.num_classes - 1}")
    return problems


def _group_problems(dataset: Dataset, info: DataInfo) -> list[str]:
    """Whether the groups are there where they were promised, and are as many."""
    problems = []
    if info.num_groups:
        found = "none" if dataset.groups is None else str(len(np.unique(dataset.groups)))
        if found != str(info.num_groups):
            problems.append(f"the training examples come from {found} groups, expected {info.num_groups}")
    if info.shares_groups and dataset.test_groups is None:
        problems.append("nobody knows from which groups the test examples come")
    for part, groups, labels in (
        ("training", dataset.groups, dataset.train_y),
        ("test", dataset.test_groups, dataset.test_y),
    ):
        if groups is not None and (groups.shape != labels.shape or groups.dtype != np.int64):
            problems.append(f"{part} groups are {groups.dtype} {groups.shape}, expected int64 {labels.shape}")
    return problems
