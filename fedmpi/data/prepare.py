"""Data sets that take decoding (archives of pictures, texts, signals): decoded once into one HDF5 file that runs read.

Arrays are stored whole and uncompressed, so reading is a copy from the page cache, with a checksum on the way. The
attribute `digest` is `digest_of` the arrays, computed once, when the file is written.
"""

import contextlib
import functools
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from fedmpi.data.dataset import DataInfo, Dataset, check, digest_of
from fedmpi.data.files import FetchedOptions, is_archive, unpacked
from fedmpi.errors import DataError, RunDirError
from fedmpi.store.files import make_folder, write_atomic

KIND = "data"
COUNTS = ("num_train", "num_test", "num_groups")
_ENDING = ".fedmpi.h5"


class PreparedOptions(FetchedOptions):
    """Options of a data set that is read from a prepared file."""

    def prepare(self, folder: Path) -> Dataset:
        """Decodes the unpacked original files below `folder`."""
        raise NotImplementedError

    @property
    def path(self) -> Path:
        """Returns the path of the prepared file; options that are not at their defaults are part of its name."""
        return self.folder / f"{'-'.join([self.name, *self.settings()])}{_ENDING}"

    def read(self) -> Dataset:
        """Reads the arrays that `save` wrote. Raises DataError: missing or damaged."""
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
        contents: dict[str, Any] = arrays
        return Dataset(**contents, digest=str(attributes["digest"]))


class CountedOptions(PreparedOptions):
    """A prepared data set whose files may hold other counts than the complete ones."""

    def complete(self) -> DataInfo:
        """Returns the facts of the complete files."""
        raise NotImplementedError

    def info(self) -> DataInfo:
        """Returns the facts, with the counts of the prepared file where there is one."""
        try:
            return replace(self.complete(), **_counts(self.path, self.path.stat().st_mtime_ns))
        except (OSError, KeyError, RunDirError):  # missing, without counts, or damaged, which `read` says
            return self.complete()


@functools.lru_cache(maxsize=1)
def _counts(path: Path, mtime_ns: int) -> dict[str, Any]:
    """Reads the counts of a prepared file, once for each time that it was written: the digest is of the whole file."""
    from fedmpi.store import hdf5

    attributes, _ = hdf5.read(path, KIND, None)
    return {name: attributes[name] for name in COUNTS}


def prepare(options: PreparedOptions, given: Path | None = None) -> Dataset:
    """Decodes the originals, from `given` or the file that `fetch` loaded, and writes the prepared file.

    Raises DataError.
    """
    make_folder(options.path.parent)  # else a user would wait minutes to learn that this cannot be
    with _originals(options, given) as folder:
        dataset = options.prepare(folder)
    info = options.info()
    if isinstance(options, CountedOptions):
        info = replace(info, **_counts_of(dataset))
    save(options, check(f"data.name={options.name}", dataset, info))
    return dataset


def _counts_of(dataset: Dataset) -> dict[str, Any]:
    return dict(zip(COUNTS, (len(dataset.train_y), len(dataset.test_y), dataset.num_groups), strict=True))


@contextlib.contextmanager
def _originals(options: PreparedOptions, given: Path | None) -> Iterator[Path]:
    """Yields the folder with the originals; the contents of an archive are there only during the `with`."""
    if given is None:
        if not options.are_here():
            problem = f"the original files are not there; {options.how_to_fetch()}, or say --from FOLDER_OR_ARCHIVE"
            raise DataError(f"data.root={options.root}", problem)
        given = options.folder / options.files()[0]
    if given.is_dir():
        yield given
    elif not given.is_file():  # a pipe or a device could be read for ever
        raise DataError(str(given), "no such file or folder")
    elif not is_archive(given):
        yield given.parent
    else:
        with unpacked(given, options.path.parent) as folder:
            yield folder


def save(options: PreparedOptions, dataset: Dataset) -> None:
    """Writes the prepared file, whole or not at all. Raises RunDirError if it cannot be written."""
    from fedmpi.store import hdf5

    arrays = {name: array for name, array in dataset.arrays.items() if array is not None}
    make_folder(options.path.parent)
    write_atomic(options.path, hdf5.pack(KIND, {"digest": digest_of(arrays), **_counts_of(dataset)}, arrays))
