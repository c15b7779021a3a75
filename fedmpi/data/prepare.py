"""Data sets that take decoding (archives of pictures, texts, signals): decoded once into one HDF5 file that runs read.

The file says by which recipe it was made (the options that decide what is in it), and a run with other options refuses
it. Arrays are stored whole and uncompressed, so reading is a copy from the page cache, with a checksum on the way. The
attribute `digest` is `digest_of` the arrays, computed once, when the file is written.
"""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from fedmpi.data.dataset import COUNTS, DataInfo, Dataset, NumExamples, check, digest_of
from fedmpi.data.files import FetchedOptions, is_archive, unpacked_beside
from fedmpi.errors import DataError, RunDirError
from fedmpi.store.files import make_folder, replacing, writing

KIND = "data"
_ENDING = ".fedmpi.h5"


class PreparedOptions(FetchedOptions):
    """Options of a data set that is read from a prepared file."""

    def prepare(self, folder: Path) -> Dataset:
        """Decodes the unpacked original files below `folder`."""
        raise NotImplementedError

    @property
    def path(self) -> Path:
        """Returns the path of the prepared file; another recipe than the default one is part of its name."""
        words = "".join(f"-{key}={value}" for key, value in self.not_default().items())
        return self.folder / f"{self.name}{words}{_ENDING}"

    @property
    def recipe(self) -> str:
        """Returns the options that decide what is in the file, as JSON."""
        return self.model_dump_json(exclude={"name", "root", *COUNTS})

    def read(self) -> Dataset:
        """Reads the arrays that `save` wrote. Raises DataError: missing, damaged, or made by another recipe."""
        from fedmpi.store import hdf5

        path = self.path
        todo = f"`{self.command('prepare')}`"
        if not path.is_file():
            first = ", but the original files are:" if self.are_here() else f"; {self.how_to_fetch()}, and"
            raise DataError(f"data.root={self.root}", f"no {path.name} there{first} decode them by {todo}")
        try:
            attributes, arrays = hdf5.read(path, KIND)
        except RunDirError as error:
            raise DataError(str(path), f"{error.problems[0]}; make it again by {todo}") from None
        if attributes["recipe"] != self.recipe:
            problem = f"was made with {attributes['recipe']}, not {self.recipe}"
            raise DataError(str(path), f"{problem}; change the config, or run {todo}")
        contents: dict[str, Any] = arrays
        return Dataset(**contents, digest=str(attributes["digest"]))


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
    """Decodes the originals, from `given` or the file that `fetch` loaded, and writes the prepared file.

    Counts may be other than expected (see `other_counts`), shapes and types may not. Raises DataError.
    """
    originals = _downloaded(options) if given is None else given
    if not originals.is_dir() and not originals.is_file():  # a pipe or a device could be read for ever
        raise DataError(str(originals), "no such file or folder")
    _try_to_write(options.path)  # else a user would wait minutes to learn that it cannot be written
    with _folder_of(originals, options.path.parent) as folder:
        dataset = options.prepare(folder)
    counts: dict[str, Any] = dataset.counts if options.counts_vary else {}
    check(f"data.name={options.name}", dataset, replace(options.info(), **counts))
    save(options, dataset)
    return dataset


def _downloaded(options: PreparedOptions) -> Path:
    """Returns the file that `fetch` has loaded. Raises DataError if it is not there, or cannot be loaded."""
    where = f"data.root={options.root}"
    if not options.files():
        raise DataError(where, "say --from FOLDER: these files cannot be downloaded; README.md of fedmpi.data says how")
    name = options.files()[0]
    path = options.folder / name
    if not path.is_file():
        raise DataError(where, f"no {name} there; {options.how_to_fetch()}, or say --from FOLDER_OR_ARCHIVE")
    return path


@contextlib.contextmanager
def _folder_of(originals: Path, unpack_in: Path) -> Iterator[Path]:
    """Yields a folder with the unpacked originals; the contents of an archive are there only during the `with`.

    A DataError that names this folder, which is gone when the user reads it, names the archive instead.
    """
    if originals.is_dir() or not is_archive(originals):
        yield originals if originals.is_dir() else originals.parent
        return
    with unpacked_beside(originals, unpack_in) as folder:
        try:
            yield folder
        except DataError as error:
            texts = (text.replace(str(folder), str(originals)) for text in (error.where, *error.problems))
            raise DataError(*texts) from error


def _try_to_write(path: Path) -> None:
    """Makes the folder of `path`. Raises RunDirError if no file of this name can be written there."""
    make_folder(path.parent)
    with writing(path):
        tempfile.TemporaryFile(dir=path.parent).close()
        if path.is_dir():
            raise IsADirectoryError("a folder has that name")


def save(options: PreparedOptions, dataset: Dataset) -> None:
    """Writes the prepared file, whole or not at all. Raises RunDirError if it cannot be written."""
    from fedmpi.store import hdf5

    attributes = {"recipe": options.recipe, "digest": digest_of(dataset.arrays)}
    arrays = {name: array for name, array in dataset.arrays.items() if array is not None}
    make_folder(options.path.parent)
    with writing(options.path, sum(array.nbytes for array in arrays.values())), replacing(options.path) as file:
        hdf5.write(file, KIND, attributes, arrays)


def other_counts(options: PreparedOptions, dataset: Dataset) -> list[str]:
    """Returns the settings a config needs because the files hold fewer examples or other groups than it expects."""
    settings = []
    for name, has in dataset.counts.items():
        expected = getattr(options.used(), name)
        is_subset = name != "num_groups" and getattr(options, name) and has > expected
        if has != expected and not is_subset:
            settings.append(f"data.{name}={has}")
    return settings
