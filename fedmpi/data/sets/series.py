"""Steps that the sets of signals and texts share: counts in options, LEAF's files, and the division of time."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, TypeVar

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from fedmpi.data.dataset import DataInfo, NumExamples
from fedmpi.data.files import Tell, guarded
from fedmpi.data.prepare import COUNTS, PreparedOptions
from fedmpi.errors import DataError

PartialShare = Annotated[float, Field(gt=0, lt=1)]
Number = TypeVar("Number", bound=np.generic)
_AGAIN = "write it again by LEAF's preprocess.sh"


class SeriesOptions(PreparedOptions):
    """A prepared data set whose counts depend on its options."""

    counts = COUNTS
    num_train: NumExamples = Field(0, json_schema_extra={"subset": True})
    """Training examples to use; 0 means those of the complete files under the default options. Needed where other
    options (or a part of the files) give another number: the error then says which. Of files with more, a subset.
    """
    num_test: NumExamples = Field(0, json_schema_extra={"subset": True})
    """Test examples to use; 0 as above."""
    num_groups: NumExamples = 0
    """Subjects, films or roles expected in the training examples; 0 as above."""

    def expected(self, info: DataInfo) -> DataInfo:
        """Returns `info` of the complete files, with the counts that the options give instead."""
        given = {name: getattr(self, name) for name in self.counts}
        return replace(info, **{name: count for name, count in given.items() if count})


def leaf_users(
    paths: Sequence[Path], tell: Tell, kind: type, shrink: Callable[[dict[str, Any]], Any] | None = None
) -> Iterator[tuple[Path, str, Any]]:
    """Yields file, user (writer, role) and the user's entry of `user_data`, of type `kind`, of LEAF's JSON files.

    `shrink` makes an entry of each JSON object as soon as it is parsed. Raises DataError.
    """
    seen: dict[str, Path] = {}
    for done, path in enumerate(paths, start=1):
        with guarded(path, _AGAIN, "is not a JSON file of LEAF"), path.open(encoding="utf-8") as file:
            content = json.load(file, object_hook=shrink)
        users = content.get("user_data") if isinstance(content, dict) else None
        if not isinstance(users, dict) or not all(isinstance(part, kind) for part in users.values()):
            raise DataError(str(path), f"is not a file of LEAF: no 'user_data' with 'x' and 'y' of each user; {_AGAIN}")
        for name, part in users.items():
            if name in seen:
                raise DataError(str(path), f"{name} is in {seen[name]}, too; give the folder of one of them")
            seen[name] = path
            yield path, name, part
        tell(done, len(paths))


def first_of_test(size: int, test_share: float) -> int:
    """Returns where the test part of `size` things in time begins: the last `test_share` of them, rounded half up."""
    return size - int(size * test_share + 0.5)


def windows(samples: NDArray[Number], length: int, step: int) -> NDArray[Number]:
    """Returns (n, length, ...): a window every `step` samples from the first on; none if there are too few."""
    starts = np.arange(0, len(samples) - length + 1, step)
    return samples[starts[:, None] + np.arange(length)]
