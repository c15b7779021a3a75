"""FEMNIST, handwritten characters by writer, of TensorFlow Federated or LEAF.

S. Caldas et al., LEAF: A Benchmark for Federated Settings, arXiv:1812.01097; labels are 0-9, A-Z, a-z. In TFF's files
fed_emnist_train.h5 and fed_emnist_test.h5, examples/<writer> has `pixels` (float32 (n, 28, 28)) and `label` (n,); the
documentation of its `simulation.datasets.emnist` has the counts. In LEAF's JSON files a writer has x, 784 numbers each,
and y. In both, ink is dark on paper of 1, and pixels are used as they are.
"""

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedmpi.data.dataset import DataInfo, Dataset
from fedmpi.data.files import CountedOptions, find, guarded, track
from fedmpi.data.sets.steps import ByName, by_names, leaf_users
from fedmpi.data.subset import Ints

SIDE, NUM_CLASSES = 28, 62


class Femnist(CountedOptions):
    downloads = ("fed_emnist.tar.bz2",)
    name: str = "femnist"
    """Handwritten characters in 62 classes by writer: TensorFlow Federated's or LEAF's files."""

    def complete(self) -> DataInfo:
        return DataInfo("image", (1, SIDE, SIDE), NUM_CLASSES, 671_585, 77_483, num_groups=3400, shares_groups=True)

    def prepare(self, folder: Path) -> Dataset:
        """Returns images uint8 (N, 28, 28, 1), writer after writer in the order of their names. Raises DataError."""
        if any(folder.rglob("train/*.json")):
            return by_names(folder, *leaf_users(folder, _images))
        path = find(folder, "fed_emnist_train.h5", "fed_emnist.tar.bz2, or that with LEAF's train/*.json")
        train, test = (_read(path.with_name(f"fed_emnist_{part}.h5")) for part in ("train", "test"))
        return by_names(folder, train, test)


def _read(path: Path) -> ByName:
    """Returns the images of each writer who has some, by name."""
    import h5py

    writers: ByName = {}
    with guarded(path, "unpack fed_emnist.tar.bz2 again"), h5py.File(path, "r") as file:
        group = file["examples"]
        for name in track(sorted(group), f"reading {path.name}"):
            writers[name] = _images(group[name]["pixels"][...], group[name]["label"][...])
    return {name: images for name, images in writers.items() if len(images[1])}


def _images(pixels: Any, labels: Any) -> tuple[NDArray[np.uint8], Ints]:
    """Returns pixels of 0..1 as bytes, (n, 28, 28, 1), and labels of 0..61. Raises ValueError for other numbers."""
    x = np.asarray(pixels).reshape(len(labels), SIDE, SIDE, 1)
    if len(labels) and not (x.min() >= 0 and x.max() <= 1):
        raise ValueError("there are pixels that are no numbers from 0 to 1")
    return np.rint(x * 255).astype(np.uint8), np.asarray(labels).astype(np.int64)
