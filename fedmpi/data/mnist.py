"""MNIST, QMNIST's writers and EMNIST: idx files as distributed, where torchvision or the archives put them.

Sources: checksums of torchvision's datasets/mnist.py (of the packed files; those of the unpacked
ones follow from these); counts of https://www.nist.gov/itl/products-and-services/emnist-dataset;
columns of https://github.com/facebookresearch/qmnist. EMNIST's files have no published checksums
of their own: their types, lengths and labels are checked.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedmpi.data import idx
from fedmpi.data.dataset import Dataset
from fedmpi.data.folders import below_home
from fedmpi.data.image_options import EMNIST_SPLITS, Emnist, Mnist, Qmnist
from fedmpi.data.sources import get_again
from fedmpi.errors import DataError

SIDE, NUM_TRAIN, NUM_TEST = 28, 60_000, 10_000

# QMNIST's test labels go on, beyond MNIST's 10,000 test images, to 50,000 digits that MNIST left out.
QMNIST_ROWS, QMNIST_COLUMNS, CLASS, WRITER = 60_000, 8, 0, 2

# md5 of a file packed, and unpacked.
MD5S: Mapping[str, tuple[str, str]] = {
    "train-images-idx3-ubyte": ("f68b3c2dcbeaaa9fbdd348bbdeb94873", "6bbc9ace898e44ae57da46a324031adb"),
    "train-labels-idx1-ubyte": ("d53e105ee54ea40749a09fcbcd1e9432", "a25bea736e30d166cdddb491f175f624"),
    "t10k-images-idx3-ubyte": ("9fb629c4189551a2d022fa330f9573f3", "2646ac647ad5339dbf082846283269ea"),
    "t10k-labels-idx1-ubyte": ("ec29112dd5afa0611ce80d1b7f02629c", "27ae3e4e09519cfbb04c329615203637"),
    "qmnist-train-labels-idx2-int": ("0058f8dd561b90ffdd0f734c6a30e5e4", "1d43300e7f41ddcbf7fd006cbe865af9"),
    "qmnist-test-labels-idx2-int": ("5b5b05890a5e13444e108efe57b788aa", "5e00709fb0090091f3afc51d204ad83c"),
}
FOLDERS = {
    "mnist": ("MNIST/raw",),
    "qmnist": ("QMNIST/raw", "MNIST/raw"),
    "emnist": ("EMNIST/raw", "EMNIST/raw/gzip", "gzip"),
}


def read_mnist(options: Mnist) -> Dataset:
    """60,000 and 10,000 images, uint8 (N, 28, 28, 1), white on black."""
    return _read_mnist(Files("mnist", options.root))


def read_qmnist(options: Qmnist) -> Dataset:
    """MNIST with its writers: numbered from 0 in the order of their NIST numbers, test writers after training writers.

    No writer is in both parts, so their numbers are apart, too.
    """
    files = Files("qmnist", options.root)
    mnist = _read_mnist(files)
    train = _read_writers(files, "qmnist-train-labels-idx2-int", mnist.train_y)
    test = _read_writers(files, "qmnist-test-labels-idx2-int", mnist.test_y)
    both = np.intersect1d(train, test)
    if len(both):
        raise DataError(files.where, f"NIST writers {both[:5].tolist()} are in both parts of QMNIST's labels")
    _, groups = np.unique(train, return_inverse=True)
    _, test_groups = np.unique(test, return_inverse=True)
    test_groups = test_groups + groups.max() + 1
    return Dataset(mnist.train_x, mnist.train_y, mnist.test_x, mnist.test_y, groups, test_groups)


def read_emnist(options: Emnist) -> Dataset:
    """Images uint8 (N, 28, 28, 1), white on black, upright: the files store columns first."""
    files, split = Files("emnist", options.root), options.split
    _, num_train, num_test = EMNIST_SPLITS[split]
    first_label = 1 if split == "letters" else 0
    arrays: list[NDArray[Any]] = []
    for part, count in (("train", num_train), ("test", num_test)):
        images = files.read(f"emnist-{split}-{part}-images-idx3-ubyte", "uint8", (count, SIDE, SIDE))
        labels = files.read(f"emnist-{split}-{part}-labels-idx1-ubyte", "uint8", (count,))
        upright = np.ascontiguousarray(images.transpose(0, 2, 1))[..., None]
        arrays += [upright, labels.astype(np.int64) - first_label]
    return Dataset(*arrays)


class Files:
    """The files of one data set, in the folders where they may lie, packed or unpacked."""

    def __init__(self, name: str, root: str) -> None:
        base = below_home(root)
        self.where = f"data.root={root}"
        self.folders = [*(base / folder for folder in FOLDERS[name]), base]
        self.missing, self.damaged = get_again(name, root), get_again(name, root, "--force")

    def read(self, name: str, dtype: str, shape: tuple[int, ...]) -> NDArray[Any]:
        """The file's array. Raises DataError if it is missing, damaged, or of another type or shape."""
        path = self.find(name)
        if name in MD5S:
            packed, unpacked = MD5S[name]
            idx.check_md5(path, packed if path.suffix == ".gz" else unpacked, self.damaged)
        return idx.read(path, dtype, shape, self.damaged)

    def find(self, name: str) -> Path:
        for folder in self.folders:
            # torchvision writes t10k-images-idx3-ubyte, some archives t10k-images.idx3-ubyte; packed ones come first.
            for path in (folder / f"{name}.gz", folder / name, folder / name.replace("-idx", ".idx")):
                if path.is_file():
                    return path
        folders = ", ".join(map(str, self.folders))
        raise DataError(self.where, f"neither {name}.gz nor {name} in {folders}; {self.missing}")


def _read_mnist(files: Files) -> Dataset:
    arrays: list[NDArray[Any]] = []
    for part, count in (("train", NUM_TRAIN), ("t10k", NUM_TEST)):
        images = files.read(f"{part}-images-idx3-ubyte", "uint8", (count, SIDE, SIDE))
        labels = files.read(f"{part}-labels-idx1-ubyte", "uint8", (count,))
        arrays += [images[..., None], labels.astype(np.int64)]
    return Dataset(*arrays)


def _read_writers(files: Files, name: str, labels: NDArray[np.int64]) -> NDArray[np.int64]:
    """The NIST number of each image's writer, int64 (N,); the rows must be about images of these labels."""
    table = files.read(name, "int32", (QMNIST_ROWS, QMNIST_COLUMNS))[: len(labels)]
    if not np.array_equal(table[:, CLASS], labels):
        raise DataError(str(files.find(name)), f"its classes are not those of MNIST's images; {files.damaged}")
    return table[:, WRITER].astype(np.int64)
