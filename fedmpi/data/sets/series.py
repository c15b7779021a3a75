"""Steps that the sets of signals and texts share: LEAF's files, and the division of time."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any, TypeVar

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from fedmpi.data.files import guarded, track
from fedmpi.errors import DataError

PartialShare = Annotated[float, Field(gt=0, lt=1)]
Number = TypeVar("Number", bound=np.generic)
_AGAIN = "write it again by LEAF's preprocess.sh"


def leaf_users(
    paths: Sequence[Path], kind: type, shrink: Callable[[dict[str, Any]], Any] | None = None
) -> Iterator[tuple[Path, str, Any]]:
    """Yields file, user (writer, role) and the user's entry of `user_data`, of type `kind`, of LEAF's JSON files.

    `shrink` makes an entry of each JSON object as soon as it is parsed. Raises DataError.
    """
    seen: dict[str, Path] = {}
    for path in track(paths, "reading files"):
        with guarded(path, _AGAIN, "is not a JSON file of LEAF"), path.open(encoding="utf-8") as file:
            users = json.load(file, object_hook=shrink)["user_data"]
        if not all(isinstance(part, kind) for part in users.values()):
            raise DataError(str(path), f"is not a file of LEAF: no 'x' and 'y' of each user; {_AGAIN}")
        for name, part in users.items():
            if name in seen:
                raise DataError(str(path), f"{name} is in {seen[name]}, too; give the folder of one of them")
            seen[name] = path
            yield path, name, part


def first_of_test(size: int, test_share: float) -> int:
    """Returns where the test part of `size` things in time begins: the last `test_share` of them, rounded half up."""
    return size - int(size * test_share + 0.5)


def windows(samples: NDArray[Number], length: int, step: int) -> NDArray[Number]:
    """Returns (n, length, ...): a window every `step` samples from the first on; none if there are too few."""
    starts = np.arange(0, len(samples) - length + 1, step)
    return samples[starts[:, None] + np.arange(length)]
