"""Data sets that take decoding (archives of pictures, texts, signals): decoded once into one HDF5 file that runs read.

The file says by which recipe it was made (the options that decide what is in it), and a run with other options refuses
it. Arrays are stored whole and uncompressed, so reading is a copy from the page cache, with a checksum on the way. The
attribute `digest` is `digest_of` the arrays, computed once, when the file is written.
"""

from __future__ import annotations

import contextlib
import json
import re
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from fedmpi.config.fields import Folder, free
from fedmpi.data.dataset import DataOptions, Dataset, check, digest_of
from fedmpi.data.files import Tell, below_home, how_to_fetch, is_archive, is_here, quoted, unpacked, unpacked_beside
from fedmpi.errors import DataError, RunDirError, reason
from fedmpi.store.files import replacing

KIND = "data"
COUNTS = ("num_train", "num_test", "num_groups")
_ENDING = ".fedmpi.h5"
_NOT_DECODED = ("name", "root", "num_train", "num_test")


class PreparedOptions(DataOptions):
    """Options of a data set that is read from a prepared file."""

    counts: ClassVar[tuple[str, ...]] = ()
    """Options that say what is expected in the file, without deciding it."""
    root: Folder = free("~/data")
    """The folder with the file that `fedmpi data prepare` wrote."""

    def prepare(self, folder: Path, tell: Tell) -> Dataset:
        """Decodes the unpacked original files below `folder`, and calls `tell(done, total)` as it proceeds."""
        raise NotImplementedError

    def read(self) -> Dataset:
        """Reads the arrays that `save` wrote. Raises DataError: missing, damaged, or made by another recipe."""
        from fedmpi.store import hdf5

        path, todo = self.path, how_to_prepare(self)
        if not path.is_file():
            first = ", but the original files are:" if is_here(self) else f"; {how_to_fetch(self)}, and"
            raise DataError(f"data.root={self.root}", f"no {path.name} there{first} decode them by `{todo}`")
        try:
            attributes, arrays = hdf5.read(path, KIND)
            if others := self._other_options(json.loads(str(attributes["recipe"]))):
                what = "; ".join(others)
                raise DataError(str(path), f"was made with {what}; change the config, or run `{todo}`")
            contents: dict[str, Any] = arrays
            return Dataset(**contents, digest=str(attributes["digest"]))
        except RunDirError as error:
            raise DataError(str(path), f"{error.problems[0]}; make it again by `{todo}`") from None
        except (KeyError, TypeError, ValueError) as error:
            raise DataError(str(path), f"damaged ({reason(error)}); make it again by `{todo}`") from error

    @property
    def path(self) -> Path:
        """The prepared file; another recipe than the default one is part of its name."""
        words = "".join(f"-{key}={value}" for key, value in self.own_recipe().items())
        return below_home(self.root) / f"{self.name}{words}{_ENDING}"

    def recipe(self) -> dict[str, Any]:
        """Returns the options that decide what is in the file."""
        values: dict[str, Any] = json.loads(self.model_dump_json())
        return {key: value for key, value in values.items() if key not in (*_NOT_DECODED, *self.counts)}

    def own_recipe(self) -> dict[str, Any]:
        """Returns the part of the recipe that is not the default."""
        defaults = type(self)(name=self.name).recipe()
        return {key: value for key, value in self.recipe().items() if value != defaults[key]}

    def _other_options(self, recipe: dict[str, Any]) -> list[str]:
        """Returns what is not as in the recipe of a file."""
        return [
            f"data.{key}={json.dumps(recipe.get(key))}, not {json.dumps(value)}"
            for key, value in self.recipe().items()
            if recipe.get(key) != value
        ]


def how_to_prepare(options: PreparedOptions) -> str:
    """Returns the command that makes the file."""
    words = [f"data.{key}={json.dumps(value)}" for key, value in options.own_recipe().items()]
    return " ".join(["fedmpi data prepare", options.name, *words, "--data-dir", quoted(options.root)])


def other_recipes(options: PreparedOptions) -> list[list[str]]:
    """Returns data.key=value for each option in the name of a prepared file in the folder, file by file."""
    paths = below_home(options.root).glob(f"{options.name}-*{_ENDING}")
    recipes = sorted(path.name[len(options.name) : -len(_ENDING)] for path in paths)
    return [[f"data.{word}" for word in re.split(r"-(?=[a-z_]+=)", recipe)[1:]] for recipe in recipes]


# ---- decoding


