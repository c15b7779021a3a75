"""Data sets, how they are divided among clients, and batches of them on a device.

`NAMES` and `PARTITIONS` are what a configuration can choose from; both load neither torch nor
numpy. To add a data set: an options class in `options.py`, a module that reads it, one line here
and one in `reading.py`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fedmpi.config.schema import Choice
from fedmpi.data.options import Cifar10, Cifar100, DataInfo, DataOptions, Digits, Synthetic
from fedmpi.data.partition_options import ClassDirichlet, Dirichlet, DirichletFeddf, Iid
from fedmpi.lazy import exports

if TYPE_CHECKING:
    from fedmpi.data.batches import DeviceData, Draws
    from fedmpi.data.bounds import batch_bounds
    from fedmpi.data.dataset import Dataset
    from fedmpi.data.partition import Partition, make_partition, present_labels
    from fedmpi.data.personal import personal_tests
    from fedmpi.data.reading import load

__all__ = [
    "Cifar10",
    "Cifar100",
    "ClassDirichlet",
    "DataInfo",
    "DataOptions",
    "Dataset",
    "DeviceData",
    "Digits",
    "Dirichlet",
    "DirichletFeddf",
    "Draws",
    "Iid",
    "NAMES",
    "PARTITIONS",
    "Partition",
    "Synthetic",
    "batch_bounds",
    "info",
    "load",
    "make_partition",
    "personal_tests",
    "present_labels",
]

NAMES: dict[str, Choice] = {
    "digits": Choice(Digits, "1,797 real handwritten digits, 8x8 grey, inside the package scikit-learn: no download"),
    "cifar10": Choice(Cifar10, "60,000 colour images 32x32 in 10 classes, files as distributed (python version)"),
    "cifar100": Choice(Cifar100, "60,000 colour images 32x32 in 100 classes, files as distributed (python version)"),
    "synthetic": Choice(Synthetic, "generated images of any shape and class count, for load tests and benchmarks"),
}

PARTITIONS: dict[str, Choice] = {
    "iid": Choice(Iid, "contiguous slices of equal size, in file order or shuffled"),
    "dirichlet_feddf": Choice(DirichletFeddf, "label skew as in FedHM's tables (FedDF's procedure): equal sizes"),
    "dirichlet": Choice(Dirichlet, "label skew of Hsu et al. 2019: a Dirichlet class mixture per client; equal sizes"),
    "class_dirichlet": Choice(ClassDirichlet, "each class divided among clients by a Dirichlet: uneven labels, sizes"),
}


def info(options: DataOptions) -> DataInfo:
    """Shape, classes, counts and normalization of a data set; reads no file."""
    return options.info()


__getattr__ = exports(
    __name__,
    {
        "Dataset": "dataset",
        "load": "reading",
        "Partition": "partition",
        "make_partition": "partition",
        "present_labels": "partition",
        "personal_tests": "personal",
        "batch_bounds": "bounds",
        "DeviceData": "batches",
        "Draws": "batches",
    },
)
