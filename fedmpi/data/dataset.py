"""Examples and labels in memory, and the check that they are what was promised."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedmpi.data.options import DataInfo
from fedmpi.errors import DataError

DTYPES = {"image": np.uint8, "vector": np.float32, "tokens": np.int64}


@dataclass(frozen=True)
class Dataset:
    """N training and M test examples.

    Images are uint8 (N, H, W, C), vectors float32 (N, features), tokens int64 (N, length);
    labels int64 (N,). `groups` int64 (N,), where a data set has them, says whose a training
    example is (writer, subject, role); `test_groups` int64 (M,) the same for test examples.
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
    if y.shape != (num_examples,) or y.dtype != np.int64:
        problems.append(f"{part} labels are {y.dtype} {y.shape}, expected int64 {(num_examples,)}")
    elif y.min() < 0 or y.max() >= info.num_classes:
        problems.append(f"{part} labels reach from {y.min()} to {y.max()}, expected 0 to {info.num_classes - 1}")
    return problems
