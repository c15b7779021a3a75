"""A file of the user's own, as `numpy.savez` and `numpy.savez_compressed` write it.

It holds `train_x`, `train_y`, `test_x`, `test_y` and, where they are known, `groups` and `test_groups`; or `x`, `y` and
perhaps `groups`, which `data.test_share` divides. `fedmpi.data.own` says what they may be. Pickled objects are never
read.
"""

from __future__ import annotations

import os
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedmpi.data.files import below_home, guarded
from fedmpi.data.own import Arrays, FileOptions, check_names, divided
from fedmpi.errors import DataError

ADVICE = "write it again by numpy.savez; data.path is the path of an .npz file"


class Npz(FileOptions):
    """Sizes, kind and classes are those of the arrays, so a plan reads the file, too."""

    name: str = "npz"
    """Your own arrays in one .npz file: pictures, vectors or tokens."""

    def arrays(self) -> Arrays:
        where = f"data.path={self.path}"
        arrays = _read(below_home(self.path))
        has_parts = "train_x" in arrays
        if self.test_share and has_parts:
            raise DataError(where, "holds train_x, so it has a test part; remove data.test_share")
        if not (self.test_share or has_parts) and {"x", "y"} <= arrays.keys():
            raise DataError(where, "holds x and y: say by data.test_share, as 0.2, how many are for tests")
        if not self.test_share:
            return arrays
        check_names(where, arrays, ("x", "y"), ("x", "y", "groups"))
        return divided(where, self, arrays["x"], arrays["y"], arrays.get("groups"))


def _read(path: Path) -> dict[str, NDArray[Any]]:
    """Reads all arrays. Raises DataError."""
    if not os.path.exists(path):  # False, too, of a name that is too long
        raise DataError(str(path), "no such file; data.path is the path of an .npz file")
    with guarded(path, ADVICE, "cannot be read"):
        if not zipfile.is_zipfile(path):  # numpy takes it for a pickle, and would say how to load that
            raise ValueError("it is no .npz file")
        with np.load(path, allow_pickle=False) as file:
            return {name: file[name] for name in file.files}
