"""From options to examples: the one place that knows which module reads which data set."""

from __future__ import annotations

from collections.abc import Callable

from fedmpi.data import cifar, digits, synthetic
from fedmpi.data.dataset import Dataset, check
from fedmpi.data.options import DataOptions

READERS: dict[str, Callable[..., Dataset]] = {
    "digits": digits.read,
    "cifar10": cifar.read_cifar10,
    "cifar100": cifar.read_cifar100,
    "synthetic": synthetic.read,
}


def load(options: DataOptions) -> Dataset:
    """The examples of the data set that `options` names; nothing is ever downloaded.

    Raises DataError, one line a problem, if files are missing, damaged or not what they should be.
    """
    return check(f"data.name={options.name}", READERS[options.name](options), options.info())
