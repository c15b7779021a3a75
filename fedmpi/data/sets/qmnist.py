"""QMNIST: MNIST's images, and label files that say who wrote each of them.

Checksums (md5) of torchvision's datasets/mnist.py; columns of https://github.com/facebookresearch/qmnist.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from fedmpi.config.schema import Folder, free
from fedmpi.data.dataset import Dataset
from fedmpi.data.files.idx import Files
from fedmpi.data.files.source import File, Source
from fedmpi.data.options import DataInfo, DataOptions
from fedmpi.data.series import number_groups
from fedmpi.data.sets import mnist
from fedmpi.errors import DataError

# The test labels go on, beyond MNIST's 10,000 test images, to 50,000 digits that MNIST left out.
ROWS, COLUMNS, CLASS, WRITER = 60_000, 8, 0, 2
FOLDERS = ("QMNIST/raw", *mnist.FOLDERS)
MD5S = {
    "qmnist-train-labels-idx2-int": ("0058f8dd561b90ffdd0f734c6a30e5e4", "1d43300e7f41ddcbf7fd006cbe865af9"),
    "qmnist-test-labels-idx2-int": ("5b5b05890a5e13444e108efe57b788aa", "5e00709fb0090091f3afc51d204ad83c"),
}


def _file(name: str, sha256: str, num_bytes: int) -> File:
    url = f"https://raw.githubusercontent.com/facebookresearch/qmnist/master/{name}"
    return File(f"QMNIST/raw/{name}", (url,), f"sha256:{sha256}", num_bytes)


_TRAIN, _TEST = (f"qmnist-{part}-labels-idx2-int.gz" for part in ("train", "test"))
FILES = (
    _file(_TRAIN, "2c05dc77f6b916b38e455e97ab129a42a444f3dbef09b278a366f82904e0dd9f", 463024),
    _file(_TEST, "9fbcbe594c3766fdf4f0b15c5165dc0d1e57ac604e01422608bb72c906030d06", 526800),
)


class Qmnist(DataOptions):
    """C. Yadav and L. Bottou, Cold Case: The Lost MNIST Digits, NeurIPS 2019.

    The images are MNIST's; QMNIST's label files say who wrote each of them. The 297 writers of the
    test images are not among the 539 of the training images.
    """

    source = Source("https://github.com/facebookresearch/qmnist", "labels BSD; images as MNIST", (*mnist.FILES, *FILES))
    name: str = "qmnist"
    """MNIST with the writers of its digits, as QMNIST's labels know them: 539 train, 297 test."""
    root: Folder = free("~/data")
    """The folder that holds MNIST/raw and QMNIST/raw, or the folder with all their files."""

    def info(self) -> DataInfo:
        return DataInfo("image", (1, 28, 28), 10, 60_000, 10_000, mnist.MEAN, mnist.STD, num_groups=539)

    def read(self) -> Dataset:
        """MNIST with its writers, numbered from 0 in the order of their NIST numbers, test writers after the others.

        No writer is in both parts, so their numbers are apart, too.
        """
        files = Files(self.name, self.root, FOLDERS, {**mnist.MD5S, **MD5S})
        images = mnist.read_images(files)
        train = _read_writers(files, "qmnist-train-labels-idx2-int", images.train_y)
        test = _read_writers(files, "qmnist-test-labels-idx2-int", images.test_y)
        both = np.intersect1d(train, test)
        if len(both):
            raise DataError(files.where, f"NIST writers {both[:5].tolist()} are in both parts of QMNIST's labels")
        groups, test_groups = number_groups(train, test)
        return replace(images, groups=groups, test_groups=test_groups)


def _read_writers(files: Files, name: str, labels: NDArray[np.int64]) -> NDArray[np.int64]:
    """The NIST number of each image's writer, int64 (N,); the rows must be about images of these labels."""
    table = files.read(name, "int32", (ROWS, COLUMNS))[: len(labels)]
    if not np.array_equal(table[:, CLASS], labels):
        raise DataError(str(files.find(name)), f"its classes are not those of MNIST's images; {files.damaged}")
    return table[:, WRITER].astype(np.int64)
