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
from typing import Any, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from fedmpi.config.fields import Count
from fedmpi.data.dataset import DataInfo, Dataset, NumExamples, number_groups
from fedmpi.data.files import File, Source, Tell, guarded
from fedmpi.data.prepare import PreparedOptions
from fedmpi.data.sets.series import leaf_users
from fedmpi.data.subset import Ints
from fedmpi.errors import DataError, counted
from fedmpi.seeds import numpy_generator

SIDE, NUM_CLASSES = 28, 62
HDF5_FILES = ("fed_emnist_train.h5", "fed_emnist_test.h5")
UNPACK = "unpack fed_emnist.tar.bz2 again"
FOLDERS = ("", "fed_emnist", "femnist", "data", "femnist/data", "leaf/data/femnist/data")

Images: TypeAlias = "tuple[NDArray[np.uint8], Ints]"
"""Images uint8 (n, 28, 28, 1) and labels int64 (n,) of one writer."""
ByWriter = dict[str, Images]
FILE = File(
    "fed_emnist.tar.bz2",
    ("https://storage.googleapis.com/tff-datasets-public/fed_emnist.tar.bz2",),
    "sha256:fe1ed5a502cea3a952eb105920bff8cffb32836b5173cb18a57a32c3606f3ea0",
    contents=("fed_emnist_train.h5",),
)


class Femnist(PreparedOptions):
    counts = ("num_train", "num_test", "num_groups", "test_writers")
    source = Source(
        "https://www.tensorflow.org/federated/api_docs/python/tff/simulation/datasets/emnist",
        "derived from NIST SD 19 by LEAF (BSD) and TensorFlow Federated (Apache 2.0)",
        (FILE,),
        other="LEAF's JSON is made by its own script: `./preprocess.sh -s niid --sf 1.0 -k 0 -t sample` in "
        "data/femnist of https://github.com/TalwalkarLab/leaf; then `prepare femnist --from .../data/femnist/data`",
    )
    name: str = "femnist"
    """Handwritten characters in 62 classes by writer: LEAF's or TensorFlow Federated's files."""
    writers: NumExamples = 0
    """Take only the first so many writers, in the order of their names; 0 takes all."""
    test_examples: NumExamples = 0
    """Take only so many of the test images, drawn at random, the same for every seed; 0 takes all."""
    test_writers: Literal["same", "others"] = "same"
    """Whether the test images are the training writers' (LEAF's `-t sample`) or of other people (`-t user`)."""
    num_train: Count = Field(671_585, json_schema_extra={"subset": True})
    """Training images to use; the default is all of TensorFlow Federated's files. Of files with more, a subset."""
    num_test: Count = Field(77_483, json_schema_extra={"subset": True})
    """Test images to use; the default is all of TensorFlow Federated's files. Of files with more, a subset."""
    num_groups: Count = 3400
    """Writers expected; the default is that of TensorFlow Federated's files."""

    def info(self) -> DataInfo:
        counts, shares = (self.num_train, self.num_test), self.test_writers == "same"
        shape = (1, SIDE, SIDE)
        return DataInfo("image", shape, NUM_CLASSES, *counts, num_groups=self.num_groups, shares_groups=shares)

    def prepare(self, folder: Path, tell: Tell) -> Dataset:
        """Returns images uint8 (N, 28, 28, 1), writer after writer in the order of their names.

        Raises DataError: neither source there, or both; a damaged file; other test writers than the options promise.
        """
        places = [folder / name for name in FOLDERS]
        hdf5 = [place for place in places if any((place / name).is_file() for name in HDF5_FILES)]
        leaf = [place for place in places if any((place / "train").glob("*.json"))]
        if len(hdf5) + len(leaf) != 1:
            found = " and ".join(map(str, [*hdf5, *leaf])) or "neither"
            expected = f"{' and '.join(HDF5_FILES)} (TensorFlow Federated) or train/*.json and test/*.json (LEAF)"
            raise DataError(str(folder), f"expected {expected}, found {found}; give the folder of one")
        if hdf5:
            train, test = (_read_hdf5(hdf5[0] / name, tell) for name in HDF5_FILES)
        else:
            train, test = (_read_json(leaf[0] / part, tell) for part in ("train", "test"))
        return _arrange(self, folder, train, test)


