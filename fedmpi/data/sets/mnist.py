"""MNIST, QMNIST (who wrote its digits) and EMNIST: idx files as distributed, or where torchvision puts them.

An idx file is two zero bytes, a byte for the type, one for the number of axes, the length of each axis (4 bytes,
big-endian), and the values, big-endian; it is packed by gzip or not.
"""

import gzip
import struct
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from fedmpi.data.dataset import DataInfo, Dataset, number_groups
from fedmpi.data.files import FetchedOptions, guarded
from fedmpi.data.subset import Ints
from fedmpi.errors import DataError

TYPES = {"uint8": 8, "int32": 12}
SIDE, NUM_TRAIN, NUM_TEST = 28, 60_000, 10_000
# Mean and standard deviation of the training pixels / 255, to the digits in common use.
MEAN, STD = (0.1307,), (0.3081,)
# The first columns of QMNIST's labels are class, series and writer. Its test labels go on beyond MNIST's 10,000 images.
ROWS, COLUMNS, CLASS, WRITER = 60_000, 8, 0, 2
FILES = (
    "MNIST/raw/train-images-idx3-ubyte.gz",
    "MNIST/raw/train-labels-idx1-ubyte.gz",
    "MNIST/raw/t10k-images-idx3-ubyte.gz",
    "MNIST/raw/t10k-labels-idx1-ubyte.gz",
)
# Classes, training and test images of each of NIST's six divisions.
SPLITS = {
    "balanced": (47, 112_800, 18_800),
    "byclass": (62, 697_932, 116_323),
    "bymerge": (47, 697_932, 116_323),
    "digits": (10, 240_000, 40_000),
    "letters": (26, 124_800, 20_800),
    "mnist": (10, 60_000, 10_000),
}


class IdxOptions(FetchedOptions):
    """A data set of idx files, in one of the `folders` below data.root or in data.root itself."""

    folders: ClassVar[tuple[str, ...]]

    def array(self, name: str, dtype: str, shape: tuple[int, ...]) -> NDArray[Any]:
        """Returns the file's array. Raises DataError unless it is whole, of this dtype ("uint8", "int32") and shape."""
        path = self.find(name)
        head = struct.pack(f">BBBB{len(shape)}I", 0, 0, TYPES[dtype], len(shape), *shape)
        with guarded(path, self.how_to_fetch("--force")):
            content = path.read_bytes()
            if path.suffix == ".gz":
                content = gzip.decompress(content)
            if not content.startswith(head):
                raise ValueError(f"it does not begin as an idx file of {dtype} {shape}")
            return np.frombuffer(content[len(head) :], np.dtype(dtype).newbyteorder(">")).reshape(shape).astype(dtype)

    def part(self, name: str, count: int) -> tuple[NDArray[Any], Ints]:
        """Returns images, uint8 (count, 28, 28, 1), and their labels, int64 (count,)."""
        images = self.array(f"{name}-images-idx3-ubyte", "uint8", (count, SIDE, SIDE))
        labels = self.array(f"{name}-labels-idx1-ubyte", "uint8", (count,))
        return images[..., None], labels.astype(np.int64)

    def find(self, name: str) -> Path:
        folders = [*(self.folder / below for below in self.folders), self.folder]
        for folder in folders:
            for path in (folder / f"{name}.gz", folder / name):
                if path.is_file():
                    return path
        places = ", ".join(map(str, folders))
        raise DataError(f"data.root={self.root}", f"neither {name}.gz nor {name} in {places}; {self.how_to_fetch()}")


class Mnist(IdxOptions):
    """Y. LeCun, L. Bottou, Y. Bengio, P. Haffner, Gradient-Based Learning Applied to Document Recognition, 1998."""

    downloads: ClassVar[tuple[str, ...]] = FILES
    folders: ClassVar[tuple[str, ...]] = ("MNIST/raw",)
    name: str = "mnist"
    """70,000 handwritten digits, 28x28 grey, idx files as distributed."""

    def info(self) -> DataInfo:
        return DataInfo("image", (1, SIDE, SIDE), 10, NUM_TRAIN, NUM_TEST, MEAN, STD)

    def read(self) -> Dataset:
        """Returns 60,000 and 10,000 images, uint8 (N, 28, 28, 1), white on black."""
        return Dataset(*self.part("train", NUM_TRAIN), *self.part("t10k", NUM_TEST))


class Qmnist(Mnist):
    """C. Yadav and L. Bottou, Cold Case: The Lost MNIST Digits, NeurIPS 2019. Its label files say who wrote each of
    MNIST's images; no writer is in both parts."""

    downloads = (*FILES, "QMNIST/raw/qmnist-train-labels-idx2-int.gz", "QMNIST/raw/qmnist-test-labels-idx2-int.gz")
    folders = ("QMNIST/raw", "MNIST/raw")
    name: str = "qmnist"
    """MNIST with the writers of its digits, as QMNIST's labels know them: 539 train, 297 test."""

    def info(self) -> DataInfo:
        return replace(super().info(), num_groups=539)

    def read(self) -> Dataset:
        """Returns MNIST with its writers, numbered from 0 by their NIST numbers, test writers after the others."""
        images = super().read()
        train = self._writers("train", images.train_y)
        groups, test_groups = number_groups(train, self._writers("test", images.test_y))
        return replace(images, groups=groups, test_groups=test_groups)

    def _writers(self, part: str, labels: Ints) -> Ints:
        """Returns the NIST number of each image's writer, int64 (N,); the rows must be about images of these labels."""
        name = f"qmnist-{part}-labels-idx2-int"
        table = self.array(name, "int32", (ROWS, COLUMNS))[: len(labels)]
        if not np.array_equal(table[:, CLASS], labels):
            todo = self.how_to_fetch("--force")
            raise DataError(str(self.find(name)), f"its classes are not those of MNIST's images; {todo}")
        return table[:, WRITER].astype(np.int64)


class Emnist(IdxOptions):
    """G. Cohen, S. Afshar, J. Tapson, A. van Schaik, EMNIST: an extension of MNIST to handwritten letters, 2017; pixels
    are normalized as MNIST's."""

    downloads = ("EMNIST/raw/gzip.zip",)
    unpacked = ("EMNIST/raw/gzip", "EMNIST/raw/emnist-byclass-train-images-idx3-ubyte.gz")
    folders = ("EMNIST/raw", "EMNIST/raw/gzip", "gzip")
    name: str = "emnist"
    """Up to 814,255 handwritten characters in up to 62 classes, NIST's idx files."""
    split: Literal["balanced", "byclass", "bymerge", "digits", "letters", "mnist"] = "byclass"
    """Which of NIST's divisions: `byclass` has all 62 classes, `bymerge` and `balanced` 47, `letters` 26, others 10."""

    def info(self) -> DataInfo:
        num_classes, num_train, num_test = SPLITS[self.split]
        return DataInfo("image", (1, SIDE, SIDE), num_classes, num_train, num_test, MEAN, STD)

    def read(self) -> Dataset:
        """Returns images uint8 (N, 28, 28, 1), white on black, upright: the files store columns first."""
        _, num_train, num_test = SPLITS[self.split]
        return Dataset(*self._upright("train", num_train), *self._upright("test", num_test))

    def _upright(self, part: str, count: int) -> tuple[NDArray[Any], Ints]:
        x, y = self.part(f"emnist-{self.split}-{part}", count)
        first_label = 1 if self.split == "letters" else 0
        return np.ascontiguousarray(x.transpose(0, 2, 1, 3)), y - first_label
