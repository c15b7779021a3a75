"""From options to examples that are what the options promise, with their digest."""

from __future__ import annotations

from dataclasses import replace

from fedmpi.data.dataset import Dataset, check
from fedmpi.data.digest import digest_of
from fedmpi.data.options import DataOptions


def load(options: DataOptions) -> Dataset:
    """The examples of the data set that `options` names, with their digest; nothing is ever downloaded.

    Raises DataError, one line a problem, if files are missing, damaged or not what they should be.
    """
    dataset = check(f"data.name={options.name}", options.read(), options.info())
    return dataset if dataset.digest else replace(dataset, digest=digest_of(dataset.arrays))
