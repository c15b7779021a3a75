"""What the data sets of signals and texts share: counts in options, files, windows, time, groups."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias, TypeVar

from pydantic import Field

from fedmpi.data.dealing import Ints
from fedmpi.data.files.budget import Budget, Tell, guarded
from fedmpi.data.options import DataInfo, NumExamples
from fedmpi.data.prepared import PreparedOptions
from fedmpi.errors import DataError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

MAX_TEXT_BYTES = 2**30
"""Of one file. LEAF's Shakespeare is one JSON file of some 400 MB."""
_BYTES_PER_SIGN = {b"[": 64, b"{": 72, b",": 40}
_AGAIN = "write it again by LEAF's preprocess.sh"

PartialShare = Annotated[float, Field(gt=0, lt=1)]
Number = TypeVar("Number", bound="np.generic")
Names: TypeAlias = "Sequence[str] | NDArray[np.str_] | Ints"


class SeriesOptions(PreparedOptions):
    """A prepared data set whose counts hang on its options."""

    counts = ("num_train", "num_test", "num_groups")
    num_train: NumExamples = Field(0, json_schema_extra={"subset": True})
    """Training examples to use; 0 means those of the complete files under the default options. Needed where other
    options (or a part of the files) give another number: the error then says which. Of files with more, a subset.
    """
    num_test: NumExamples = Field(0, json_schema_extra={"subset": True})
    """Test examples to use; 0 as above."""
    num_groups: NumExamples = 0
    """Subjects, films or roles expected in the training examples; 0 as above."""

    def expected(self, info: DataInfo) -> DataInfo:
        """`info` of the complete files, with the counts that the options give instead."""
        given = {name: getattr(self, name) for name in self.counts}
        return replace(info, **{name: count for name, count in given.items() if count})


def find(folder: Path, pattern: str, what: str) -> Path:
    """The one path below `folder` that ends like `pattern`. Raises DataError if there is none, or more than one."""
    # Archives made on a Mac hold a second tree of its own notes.
    found = sorted(path for path in folder.rglob(pattern) if "__MACOSX" not in path.parts)
    if len(found) != 1:
        there = f"{len(found)} of them ({found[0]}, {found[1]})" if found else "none"
        raise DataError(str(folder), f"expected one {pattern} in it or below, found {there}; give the folder of {what}")
    return found[0]


def read_text(path: Path, budget: Budget) -> str:
    """A whole file in UTF-8, every line end as a newline. Raises DataError if it is none, or too large."""
    with guarded(path, "get the files again", "cannot be read as text"):
        return budget.read(path, MAX_TEXT_BYTES).decode("utf-8").replace("\r\n", "\n").replace("\r", "\n")


def leaf_users(
    paths: Sequence[Path], budget: Budget, tell: Tell, kind: type, shrink: Callable[[dict[str, Any]], Any] = dict
) -> Iterator[tuple[Path, str, Any]]:
    """File, user (writer, role) and what `user_data` has of it, of type `kind`, out of LEAF's JSON files.

    `shrink` makes what becomes of each object, as it ends. Raises DataError.
    """
    seen: dict[str, Path] = {}
    for done, path in enumerate(paths, start=1):
        content = read_json(path, budget, shrink)
        users = content.get("user_data") if isinstance(content, dict) else None
        if not isinstance(users, dict) or not all(isinstance(part, kind) for part in users.values()):
            raise DataError(str(path), f"is not a file of LEAF: no 'user_data' with 'x' and 'y' of each user; {_AGAIN}")
        for name, part in users.items():
            if name in seen:
                raise DataError(str(path), f"{name} is in {seen[name]}, too; give the folder of one of them")
            seen[name] = path
            yield path, name, part
        tell(done, len(paths))


def read_json(path: Path, budget: Budget, shrink: Callable[[dict[str, Any]], Any] = dict) -> Any:
    """A file of JSON, in which no object has a name twice: the last one would count, unseen. Raises DataError.

    What parsing takes is estimated before it begins, from the signs that begin a value: some bytes of text make an
    empty list of 64. `shrink` is called as each object ends, so the true need is lower.
    """

    def ended(pairs: list[tuple[str, Any]]) -> Any:
        entries = dict(pairs)
        if len(entries) < len(pairs):
            (name, count), *_ = Counter(name for name, _ in pairs).most_common(1)
            raise ValueError(f"{name} is there {count} times")
        return shrink(entries)

    with guarded(path, _AGAIN, "is not a JSON file of LEAF"), budget.opened(path, MAX_TEXT_BYTES) as file:
        text = file.read()
        estimated = 2 * len(text) + sum(text.count(sign) * size for sign, size in _BYTES_PER_SIGN.items())
        budget.hold(estimated, f"{path.name}, parsed,")
        try:
            return json.loads(text, object_pairs_hook=ended)
        finally:
            budget.release(estimated)


def first_of_test(size: int, test_share: float) -> int:
    """Where the test part of `size` things in time begins: the last `test_share` of them, rounded half up."""
    return size - int(size * test_share + 0.5)


def windows(samples: NDArray[Number], length: int, step: int) -> NDArray[Number]:
    """(n, length, ...): a window every `step` samples, the first one at the beginning; none if there are too few."""
    import numpy as np

    starts = np.arange(0, len(samples) - length + 1, step)
    return samples[starts[:, None] + np.arange(length)]


def number_groups(train: Names, test: Names) -> tuple[Ints, Ints]:
    """Names of each example's group -> numbers: training groups from 0 in sorted order, then those only in test."""
    import numpy as np

    train_names, train_numbers = np.unique(np.asarray(train), return_inverse=True)
    test_names, test_numbers = np.unique(np.asarray(test), return_inverse=True)
    number_of = {name: number for number, name in enumerate(train_names.tolist())}
    for name in test_names.tolist():
        number_of.setdefault(name, len(number_of))
    renumbered = np.array([number_of[name] for name in test_names.tolist()], dtype=np.int64)
    return train_numbers.astype(np.int64), renumbered[test_numbers]
