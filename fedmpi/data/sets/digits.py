"""scikit-learn's digits: real handwriting that travels inside a package.

The file is read where the package keeps it; importing scikit-learn would take 1.5 s of every rank's start. A pixel v of
0..16 becomes v * 255 / 16, rounded half up.
"""

import importlib.util
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fedmpi.data.dataset import DataInfo, DataOptions, Dataset
from fedmpi.data.files import guarded
from fedmpi.errors import DataError
from fedmpi.seeds import mix

NUM_EXAMPLES, NUM_TRAIN, SIDE = 1797, 1437, 8


class Digits(DataOptions):
    """E. Alpaydin and C. Kaynak, Optical Recognition of Handwritten Digits (UCI, 1998), its test part.

    The split is ours and fixed. Digits are cropped with a padding of one pixel and never flipped: a mirrored 2 is no 2.
    """

    name: str = "digits"
    """1,797 real handwritten digits, 8x8 grey, inside the package scikit-learn: no download."""

    def info(self) -> DataInfo:
        num_test = NUM_EXAMPLES - NUM_TRAIN
        return DataInfo("image", (1, SIDE, SIDE), 10, NUM_TRAIN, num_test, (0.3049,), (0.3755,), crop_padding=1)

    def read(self) -> Dataset:
        """Returns 1,437 training and 360 test images, uint8 (N, 8, 8, 1)."""
        package = importlib.util.find_spec("sklearn")
        if package is None or not package.submodule_search_locations:
            raise DataError("data.name=digits", "the package scikit-learn is not installed; pip install scikit-learn")
        path = Path(package.submodule_search_locations[0], "datasets", "data", "digits.csv.gz")
        with guarded(path, "reinstall scikit-learn", "cannot be read"):
            table = np.loadtxt(path, delimiter=",", dtype=np.int64).reshape(NUM_EXAMPLES, SIDE * SIDE + 1)
        images = ((table[:, :-1] * 255 + 8) // 16).astype(np.uint8).reshape(-1, SIDE, SIDE, 1)
        labels = table[:, -1]
        train, test = split()
        return Dataset(images[train], labels[train], images[test], labels[test])


def split() -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Returns the positions in the file of the training and of the test examples, in the order of their hashes, which
    no library's random number generator decides."""
    keys = np.array([mix("digits-split", position) for position in range(NUM_EXAMPLES)])
    order = np.argsort(keys, kind="stable")
    return order[:NUM_TRAIN], order[NUM_TRAIN:]
