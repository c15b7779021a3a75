"""CIFAR-100: a hundred classes of colour pictures, read from the files as distributed."""

from __future__ import annotations

from fedmpi.config.schema import Folder, free
from fedmpi.data.dataset import Dataset
from fedmpi.data.files import cifar
from fedmpi.data.files.cifar import Format
from fedmpi.data.options import DataInfo, DataOptions

FORMAT = Format(
    name="cifar100",
    folder="cifar-100-python",
    archive="cifar-100-python.tar.gz",
    sha256="85cd44d02ba6437773c5bbd22e183051d648de2e7d6b014e1ef29b855ba677a7",
    num_bytes=169_001_437,
    train={"train": "16019d7e3df5f24257cddd939b257f8d"},
    test={"test": "f0ef6b0ae62326f3e7ffdfab6717acfc"},
    meta={"meta": "7973b15100ade9c7d40fb424638fde48"},
    label_key="fine_labels",
    names_key="fine_label_names",
    num_classes=100,
)


class Cifar100(DataOptions):
    """A. Krizhevsky, Learning Multiple Layers of Features from Tiny Images, 2009; normalization as in FedHM's code."""

    source = FORMAT.source
    name: str = "cifar100"
    """60,000 colour images 32x32 in 100 classes, files as distributed (python version)."""
    root: Folder = free("~/data")
    """The folder that holds cifar-100-python, or that folder itself."""

    def info(self) -> DataInfo:
        mean, std = (0.5071, 0.4867, 0.4408), (0.2675, 0.2565, 0.2761)
        return DataInfo("image", (3, 32, 32), 100, 50_000, 10_000, mean, std, crop_padding=4, flip=True)

    def read(self) -> Dataset:
        return cifar.read(self.root, FORMAT)
