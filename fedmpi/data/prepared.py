"""Data sets that take decoding (archives of pictures, texts, signals): decoded once, kept as one HDF5 file.

`python -m fedmpi.data prepare NAME` writes the file, every rank of a run reads it. It says by which
recipe it was made (the options that decide what is in it), and a run with other options refuses it.
Arrays are stored whole and uncompressed, so reading is a copy from the page cache, with a checksum on
the way; `fedmpi.disk.hdf5` says why a crafted file cannot do harm. The attribute `digest` is
`digest_of` the arrays, computed once, when the file is written.
"""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from fedmpi.data.dataset import Dataset, layout_problems
from fedmpi.data.digest import DIGEST_BYTES, digest_of
from fedmpi.data.files.folders import made
from fedmpi.data.files.source import how_to_fetch, is_here
from fedmpi.data.prepared_options import PreparedOptions, how_to_prepare
from fedmpi.disk import hdf5, temporary
from fedmpi.errors import DataError

KIND = "data"
ARRAYS = ("train_x", "train_y", "test_x", "test_y", "groups", "test_groups")
MAX_RECIPE_CHARACTERS = 10_000


def save(options: PreparedOptions, dataset: Dataset) -> Path:
    """Writes the file, whole or not at all, and returns where it is. Raises DataError if that cannot be done."""
    with _writing(options.path) as partial:
        recipe = json.dumps(options.recipe(), sort_keys=True)
        given = {name: getattr(dataset, name) for name in ARRAYS}
        arrays = {name: array for name, array in given.items() if array is not None}
        with open(partial, "w+b") as file:
            hdf5.write(file, KIND, {"recipe": recipe, "digest": digest_of(dataset.arrays)}, arrays)
        partial.replace(options.path)
    return options.path


def try_place(options: PreparedOptions) -> None:
    """Raises DataError if `save` could not write there, so that nobody decodes for minutes to learn it."""
    with _writing(options.path):
        pass


@contextlib.contextmanager
def _writing(path: Path) -> Iterator[Path]:
    """A file of this process's own to write what becomes `path`: of several processes, the last rename counts.

    Nothing of it stays there. Raises DataError for any OSError.
    """
    try:
        with made(path.parent):
            if path.is_dir():
                raise IsADirectoryError("a folder has that name")
            with temporary.own_file(path) as partial:
                yield partial
    except OSError as error:
        raise DataError(str(path), f"cannot be written: {error}") from error


def read(options: PreparedOptions) -> Dataset:
    """What `save` wrote for these options. Raises DataError: missing, damaged, or made by another recipe."""
    path, todo = options.path, how_to_prepare(options)
    if not path.is_file():
        first = ", but the original files are:" if is_here(options) else f"; {how_to_fetch(options)}, and"
        raise DataError(f"data.root={options.root}", f"no {path.name} there{first} decode them by `{todo}`")
    try:
        with hdf5.opened(path, KIND) as file:
            _check_recipe(file, options, path, todo)
            problems = layout_problems(file.entries, options.info())
            if problems:
                raise DataError(str(path), *problems.values())
            values: dict[str, Any] = {name: file.array(name) if name in file.entries else None for name in ARRAYS}
            return Dataset(**values, digest=_digest(file))
    except hdf5.Damaged as damage:
        raise DataError(str(path), f"{damage}; make it again by `{todo}`") from None
    except (OSError, KeyError, TypeError, ValueError, RecursionError) as error:
        raise DataError(str(path), f"damaged ({error}); make it again by `{todo}`") from error


def _digest(file: hdf5.Reader) -> str:
    """The digest that `save` computed; empty in a file without one, as older versions wrote it."""
    found = str(file.attributes.get("digest", ""))
    return found if re.fullmatch(f"[0-9a-f]{{{2 * DIGEST_BYTES}}}", found) else ""


def _check_recipe(file: hdf5.Reader, options: PreparedOptions, path: Path, todo: str) -> None:
    found, asked = json.loads(str(file.attributes["recipe"])[:MAX_RECIPE_CHARACTERS]), options.recipe()
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
