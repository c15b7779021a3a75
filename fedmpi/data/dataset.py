"""Examples and labels in memory, and the check that they are what was promised."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from fedmpi.data.options import DataInfo
from fedmpi.errors import DataError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

DTYPES = {"image": "uint8", "vector": "float32", "tokens": "int16"}
PARTS = {
    "train_x": "training examples",
    "train_y": "training labels",
    "test_x": "test examples",
    "test_y": "test labels",
    "groups": "training groups",
    "test_groups": "test groups",
}
"""The arrays of a Dataset, in words."""
_CHUNK_BYTES = 2**24


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
    digest: str = field(default="", kw_only=True)
    """`digest_of` the arrays; `reading.load` fills it in."""

    @property
    def arrays(self) -> dict[str, NDArray[Any] | None]:
        """The arrays by name; None for groups that the data set does not have."""
        return {name: getattr(self, name) for name in PARTS}


def chunks(array: NDArray[Any], dtype: np.dtype[Any] | None = None) -> Iterator[memoryview]:
    """The bytes of an array, C-ordered, some rows at a time: a copy of the whole array would double the memory."""
    import numpy as np

    rows = max(1, _CHUNK_BYTES // max(1, array[:1].nbytes))
    for start in range(0, len(array), rows):
        yield np.ascontiguousarray(array[start : start + rows], dtype).data


def check(where: str, dataset: Dataset, info: DataInfo) -> Dataset:
    """`dataset`, if shapes, types, counts and values are those of `info`; else a DataError that begins with `where`."""
    arrays = dataset.arrays
    problems = layout_problems(arrays, info)
    for name, array in arrays.items():
        if array is not None and name not in problems:
            problem = _group_problem(dataset, info, name) if "groups" in name else _value_problem(array, info, name)
            problems |= {name: problem} if problem else {}
    if problems:
        raise DataError(where, *problems.values())
    return dataset


def num_rows(array: Any) -> int:
    """The length of what should be an array (one in a file has no `len`); 0 for anything else."""
    return int(next(iter(getattr(array, "shape", ())), 0))


def layout_problems(arrays: Mapping[str, Any], info: DataInfo) -> dict[str, str]:
    """What is wrong with the shape or type of some of a Dataset's arrays, by name; their values are not looked at.

    An array is anything with `shape` and `dtype` (such as one in a file), or None.
    """
    import numpy as np

    shape = info.example_shape
    if info.kind == "image":
        shape = (*shape[1:], shape[0])
    counts = {"train": info.num_train, "test": info.num_test}
    problems = {}
    for name, what in PARTS.items():
        num_examples = counts["test" if name.startswith("test") else "train"]
        expected = (num_examples, *shape) if name.endswith("x") else (num_examples,)
        dtype = np.dtype(DTYPES[info.kind] if name.endswith("x") else "int64")
        array = arrays.get(name)
        if array is not None and (array.shape != expected or array.dtype != dtype):
            problems[name] = f"{what} are {array.dtype} {array.shape}, expected {dtype} {expected}"
        elif array is None and "groups" not in name:
            problems[name] = f"there are no {what}"
    needed = {"groups": info.num_groups > 0, "test_groups": info.shares_groups}
    for name, is_needed in needed.items():
        if is_needed and arrays.get(name) is None:
            problems[name] = f"the groups that the {PARTS[name].split()[0]} examples come from are missing"
    return problems


def _value_problem(array: NDArray[Any], info: DataInfo, name: str) -> str:
    """What is wrong with examples or labels of the right shape and type; empty if nothing is."""
    import numpy as np

    is_x = name.endswith("x")
    if not len(array):
        return f"there are no {PARTS[name]}: too little data, or other options leave none" if is_x else ""
    if is_x and info.kind == "image":
        return ""
    lowest, highest = array.min(), array.max()
    if is_x and info.kind == "vector":
        # A NaN anywhere is the lowest and the highest value.
        return "" if np.isfinite([lowest, highest]).all() else f"{PARTS[name]} have values that are no finite numbers"
    limit, what = (info.vocabulary_size, "tokens") if is_x else (info.num_classes, "labels")
    if lowest < 0 or highest >= limit:
        return f"{PARTS[name].split()[0]} {what} reach from {lowest} to {highest}, expected 0 to {limit - 1}"
    return ""


def _group_problem(dataset: Dataset, info: DataInfo, name: str) -> str:
    """Whether groups are numbered as promised: others would take memory, or make clients out of nobody."""
    import numpy as np

    numbers = np.unique(dataset.groups) if dataset.groups is not None else np.empty(0, np.int64)
    if name == "groups":
        if info.num_groups and len(numbers) != info.num_groups:
            return f"the training examples come from {len(numbers)} groups, expected {info.num_groups}"
        if not np.array_equal(numbers, np.arange(len(numbers))):
            found = f"{len(numbers)} numbers from {numbers[0]} to {numbers[-1]}"
            return f"training groups are {found}, expected 0 to {len(numbers) - 1} without gaps"
        return ""
    groups = dataset.test_groups
    limit = (info.num_groups or len(numbers)) + (0 if info.shares_groups else len(dataset.test_y))
    if groups is not None and len(groups) and (groups.min() < 0 or groups.max() >= limit):
        return f"test groups reach from {groups.min()} to {groups.max()}, expected 0 to {limit - 1}"
    return ""
