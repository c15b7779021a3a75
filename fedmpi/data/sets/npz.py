"""A file of the user's own, as `numpy.savez` and `numpy.savez_compressed` write it.

It holds `train_x`, `train_y`, `test_x`, `test_y` and, where they are known, `groups` and `test_groups`; or `x`, `y` and
perhaps `groups`, which `data.test_share` divides. `fedmpi.data.own` says what they may be. Pickled objects are never
read.
"""

from __future__ import annotations

import zipfile

import numpy as np

from fedmpi.data.files import below_home, guarded
from fedmpi.data.own import Arrays, FileOptions


class Npz(FileOptions):
    """Sizes, kind and classes are those of the arrays, so a plan reads the file, too."""

    name: str = "npz"
    """Your own arrays in one .npz file: pictures, vectors or tokens."""

    def arrays(self) -> Arrays:
        path = below_home(self.path)
        advice = "write it by numpy.savez; data.path is the path of an .npz file"
        with guarded(path, advice, "cannot be read"):
            with path.open("rb") as file:
                if not zipfile.is_zipfile(file):  # numpy takes it for a pickle, and would say how to load that
                    raise ValueError("it is no .npz file")
            with np.load(path, allow_pickle=False) as archive:
                arrays = {name: archive[name] for name in archive.files}
        return self.divided(arrays)
