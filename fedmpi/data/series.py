"""What the data sets of signals and texts share: finding files, cutting windows, dividing by time, numbering groups."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedmpi.errors import DataError

Ints = NDArray[np.int64]
Names = Sequence[str] | NDArray[np.str_] | Ints


def find(folder: Path, pattern: str, what: str) -> Path:
    """The one path below `folder` that ends like `pattern`. Raises DataError if there is none, or more than one."""
    # Archives made on a Mac hold a second tree of its own notes.
    found = sorted(path for path in folder.rglob(pattern) if "__MACOSX" not in path.parts)
    if len(found) != 1:
        there = f"{len(found)} of them ({found[0]}, {found[1]})" if found else "none"
        raise DataError(str(folder), f"expected one {pattern} in it or below, found {there}; give the folder of {what}")
    return found[0]


def read_text(path: Path) -> str:
    """A whole file in UTF-8. Raises DataError if it cannot be read as that."""
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(str(path), f"cannot be read as text ({error}); get the files again") from error


def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object of a JSON file. Raises ValueError if a name is there twice: the last one would count, unseen."""
    entries = dict(pairs)
    if len(entries) < len(pairs):
        (name, count), *_ = Counter(name for name, _ in pairs).most_common(1)
        raise ValueError(f"{name} is there {count} times")
    return entries


def first_of_test(size: int, test_share: float) -> int:
    """Where the test part of `size` things in time begins: the last `test_share` of them, rounded half up."""
    return size - int(size * test_share + 0.5)


def window_starts(begin: int, end: int, length: int, step: int) -> Ints:
    """Where windows of `length` begin that lie wholly in begin..end (exclusive), the first one at `begin`."""
    return np.arange(begin, end - length + 1, step, dtype=np.int64)


def number_groups(train: Names, test: Names) -> tuple[Ints, Ints]:
    """Names of each example's group -> numbers: training groups from 0 in sorted order, then those only in test."""
    train_names, train_numbers = np.unique(np.asarray(train), return_inverse=True)
    test_names, test_numbers = np.unique(np.asarray(test), return_inverse=True)
    number_of = {name: number for number, name in enumerate(train_names.tolist())}
    for name in test_names.tolist():
        number_of.setdefault(name, len(number_of))
    renumbered = np.array([number_of[name] for name in test_names.tolist()], dtype=np.int64)
    return train_numbers.astype(np.int64), renumbered[test_numbers]
