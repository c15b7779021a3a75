"""A file of the user's own, as `numpy.savez` and `numpy.savez_compressed` write it.

It holds `train_x`, `train_y`, `test_x`, `test_y` and, where they are known, `groups` and `test_groups`; or `x`, `y` and
perhaps `groups`, which `data.test_share` divides. `fedmpi.data.own` says what they may be. Other arrays are refused,
because a misspelled name would be left out without a word; pickled objects are never read.
"""

from __future__ import annotations

import os
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedmpi.data.dataset import PARTS
from fedmpi.data.files import below_home, guarded
from fedmpi.data.own import Arrays, FileOptions, divided
from fedmpi.errors import DataError

ADVICE = "write it again by numpy.savez; data.path is the path of an .npz file"


class Npz(FileOptions):
    """Sizes, kind and classes are those of the arrays, so a plan reads the file, too."""

    name: str = "npz"
    """Your own arrays in one .npz file: pictures, vectors or tokens."""

    def arrays(self) -> Arrays:
        where = f"data.path={self.path}"
        arrays = _read(below_home(self.path))
        is_whole = {"x", "y"} <= {*arrays} and "train_x" not in arrays
        if is_whole and not self.test_share:
            raise DataError(where, "holds x and y: say by data.test_share, as 0.2, how many are for tests")
        if self.test_share and "train_x" in arrays:
            raise DataError(where, "holds train_x, so it has a test part; remove data.test_share")
        wanted = ("x", "y", "groups") if self.test_share else tuple(PARTS)
        holds = f"it holds {', '.join([*arrays][:12]) or 'nothing'}"
        if missing := [name for name in wanted if name not in arrays and "groups" not in name]:
            raise DataError(where, f"has no {' and no '.join(missing)}; {holds}")
        if others := [name for name in arrays if name not in wanted]:
            raise DataError(where, f"holds {', '.join(others[:12])}, which nothing reads; allowed: {', '.join(wanted)}")
        return divided(where, self, arrays["x"], arrays["y"], arrays.get("groups")) if is_whole else arrays


def _read(path: Path) -> dict[str, NDArray[Any]]:
    """Reads all arrays. Raises DataError."""
    if not os.path.exists(path):  # False, too, of a name that is too long
        raise DataError(str(path), "no such file; data.path is the path of an .npz file")
    with guarded(path, ADVICE, "cannot be read"):
        if not zipfile.is_zipfile(path):  # numpy takes it for a pickle, and would say how to load that
            raise ValueError("it is no .npz file")
        with np.load(path, allow_pickle=False) as file:
            return {name: file[name] for name in file.files}
