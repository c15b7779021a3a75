"""Data sets, how they are divided among clients, and batches of them on a device.

`NAMES` and `PARTITIONS` are what a configuration can choose from; both load neither torch nor
numpy. To add a data set: an options class in `options.py`, a module that reads it, one line here
and one in `reading.py`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fedmpi.config.schema import Choice
from fedmpi.data.image_options import Emnist, Femnist, Mnist, Qmnist, TinyImagenet
from fedmpi.data.options import Cifar10, Cifar100, DataInfo, DataOptions, Digits, Synthetic
from fedmpi.data.partition_options import (
    ClassDirichlet,
    Dirichlet,
    DirichletEqual,
    DirichletFeddf,
    Iid,
    Lottery,
    Natural,
    QuantitySkew,
    Shards,
)
from fedmpi.data.series_options import Har, Imdb, Shakespeare
from fedmpi.lazy import exports

if TYPE_CHECKING:
    from fedmpi.data.batches import DeviceData, Draws
    from fedmpi.data.bounds import batch_bounds
    from fedmpi.data.dataset import Dataset
    from fedmpi.data.own_tests import personal_tests
    from fedmpi.data.partition import Partition, make_partition, present_labels
    from fedmpi.data.reading import load

__all__ = [
    "NAMES",
    "PARTITIONS",
    "Cifar10",
    "Cifar100",
    "ClassDirichlet",
    "DataInfo",
    "DataOptions",
    "Dataset",
    "DeviceData",
    "Digits",
    "Dirichlet",
    "DirichletEqual",
    "DirichletFeddf",
    "Draws",
    "Emnist",
    "Femnist",
    "Har",
    "Iid",
    "Imdb",
    "Lottery",
    "Mnist",
    "Natural",
    "Partition",
    "Qmnist",
    "QuantitySkew",
    "Shakespeare",
    "Shards",
    "Synthetic",
    "TinyImagenet",
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
    "mnist": Choice(Mnist, "70,000 handwritten digits, 28x28 grey, idx files as distributed"),
    "qmnist": Choice(Qmnist, "MNIST with the writers of its digits, as QMNIST's labels know them: 539 train, 297 test"),
    "emnist": Choice(Emnist, "up to 814,255 handwritten characters in up to 62 classes, NIST's idx files"),
    "femnist": Choice(
        Femnist, "handwritten characters in 62 classes by writer: LEAF's or TensorFlow Federated's files"
    ),
    "tinyimagenet": Choice(TinyImagenet, "110,000 colour pictures 64x64 in 200 classes, prepared from the JPEG files"),
    "har": Choice(
        Har, "activities of 30 people from a phone's sensors, 6 classes: HAPT's raw signals or UCI HAR's features"
    ),
    "imdb": Choice(Imdb, "50,000 film reviews, good or bad, as rows of word numbers (a vocabulary of 1,001)"),
    "shakespeare": Choice(Shakespeare, "plays by role, the next character: tinyshakespeare or LEAF's files"),
    "synthetic": Choice(Synthetic, "generated images of any shape and class count, for load tests and benchmarks"),
}

PARTITIONS: dict[str, Choice] = {
    "iid": Choice(Iid, "contiguous slices of equal size, in file order or shuffled"),
    "dirichlet_feddf": Choice(DirichletFeddf, "label skew as in FedHM's tables (FedDF's procedure): equal sizes"),
    "dirichlet": Choice(Dirichlet, "label skew of Hsu et al. 2019: a Dirichlet class mixture per client; equal sizes"),
    "class_dirichlet": Choice(ClassDirichlet, "each class divided among clients by a Dirichlet: uneven labels, sizes"),
    "dirichlet_equal": Choice(DirichletEqual, "label skew as in PriSM: a class mixture per client, equal sizes"),
    "shards": Choice(Shards, "a few shards of one class each per client, as in HeteroFL"),
    "lottery": Choice(Lottery, "a few examples of two distinct classes per client, as in LotteryFL and Hermes"),
    "natural": Choice(Natural, "by writer, subject or role, where the data say whose they are"),
    "quantity_skew": Choice(QuantitySkew, "sizes by a Dirichlet draw, classes at random"),
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
