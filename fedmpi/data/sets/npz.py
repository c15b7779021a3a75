"""A file of the user's own, as `numpy.savez` and `numpy.savez_compressed` write it.

It holds `train_x`, `train_y`, `test_x`, `test_y` and, where they are known, `groups` and `test_groups`; or `x`, `y` and
perhaps `groups`, which `data.test_share` divides. `fedmpi.data.arrays` says what they may be. Other arrays are refused,
because a misspelled name would be left out without a word; pickled objects are never read.
"""

from __future__ import annotations

import os
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedmpi.data import arrays
from fedmpi.data.arrays import Arrays, FileOptions
from fedmpi.data.dataset import PARTS
from fedmpi.data.files.budget import Budget, Limits, guarded
from fedmpi.data.files.source import below_home
from fedmpi.errors import DataError

if TYPE_CHECKING:
    from numpy.typing import NDArray

MAX_BYTES = 2**36  # of the file, and of its arrays in memory
ADVICE = "write it again by numpy.savez; data.path is the path of an .npz file"


class Npz(FileOptions):
    """Sizes, kind and classes are those of the arrays, so a plan reads the file, too."""

    name: str = "npz"
    """Your own arrays in one .npz file: pictures, vectors or tokens."""

    def arrays(self) -> Arrays:
        where, path = f"data.path={self.path}", below_home(self.path)
        has_parts = not self.test_share
        wanted = tuple(PARTS) if has_parts else ("x", "y", "groups")
        found, others = _read(path, wanted)
        if has_parts and {"x", "y"} <= {*others} and "train_x" not in found:
            raise DataError(where, "holds x and y: say by data.test_share, as 0.2, how many are for tests")
        if has_parts:
            if {"train_x", "train_y", "test_x", "test_y"} <= {*found}:  # else what is missing is said
                _refuse(where, others, wanted)
            return found
        if "train_x" in others:
            raise DataError(where, "holds train_x, so it has a test part; remove data.test_share")
        if missing := [name for name in ("x", "y") if name not in found]:
            holds = f"it holds {', '.join([*found, *others][:12]) or 'nothing'}"
            raise DataError(where, f"has no {' and no '.join(missing)}; {holds}")
        _refuse(where, others, wanted)
        return arrays.divided(where, self, found["x"], found["y"], found.get("groups"))


def _refuse(where: str, others: Sequence[str], wanted: Sequence[str]) -> None:
    """Raises DataError for arrays that nothing reads."""
    if others:
        raise DataError(where, f"holds {', '.join(others[:12])}, which nothing reads; allowed: {', '.join(wanted)}")


def _read(path: Path, wanted: tuple[str, ...]) -> tuple[dict[str, NDArray[Any]], list[str]]:
    """The arrays with these names, and the names of the others. Raises DataError."""
    import numpy as np

    if not os.path.exists(path):  # False, too, of a name that is too long
        raise DataError(str(path), "no such file; data.path is the path of an .npz file")
    budget = Budget(path, Limits(max_held_bytes=2 * MAX_BYTES))
    with guarded(path, ADVICE, "cannot be read"), budget.opened(path, MAX_BYTES) as file:
        if file.read(2) != b"PK":  # numpy takes it for a pickle, and would say how to load that
            raise ValueError("it is no .npz file")
        file.seek(0)
        try:
            with zipfile.ZipFile(file) as archive:
                budget.hold(sum(entry.file_size for entry in archive.infolist()), "its arrays")
            found = np.load(file, allow_pickle=False)
            others = [name for name in found.files if name not in wanted]
            return {name: found[name] for name in found.files if name in wanted}, others
        except zipfile.BadZipFile as error:
            raise ValueError(str(error)) from error
