"""From options to examples that are what the options promise, with a digest by which a run knows its data again."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from fedmpi.config.fields import DATA_PLACES
from fedmpi.data import subset
from fedmpi.data.dataset import Dataset, check, chunks, num_rows
from fedmpi.data.options import DataOptions, Part
from fedmpi.disk.plain import DIGEST_BYTES

if TYPE_CHECKING:
    from numpy.typing import NDArray


def load(options: DataOptions) -> Dataset:
    """The examples that `options` name and ask for, with their digest; nothing is ever downloaded.

    Raises DataError, one line a problem, if files are missing, damaged or not what they should be.
    """
    whole = options.read()
    found: Mapping[Part, int] = {"train": num_rows(whole.train_y), "test": num_rows(whole.test_y)}
    dataset = subset.taken(options, check(f"data.name={options.name}", whole, options.info_of(found)))
    return dataset if dataset.digest else replace(dataset, digest=digest_of(dataset.arrays))


def digest_of(arrays: Mapping[str, NDArray[Any] | None]) -> str:
    """BLAKE2b (128 bits, hex) of the names, types, shapes and values of a Dataset's arrays; None is an absent one.

    It depends on nothing else: neither on the files that the arrays were read from, nor on the byte order or the
    memory layout. Takes 0.8 s for each GB on one core of an AMD EPYC.
    """
    state = hashlib.blake2b(digest_size=DIGEST_BYTES)
    for name, array in sorted(arrays.items()):
        if array is None:
            continue
        dtype = array.dtype.newbyteorder("<")
        state.update(repr((name, dtype.str, array.shape)).encode())
        for chunk in chunks(array, dtype):
            state.update(chunk)
    return state.hexdigest()


def short(digest: str) -> str:
    """A digest as messages print it."""
    return digest[:12]


def place(options: DataOptions) -> str:
    """Where a data set comes from, as a key of the config: its folder or file, or its name where it has none."""
    key = next((key for key in DATA_PLACES if hasattr(options, key)), "name")
    return f"data.{key}={getattr(options, key)}"
