"""FEMNIST, handwritten characters by writer, out of either of its two sources.

S. Caldas et al., LEAF: A Benchmark for Federated Settings, arXiv:1812.01097; labels are 0-9, A-Z, a-z. TensorFlow
Federated (its documentation of `simulation.datasets.emnist` has the default counts): fed_emnist_train.h5 and
fed_emnist_test.h5, in which examples/<writer> has `pixels` (float32 (n, 28, 28)) and `label` (n,). LEAF
(https://github.com/TalwalkarLab/leaf): its preprocess.sh writes data/train/*.json and data/test/*.json, each
{"users", "num_samples", "user_data": {writer: {"x": [784 numbers each], "y": [...]}}}. In both, ink is dark on paper
of 1, and pixels are used as they are.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from fedmpi.data.dataset import DataInfo, Dataset
from fedmpi.data.files import Source, guarded, track
from fedmpi.data.prepare import CountedOptions
from fedmpi.data.sets.steps import ByName, by_names, leaf_users
from fedmpi.data.subset import Ints
from fedmpi.errors import DataError

SIDE, NUM_CLASSES = 28, 62
PARTS = ("train", "test")
UNPACK = "unpack fed_emnist.tar.bz2 again"

Images: TypeAlias = "tuple[NDArray[np.uint8], Ints]"
"""Images uint8 (n, 28, 28, 1) and labels int64 (n,) of one writer."""


class Femnist(CountedOptions):
    source = Source(
        "https://www.tensorflow.org/federated/api_docs/python/tff/simulation/datasets/emnist",
        "derived from NIST SD 19 by LEAF (BSD) and TensorFlow Federated (Apache 2.0)",
        ("fed_emnist.tar.bz2",),
    )
    name: str = "femnist"
    """Handwritten characters in 62 classes by writer: LEAF's or TensorFlow Federated's files."""

    def info(self) -> DataInfo:
        """Returns the counts of TensorFlow Federated's files."""
        return DataInfo("image", (1, SIDE, SIDE), NUM_CLASSES, 671_585, 77_483, num_groups=3400, shares_groups=True)

    def prepare(self, folder: Path) -> Dataset:
        """Returns images uint8 (N, 28, 28, 1), writer after writer in the order of their names.

        Raises DataError: neither source there, or both; a damaged file; test writers without training images.
        """
        hdf5 = sorted(folder.rglob("fed_emnist_train.h5"))
        leaf = sorted({path.parent for path in folder.rglob("train/*.json")})
        if len(hdf5) + len(leaf) != 1:
            found = " and ".join(map(str, [*hdf5, *leaf])) or "neither"
            expected = "fed_emnist_train.h5 (TensorFlow Federated) or train/*.json (LEAF) in it or below"
            raise DataError(str(folder), f"expected {expected}, found {found}; give the folder of one")
        if hdf5:
            train, test = (_read_hdf5(hdf5[0].with_name(f"fed_emnist_{part}.h5")) for part in PARTS)
        else:
            train, test = (_read_json(leaf[0].with_name(part)) for part in PARTS)
        return by_names(folder, train, test)


def _read_hdf5(path: Path) -> ByName:
    """Returns the images of each writer who has some, by name."""
    import h5py

    writers: ByName = {}
    with guarded(path, UNPACK), h5py.File(path, "r") as file:
        group = file["examples"]
        for name in track(sorted(group), f"reading {path.name}"):
            with guarded(path, UNPACK, f"damaged at writer {name}"):
                writers[name] = _images(group[name]["pixels"][...], group[name]["label"][...])
    return {name: images for name, images in writers.items() if len(images[1])}


def _read_json(folder: Path) -> ByName:
    """Returns the images of each writer who has some, by name; a writer's numbers become bytes as they are read."""

    def shrink(entries: dict[str, Any]) -> Any:
        return _images(entries["x"], entries["y"]) if {"x", "y"} <= entries.keys() else entries

    users = leaf_users(sorted(folder.glob("*.json")), tuple, shrink)
    return {name: images for _, name, images in users if len(images[1])}


def _images(pixels: Any, labels: Any) -> Images:
    """Returns pixels of 0..1, 784 an image, as bytes, and labels of 0..61. Raises ValueError for other numbers."""
    x, y = np.asarray(pixels), np.asarray(labels).reshape(-1)
    if x.size != len(y) * SIDE * SIDE:
        raise ValueError(f"{x.shape} pixels do not make {len(y)} images of {SIDE}x{SIDE}")
    if len(y):
        if x.dtype.kind not in "fiu" or not (x.min() >= 0 and x.max() <= 1):
            raise ValueError("there are pixels that are no numbers from 0 to 1")
        if y.dtype.kind not in "iu" or y.min() < 0 or y.max() >= NUM_CLASSES:
            raise ValueError(f"there are labels that are no numbers from 0 to {NUM_CLASSES - 1}")
    return np.rint(x * 255).astype(np.uint8).reshape(-1, SIDE, SIDE, 1), y.astype(np.int64)
