"""CIFAR-10 and CIFAR-100: colour pictures, read from the files as distributed ("python version").

Every file's md5 (torchvision's datasets/cifar.py has them) is checked before it is opened as a pickle, so it holds
nothing but what Toronto has pickled.
"""

import hashlib
import pickle
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from fedmpi.data.dataset import DataInfo, Dataset
from fedmpi.data.files import FetchedOptions, guarded
from fedmpi.data.subset import Ints
from fedmpi.errors import DataError


class _Cifar(FetchedOptions):
    """A. Krizhevsky, Learning Multiple Layers of Features from Tiny Images, 2009; normalization as in FedHM's code."""

    train: ClassVar[Mapping[str, str]]
    """The md5 of each file of training images, in the order in which they are read."""
    test: ClassVar[Mapping[str, str]]
    label_key: ClassVar[str]

    def read(self) -> Dataset:
        """Returns all images, uint8 (N, 32, 32, 3), and their labels."""
        name = self.unpacked[0]
        folder = self.folder if self.folder.name == name else self.folder / name
        if not folder.is_dir():
            todo = f"{self.how_to_fetch()}, or set data.root to where they are"
            raise DataError(f"data.root={self.root}", f"there is no folder {folder}; {todo}")
        return Dataset(*self._part(folder, self.train), *self._part(folder, self.test))

    def _part(self, folder: Path, md5s: Mapping[str, str]) -> tuple[NDArray[np.uint8], Ints]:
        batches = []
        for name, md5 in md5s.items():
            path = folder / name
            with guarded(path, self.how_to_fetch("--force")), warnings.catch_warnings():
                content = path.read_bytes()
                digest = hashlib.md5(content, usedforsecurity=False).hexdigest()
                if digest != md5:
                    raise ValueError(f"its {len(content):,} bytes have md5 {digest}, expected {md5}")
                warnings.simplefilter("ignore")  # numpy 2 warns of the module path that numpy 1 has written
                batches.append(pickle.loads(content, encoding="latin1"))  # the text of Python 2
        # Stored channel after channel.
        images = np.concatenate([batch["data"] for batch in batches]).reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)
        return np.ascontiguousarray(images), np.concatenate([batch[self.label_key] for batch in batches])


class Cifar10(_Cifar):
    downloads = ("cifar-10-python.tar.gz",)
    unpacked = ("cifar-10-batches-py",)
    train = {
        "data_batch_1": "c99cafc152244af753f735de768cd75f",
        "data_batch_2": "d4bba439e000b95fd0a9bffe97cbabec",
        "data_batch_3": "54ebc095f3ab1f0389bbae665268c751",
        "data_batch_4": "634d18415352ddfa80567beed471001a",
        "data_batch_5": "482c414d41f54cd18b22e5b47cb7c3cb",
    }
    test = {"test_batch": "40351d587109b95175f43aff81a1287e"}
    label_key = "labels"
    name: str = "cifar10"
    """60,000 colour images 32x32 in 10 classes, files as distributed (python version)."""

    def info(self) -> DataInfo:
        mean, std = (0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010)
        return DataInfo("image", (3, 32, 32), 10, 50_000, 10_000, mean, std, crop_padding=4, flip=True)


class Cifar100(_Cifar):
    downloads = ("cifar-100-python.tar.gz",)
    unpacked = ("cifar-100-python",)
    train = {"train": "16019d7e3df5f24257cddd939b257f8d"}
    test = {"test": "f0ef6b0ae62326f3e7ffdfab6717acfc"}
    label_key = "fine_labels"
    name: str = "cifar100"
    """60,000 colour images 32x32 in 100 classes, files as distributed (python version)."""

    def info(self) -> DataInfo:
        mean, std = (0.5071, 0.4867, 0.4408), (0.2675, 0.2565, 0.2761)
        return DataInfo("image", (3, 32, 32), 100, 50_000, 10_000, mean, std, crop_padding=4, flip=True)
