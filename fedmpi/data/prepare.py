"""Data sets that take decoding (archives of pictures, texts, signals): decoded once into one HDF5 file that runs read.

The file says by which recipe it was made (the options that decide what is in it), and a run with other options refuses
it. Arrays are stored whole and uncompressed, so reading is a copy from the page cache, with a checksum on the way. The
attribute `digest` is `digest_of` the arrays, computed once, when the file is written.
"""

from __future__ import annotations

import contextlib
import json
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from fedmpi.config.fields import Folder, free
from fedmpi.data.dataset import COUNTS, DataInfo, DataOptions, Dataset, NumExamples, check, digest_of
from fedmpi.data.files import below_home, command, how_to_fetch, is_archive, unpacked_beside
from fedmpi.errors import DataError, RunDirError, reason
from fedmpi.store.files import replacing

KIND = "data"
_ENDING = ".fedmpi.h5"


class PreparedOptions(DataOptions):
    """Options of a data set that is read from a prepared file."""

    root: Folder = free("~/data")
    """The folder with the file that `fedmpi data prepare` wrote."""

    def prepare(self, folder: Path) -> Dataset:
        """Decodes the unpacked original files below `folder`."""
        raise NotImplementedError

    @property
    def path(self) -> Path:
        """The prepared file; another recipe than the default one is part of its name."""
        words = "".join(f"-{key}={value}" for key, value in self.not_default().items())
        return below_home(self.root) / f"{self.name}{words}{_ENDING}"

    def recipe(self) -> dict[str, Any]:
        """Returns the options that decide what is in the file."""
        values: dict[str, Any] = json.loads(self.model_dump_json())
        return {key: value for key, value in values.items() if key not in ("name", "root", *COUNTS)}

    def read(self) -> Dataset:
        """Reads the arrays that `save` wrote. Raises DataError: missing, damaged, or made by another recipe."""
        from fedmpi.store import hdf5

        path = self.path
        todo = f"`{command('prepare', self)}`"
        if not path.is_file():
            is_here = bool(self.files()) and all(file.is_here(below_home(self.root)) for file in self.files())
            first = ", but the original files are:" if is_here else f"; {how_to_fetch(self)}, and"
            raise DataError(f"data.root={self.root}", f"no {path.name} there{first} decode them by {todo}")
        try:
            attributes, arrays = hdf5.read(path, KIND)
            recipe = json.loads(str(attributes["recipe"]))
            made_with = {key: recipe.get(key) for key in self.recipe()}
            if made_with != self.recipe():
                problem = f"was made with {json.dumps(made_with)}, not {json.dumps(self.recipe())}"
                raise DataError(str(path), f"{problem}; change the config, or run {todo}")
            contents: dict[str, Any] = arrays
            return Dataset(**contents, digest=str(attributes["digest"]))
        except RunDirError as error:
            raise DataError(str(path), f"{error.problems[0]}; make it again by {todo}") from None
        except (KeyError, TypeError, ValueError) as error:
            raise DataError(str(path), f"damaged ({reason(error)}); make it again by {todo}") from error


class CountedOptions(PreparedOptions):
    """A prepared data set whose counts depend on its options and files."""

    counts_vary = True
    num_groups: NumExamples = 0
    """Writers, subjects, films or roles expected in the training examples; 0 means those of the complete files under
    the default options. With `num_train` and `num_test`, `fedmpi data prepare` says which numbers a config needs where
    other options or a part of the files give others.
    """

    def used(self) -> DataInfo:
        info = super().used()
        return replace(info, num_groups=self.num_groups or info.num_groups)


def prepare(options: PreparedOptions, given: Path | None = None) -> Dataset:
    """Decodes the originals, from `given` or from below data.root, and writes the prepared file.

    Counts may be other than expected (see `other_counts`), shapes and types may not. Raises DataError.
    """
    place = _find(options) if given is None else given
    if not place.is_dir() and not place.is_file():  # a pipe or a device could be read for ever
        raise DataError(str(place), "no such file or folder")
    _try_to_write(options.path)  # else a user would wait minutes to learn that it cannot be written
    with _originals(place, options.path.parent) as folder:
        dataset = options.prepare(folder)
    counts: dict[str, Any] = dataset.counts if options.counts_vary else {}
    check(f"data.name={options.name}", dataset, replace(options.info(), **counts))
    save(options, dataset)
    return dataset


@contextlib.contextmanager
def _originals(place: Path, unpack_in: Path) -> Iterator[Path]:
    """Yields a folder with the unpacked originals; the contents of an archive are there only during the `with`.

    A DataError that names this folder, which is gone when the user reads it, names the archive instead.
    """
    if place.is_dir() or not is_archive(place):
        yield place if place.is_dir() else place.parent
        return
    with unpacked_beside(place, unpack_in) as folder:
        try:
            yield folder
        except DataError as error:
            texts = (text.replace(str(folder), str(place)) for text in (error.where, *error.problems))
            raise DataError(*texts) from error


def _find(options: PreparedOptions) -> Path:
    """Returns the folder of the unpacked originals below data.root, or the downloaded file. Raises DataError."""
    root = below_home(options.root)
    files = options.files()
    for file in files:
        contents = file.unpacked(root)
        if contents is not None:
            return contents if contents.is_dir() else contents.parent
        if (root / file.path).is_file():
            return root / file.path
    where = f"data.root={options.root}"
    if not files:
        raise DataError(where, "say --from FOLDER: these files cannot be downloaded; README.md of fedmpi.data says how")
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


def save(options: PreparedOptions, dataset: Dataset) -> None:
    """Writes the prepared file, whole or not at all. Raises DataError if it cannot be written."""
    from fedmpi.store import hdf5

    attributes = {"recipe": json.dumps(options.recipe(), sort_keys=True), "digest": digest_of(dataset.arrays)}
    arrays = {name: array for name, array in dataset.arrays.items() if array is not None}
    _try_to_write(options.path)
    try:
        with replacing(options.path) as file:
            hdf5.write(file, KIND, attributes, arrays)
    except OSError as error:
        raise DataError(str(options.path), f"cannot be written: {reason(error)}") from error


def other_counts(options: PreparedOptions, dataset: Dataset) -> list[str]:
    """Returns the settings a config needs because the files hold fewer examples or other groups than it expects."""
    settings = []
    for name, has in dataset.counts.items():
        expected = getattr(options.used(), name)
        is_subset = name != "num_groups" and getattr(options, name) and has > expected
        if has != expected and not is_subset:
            settings.append(f"data.{name}={has}")
    return settings
