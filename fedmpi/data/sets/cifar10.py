"""CIFAR-10: ten classes of colour pictures, read from the files as distributed."""

from __future__ import annotations

from fedmpi.config.schema import Folder, free
from fedmpi.data.dataset import Dataset
from fedmpi.data.files import cifar
from fedmpi.data.files.cifar import Format
from fedmpi.data.options import DataInfo, DataOptions

FORMAT = Format(
    name="cifar10",
    folder="cifar-10-batches-py",
    archive="cifar-10-python.tar.gz",
    sha256="6d958be074577803d12ecdefd02955f39262c83c16fe9348329d7fe0b5c001ce",
    num_bytes=170_498_071,
    train={
        "data_batch_1": "c99cafc152244af753f735de768cd75f",
        "data_batch_2": "d4bba439e000b95fd0a9bffe97cbabec",
        "data_batch_3": "54ebc095f3ab1f0389bbae665268c751",
        "data_batch_4": "634d18415352ddfa80567beed471001a",
        "data_batch_5": "482c414d41f54cd18b22e5b47cb7c3cb",
    },
    test={"test_batch": "40351d587109b95175f43aff81a1287e"},
    meta={"batches.meta": "5ff9c542aee3614f3951f8cda6e48888"},
    label_key="labels",
    names_key="label_names",
    num_classes=10,
)


class Cifar10(DataOptions):
    """A. Krizhevsky, Learning Multiple Layers of Features from Tiny Images, 2009; normalization as in FedHM's code."""

    source = FORMAT.source
    name: str = "cifar10"
    """60,000 colour images 32x32 in 10 classes, files as distributed (python version)."""
    root: Folder = free("~/data")
    """The folder that holds cifar-10-batches-py, or that folder itself."""

    def info(self) -> DataInfo:
        mean, std = (0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010)
        return DataInfo("image", (3, 32, 32), 10, 50_000, 10_000, mean, std, crop_padding=4, flip=True)

    def read(self) -> Dataset:
        return cifar.read(self.root, FORMAT)
