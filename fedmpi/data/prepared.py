"""Data sets that take decoding (archives of pictures, texts, signals): decoded once, kept as one HDF5 file.

`python -m fedmpi.data prepare NAME` writes the file, every rank of a run reads it. It says by which
recipe it was made (the options that decide what is in it), and a run with other options refuses it.
Arrays are stored whole and uncompressed, so reading is a copy from the page cache.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from fedmpi.data.dataset import Dataset
from fedmpi.data.prepared_options import PreparedOptions, how_to_prepare
from fedmpi.data.sources import how_to_fetch
from fedmpi.errors import DataError

FORMAT = "fedmpi data 1"
ARRAYS = ("train_x", "train_y", "test_x", "test_y", "groups", "test_groups")
MAX_RECIPE_CHARACTERS = 10_000


def save(options: PreparedOptions, dataset: Dataset) -> Path:
    """Writes the file, whole or not at all, and returns where it is. Raises DataError if that cannot be done."""
    partial = options.path.with_name(f"{options.path.name}.partial")
    try:
        options.path.parent.mkdir(parents=True, exist_ok=True)
        with h5py.File(partial, "w") as file:
            file.attrs["format"] = FORMAT
            file.attrs["recipe"] = json.dumps(options.recipe(), sort_keys=True)
            for name in ARRAYS:
                array = getattr(dataset, name)
                if array is not None:
                    file.create_dataset(name, data=array)
        partial.replace(options.path)
    except OSError as error:
        partial.unlink(missing_ok=True)
        raise DataError(str(options.path), f"cannot be written: {error}") from error
    return options.path


def read(options: PreparedOptions) -> Dataset:
    """What `save` wrote for these options. Raises DataError: missing, damaged, or made by another recipe."""
    path, todo = options.path, how_to_prepare(options)
    if not path.is_file():
        raise DataError(
            f"data.root={options.root}",
            f"no {path.name} there; {how_to_fetch(options)}, and decode them by `{todo}`",
        )
    try:
        with h5py.File(path, "r") as file:
            _check_head(file, options, path, todo)
            return Dataset(**{name: _array(file, name) for name in ARRAYS})
    except (OSError, KeyError, TypeError, ValueError, RuntimeError) as error:
        raise DataError(str(path), f"damaged or cut off ({error}); make it again by `{todo}`") from error


def _check_head(file: h5py.File, options: PreparedOptions, path: Path, todo: str) -> None:
    if file.attrs.get("format") != FORMAT:
        raise DataError(str(path), f"is not a prepared data set ({FORMAT}); make it by `{todo}`")
    recipe = str(file.attrs["recipe"])[:MAX_RECIPE_CHARACTERS]
    made, asked = json.loads(recipe), options.recipe()
    other = [f"data.{key}={made.get(key)}, not {asked.get(key)}" for key in {**made, **asked}
             if made.get(key) != asked.get(key)]  # fmt: skip
    if other:
        raise DataError(str(path), f"was made with {'; '.join(other)}; change the config, or run `{todo}`")


def _array(file: h5py.File, name: str) -> Any:
    """A whole dataset of plain numbers that lies in the file itself; None where there is none."""
    stored = file.get(name)
    if stored is None:
        return None
    if not isinstance(stored, h5py.Dataset) or stored.dtype.kind not in "iuf" or stored.external is not None:
        raise ValueError(f"{name} is no array of numbers")
    # A crafted file may promise more than it holds, and reading it would take that memory.
    if stored.id.get_storage_size() < stored.size * stored.dtype.itemsize or stored.chunks is not None:
        raise ValueError(f"{name} is not stored whole")
    return np.asarray(stored[...])