def prepare(
    options: PreparedOptions, given: Path | None, tell_unpacking: Tell, tell: Tell, unpack_in: Path | None = None
) -> tuple[Path, Dataset]:
    """Decodes the originals, from `given` or from below data.root, and writes the prepared file.

    Counts may be other than expected (see `other_counts`), shapes and types may not. Raises DataError.
    """
    place = _find(options) if given is None else given
    if not place.exists():
        raise DataError(str(place), "no such file or folder")
    if not place.is_dir() and not place.is_file():  # a pipe or a device could be read for ever
        raise DataError(str(place), "is neither a file nor a folder")
    _try_to_write(options.path)  # else a user would wait minutes to learn that it cannot be written
    with _originals(place, tell_unpacking, unpack_in or options.path.parent) as folder:
        dataset = options.prepare(folder, tell)
    info, counts = options.info(), counts_of(dataset)
    if not info.num_groups:  # the options do not ask whose the examples are
        counts["num_groups"] = 0
    told: dict[str, Any] = {name: counts[name] for name in COUNTS if name in options.counts}
    check(f"data.name={options.name}", dataset, replace(info, **told))
    return save(options, dataset), dataset


@contextlib.contextmanager
def _originals(place: Path, tell: Tell, unpack_in: Path) -> Iterator[Path]:
    """Yields a folder with the unpacked originals; the contents of an archive are there only during the `with`.

    A DataError that names this folder, which is gone when the user reads it, names `place` instead.
    """
    if place.is_dir():
        yield place
        return
    with contextlib.ExitStack() as stack:
        if is_archive(place):
            folder = stack.enter_context(unpacked_beside(place, unpack_in, tell))
        else:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            (folder / place.name).symlink_to(place.resolve())
        try:
            yield folder
        except DataError as error:
            texts = (text.replace(str(folder / place.name), str(place)) for text in (error.where, *error.problems))
            raise DataError(*(text.replace(str(folder), str(place)) for text in texts)) from error


def _find(options: PreparedOptions) -> Path:
    """Returns the folder of the unpacked originals below data.root, or the downloaded file. Raises DataError."""
    root, source = below_home(options.root), options.source
    files = source.needed(options) if source else ()
    for file in files:
        contents = unpacked(file, root)
        if contents is not None:
            return contents if contents.is_dir() else contents.parent
        if (root / file.path).is_file():
            return root / file.path
    where = f"data.root={options.root}"
    if not files:
        raise DataError(where, f"say --from FOLDER: these files cannot be downloaded. {source.other if source else ''}")
    names = " or ".join(name for file in files for name in (file.path, *file.contents))
    raise DataError(where, f"no {names} there; {how_to_fetch(options)}, or say --from FOLDER_OR_ARCHIVE")


def _try_to_write(path: Path) -> None:
    """Makes the folder of `path`. Raises DataError if no file of this name can be written there."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=path.parent).close()
        if path.is_dir():
            raise IsADirectoryError("a folder has that name")
    except OSError as error:
        raise DataError(str(path), f"cannot be written: {reason(error)}") from error


def save(options: PreparedOptions, dataset: Dataset) -> Path:
    """Writes the file, whole or not at all, and returns its path. Raises DataError if it cannot be written."""
    from fedmpi.store import hdf5

    attributes = {"recipe": json.dumps(options.recipe(), sort_keys=True), "digest": digest_of(dataset.arrays)}
    arrays = {name: array for name, array in dataset.arrays.items() if array is not None}
    _try_to_write(options.path)
    try:
        with replacing(options.path) as file:
            hdf5.write(file, KIND, attributes, arrays)
    except OSError as error:
        raise DataError(str(options.path), f"cannot be written: {reason(error)}") from error
    return options.path


def counts_of(dataset: Dataset) -> dict[str, int]:
    """Returns how many training and test examples there are, and groups of the training examples."""
    num_groups = 0 if dataset.groups is None else len(np.unique(dataset.groups))
    return {"num_train": len(dataset.train_y), "num_test": len(dataset.test_y), "num_groups": num_groups}


def other_counts(options: PreparedOptions, dataset: Dataset) -> list[str]:
    """Returns the settings a config needs because the files hold fewer examples or other groups than it expects."""
    counts = counts_of(dataset)
    info = options.info_of({"train": counts["num_train"], "test": counts["num_test"]})
    expected = {name: getattr(info, name) for name in COUNTS}
    if not info.num_groups:
        expected["num_groups"] = counts["num_groups"]
    return [f"data.{name}={counts[name]}" for name in COUNTS if expected[name] != counts[name]]
