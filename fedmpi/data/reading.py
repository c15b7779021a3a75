"""From options to examples: the one place that knows which module reads which data set."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from fedmpi.data import cifar, digits, mnist, prepared, synthetic
from fedmpi.data.dataset import Dataset, check
from fedmpi.data.digest import digest_of
from fedmpi.data.options import DataOptions

READERS: dict[str, Callable[..., Dataset]] = {
    "digits": digits.read,
    "cifar10": cifar.read_cifar10,
    "cifar100": cifar.read_cifar100,
    "mnist": mnist.read_mnist,
    "qmnist": mnist.read_qmnist,
    "emnist": mnist.read_emnist,
    "femnist": prepared.read,
    "tinyimagenet": prepared.read,
    "har": prepared.read,
    "imdb": prepared.read,
    "shakespeare": prepared.read,
    "synthetic": synthetic.read,
}


def load(options: DataOptions) -> Dataset:
    """The examples of the data set that `options` names, with their digest; nothing is ever downloaded.

    Raises DataError, one line a problem, if files are missing, damaged or not what they should be.
    """
    dataset = check(f"data.name={options.name}", READERS[options.name](options), options.info())
    return dataset if dataset.digest else replace(dataset, digest=digest_of(dataset.arrays))