def _arrange(options: Femnist, folder: Path, train: ByWriter, test: ByWriter) -> Dataset:
    """Joins the first writers by name, numbered in that order; test writers of their own are numbered after them."""
    writers = list(train)[: options.writers or None]
    if len(writers) < options.writers:
        found = f"has {counted(len(writers), 'writer')}, data.writers={options.writers} asks for more"
        raise DataError(str(folder), found)
    test_writers = _test_writers(options, folder, writers, train, test)
    if not writers or not test_writers:
        counts = f"{len(writers)} writers to train and of {len(test_writers)} to test"
        raise DataError(str(folder), f"has images of {counts}; there must be some of both")
    train_x, train_y, train_names = _join(train, writers)
    test_x, test_y, test_names = _join(test, test_writers)
    groups, test_groups = number_groups(train_names, test_names)
    chosen: slice | Ints = slice(None)
    if options.test_examples > len(test_y):
        found = f"has {len(test_y):,} test images, data.test_examples={options.test_examples} asks for more"
        raise DataError(str(folder), found)
    if options.test_examples:
        chosen = np.sort(numpy_generator("femnist-test").permutation(len(test_y))[: options.test_examples])
    return Dataset(train_x, train_y, test_x[chosen], test_y[chosen], groups, test_groups[chosen])


def _test_writers(options: Femnist, folder: Path, writers: list[str], train: ByWriter, test: ByWriter) -> list[str]:
    """Returns the writers of the test images. Raises DataError if they are not those that the options promise."""
    others = [name for name in test if name not in train]
    if options.test_writers == "same":
        if others:
            problem = f"test writers {others[:3]} have no training images"
            raise DataError(str(folder), f"{problem}; set data.test_writers=others, or take other files")
        return [name for name in writers if name in test]
    if len(others) < len(test):
        problem = "some test writers have training images, too"
        raise DataError(str(folder), f"{problem}; set data.test_writers=same, or take other files")
    return others


def _join(images: ByWriter, writers: list[str]) -> tuple[NDArray[Any], ...]:
    """Returns images, labels and writers' names of all these writers. Takes them out of `images`: it frees memory."""
    parts = [images.pop(name) for name in writers]
    names = np.repeat(writers, [len(labels) for _, labels in parts])
    return np.concatenate([x for x, _ in parts]), np.concatenate([y for _, y in parts]), names


def _read_hdf5(path: Path, tell: Tell) -> ByWriter:
    """Returns the images of each writer who has some, by name."""
    import h5py

    if not path.is_file():
        raise DataError(str(path.parent), f"{path.name} is missing; {UNPACK}")
    writers: ByWriter = {}
    with guarded(path, UNPACK), h5py.File(path, "r") as file:
        group = file.get("examples")
        if not isinstance(group, h5py.Group):
            raise DataError(str(path), "has no group 'examples'; is it TensorFlow Federated's file?")
        for done, name in enumerate(sorted(group), start=1):
            with guarded(path, UNPACK, f"damaged at writer {name}"):
                writers[name] = _images(group[name]["pixels"][...], group[name]["label"][...])
            tell(done, len(group))
    return {name: images for name, images in writers.items() if len(images[1])}


def _read_json(folder: Path, tell: Tell) -> ByWriter:
    """Returns the images of each writer who has some, by name; a writer's numbers become bytes as they are read."""

    def shrink(entries: dict[str, Any]) -> Any:
        return _images(entries["x"], entries["y"]) if {"x", "y"} <= entries.keys() else entries

    writers = {name: images for _, name, images in leaf_users(sorted(folder.glob("*.json")), tell, tuple, shrink)}
    return {name: writers[name] for name in sorted(writers) if len(writers[name][1])}


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
