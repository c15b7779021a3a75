"""MNIST: idx files as distributed, where torchvision or the archives put them.

Checksums (md5) of torchvision's datasets/mnist.py, of the packed files; those of the unpacked ones follow from these.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedmpi.config.schema import Folder, free
from fedmpi.data.dataset import Dataset
from fedmpi.data.files.idx import Files
from fedmpi.data.files.source import File, Source
from fedmpi.data.options import DataInfo, DataOptions

SIDE, NUM_TRAIN, NUM_TEST = 28, 60_000, 10_000
# Mean and standard deviation of the training pixels / 255, to the digits in common use.
MEAN, STD = (0.1307,), (0.3081,)
FOLDERS = ("MNIST/raw",)
MD5S: Mapping[str, tuple[str, str]] = {
    "train-images-idx3-ubyte": ("f68b3c2dcbeaaa9fbdd348bbdeb94873", "6bbc9ace898e44ae57da46a324031adb"),
    "train-labels-idx1-ubyte": ("d53e105ee54ea40749a09fcbcd1e9432", "a25bea736e30d166cdddb491f175f624"),
    "t10k-images-idx3-ubyte": ("9fb629c4189551a2d022fa330f9573f3", "2646ac647ad5339dbf082846283269ea"),
    "t10k-labels-idx1-ubyte": ("ec29112dd5afa0611ce80d1b7f02629c", "27ae3e4e09519cfbb04c329615203637"),
}


def _file(name: str, sha256: str, num_bytes: int) -> File:
    mirrors = ("https://ossci-datasets.s3.amazonaws.com/mnist/", "https://storage.googleapis.com/cvdf-datasets/mnist/")
    return File(f"MNIST/raw/{name}", tuple(f"{mirror}{name}" for mirror in mirrors), f"sha256:{sha256}", num_bytes)


FILES = (
    _file("train-images-idx3-ubyte.gz", "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609", 9912422),
    _file("train-labels-idx1-ubyte.gz", "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c", 28881),
    _file("t10k-images-idx3-ubyte.gz", "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6", 1648877),
    _file("t10k-labels-idx1-ubyte.gz", "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6", 4542),
)


class Mnist(DataOptions):
    """Y. LeCun, L. Bottou, Y. Bengio, P. Haffner, Gradient-Based Learning Applied to Document Recognition, 1998."""

    source = Source("http://yann.lecun.com/exdb/mnist/", "usually given as CC BY-SA 3.0", FILES)
    name: str = "mnist"
    """70,000 handwritten digits, 28x28 grey, idx files as distributed."""
    root: Folder = free("~/data")
    """The folder that holds MNIST/raw, or the folder with the files itself."""

    def info(self) -> DataInfo:
        return DataInfo("image", (1, 28, 28), 10, 60_000, 10_000, MEAN, STD)

    def read(self) -> Dataset:
        """60,000 and 10,000 images, uint8 (N, 28, 28, 1), white on black."""
        return read_images(Files(self.name, self.root, FOLDERS, MD5S))


def read_images(files: Files) -> Dataset:
    """MNIST's images and labels, without writers."""
    arrays: list[NDArray[Any]] = []
    for part, count in (("train", NUM_TRAIN), ("t10k", NUM_TEST)):
        images = files.read(f"{part}-images-idx3-ubyte", "uint8", (count, SIDE, SIDE))
        labels = files.read(f"{part}-labels-idx1-ubyte", "uint8", (count,))
        arrays += [images[..., None], labels.astype(np.int64)]
    return Dataset(*arrays)
