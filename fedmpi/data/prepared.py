"""Data sets that take decoding (archives of pictures, texts, signals): decoded once, kept as one HDF5 file.

`python -m fedmpi.data prepare NAME` writes the file, every rank of a run reads it. It says by which
recipe it was made (the options that decide what is in it), and a run with other options refuses it.
Arrays are stored whole and uncompressed, so reading is a copy from the page cache.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import h5py

from fedmpi.data.dataset import Dataset, layout_problems
from fedmpi.data.folders import made
from fedmpi.data.prepared_options import PreparedOptions, how_to_prepare
from fedmpi.data.sources import how_to_fetch, is_here
from fedmpi.errors import DataError

FORMAT = "fedmpi data 1"
ARRAYS = ("train_x", "train_y", "test_x", "test_y", "groups", "test_groups")
MAX_RECIPE_CHARACTERS = 10_000


def save(options: PreparedOptions, dataset: Dataset) -> Path:
    """Writes the file, whole or not at all, and returns where it is. Raises DataError if that cannot be done."""
    with _writing(options.path) as partial:
        with h5py.File(partial, "w") as file:
            file.attrs["format"] = FORMAT
            file.attrs["recipe"] = json.dumps(options.recipe(), sort_keys=True)
            for name in ARRAYS:
                array = getattr(dataset, name)
                if array is not None:
                    file.create_dataset(name, data=array)
        partial.replace(options.path)
    return options.path


def try_place(options: PreparedOptions) -> None:
    """Raises DataError if `save` could not write there, so that nobody decodes for minutes to learn it."""
    with _writing(options.path) as partial:
        partial.touch()


@contextlib.contextmanager
def _writing(path: Path) -> Iterator[Path]:
    """Where to write what becomes `path`; nothing of it stays there. Raises DataError for any OSError."""
    partial = path.with_name(f"{path.name}.partial")
    try:
        with made(path.parent):
            try:
                if path.is_dir():
                    raise IsADirectoryError("a folder has that name")
                yield partial
            finally:
                partial.unlink(missing_ok=True)
    except OSError as error:
        raise DataError(str(path), f"cannot be written: {error}") from error


def read(options: PreparedOptions) -> Dataset:
    """What `save` wrote for these options. Raises DataError: missing, damaged, or made by another recipe."""
    path, todo = options.path, how_to_prepare(options)
    if not path.is_file():
        first = ", but the original files are:" if is_here(options) else f"; {how_to_fetch(options)}, and"
        raise DataError(f"data.root={options.root}", f"no {path.name} there{first} decode them by `{todo}`")
    try:
        with h5py.File(path, "r") as file:
            _check_head(file, options, path, todo)
            arrays = {name: _stored(file, name) for name in ARRAYS}
            problems = layout_problems(arrays, options.info())
            if problems:
                raise DataError(str(path), *problems.values())
            values: dict[str, Any] = {name: array if array is None else array[...] for name, array in arrays.items()}
            return Dataset(**values)
    except (OSError, KeyError, TypeError, ValueError, RuntimeError) as error:
        raise DataError(str(path), f"damaged or cut off ({error}); make it again by `{todo}`") from error


def _check_head(file: h5py.File, options: PreparedOptions, path: Path, todo: str) -> None:
    if file.attrs.get("format") != FORMAT:
        raise DataError(str(path), f"is not a prepared data set ({FORMAT}); make it by `{todo}`")
    found, asked = json.loads(str(file.attrs["recipe"])[:MAX_RECIPE_CHARACTERS]), options.recipe()
    if not isinstance(found, dict):
        raise ValueError("its recipe is no table")
    other = [
        f"data.{key[:40]}={_told(found, key)}, not {_told(asked, key)}"
        for key in {**asked, **found}
        if key not in found or key not in asked or found[key] != asked[key]
    ]
    if other:
        raise DataError(str(path), f"was made with {'; '.join(other[:5])}; change the config, or run `{todo}`")


def _told(recipe: dict[str, Any], key: str) -> str:
    return json.dumps(recipe[key])[:60] if key in recipe else "(nothing)"


def _stored(file: h5py.File, name: str) -> h5py.Dataset | None:
    """A dataset that lies in the file itself, whole; None where there is none. No link is followed, no value read."""
    links = file.id.links
    if not links.exists(name.encode()):
        return None
    if links.get_info(name.encode()).type != h5py.h5l.TYPE_HARD:
        raise ValueError(f"{name} is a link to another place")
    stored = file[name]
    if not isinstance(stored, h5py.Dataset) or stored.shape is None:
        raise ValueError(f"{name} is no array")
    # A crafted file may promise more than it holds, and reading it would take that memory.
    is_whole = stored.id.get_create_plist().get_layout() == h5py.h5d.CONTIGUOUS and stored.external is None
    if not is_whole or stored.id.get_storage_size() < stored.size * stored.dtype.itemsize:
        raise ValueError(f"{name} is not stored whole in this file")
    return stored
