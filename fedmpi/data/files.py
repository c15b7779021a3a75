"""The files of data sets: downloads, archives, files that are decoded once, and one line for each damaged file."""

import contextlib
import functools
import shlex
import shutil
import tarfile
import tempfile
import zipfile
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

from fedmpi.config.fields import Folder, free
from fedmpi.config.yaml_text import flow
from fedmpi.data.dataset import DataInfo, DataOptions, Dataset, check, digest_of
from fedmpi.errors import FAILED, DataError, RunDirError, UserError, reason
from fedmpi.store.files import make_folder, user_path, write_atomic, writing

KIND = "data"
"""The kind of prepared files."""
MAX_UNPACKED_BYTES = 32 * 10**9
"""FEMNIST, the largest set, unpacks to a few GB: an archive of more than this would only fill the disk."""
TABLE = Path(__file__).with_name("files.txt")
"""The addresses and checksums of all files to download."""
_NUM_RETRIES = 4  # pooch waits 1, 2, 3 and 4 s before them
_TIMEOUT_S = 60.0
_CHUNK_BYTES = 2**18


class FetchedOptions(DataOptions):
    """Options of a data set whose files are downloaded."""

    downloads: ClassVar[tuple[str, ...]]
    """Paths below the data folder, as in `files.txt`. README.md has the terms of use."""
    unpacked: ClassVar[tuple[str, ...]] = ()
    """Where a run reads the archive unpacked: paths below the data folder, any of which shows that it is there."""
    root: Folder = free("~/data")
    """The folder of all data sets. CIFAR and idx files are also found if it is the folder of the files themselves."""

    @property
    def folder(self) -> Path:
        return Path(user_path(self.root))

    def files(self) -> tuple[str, ...]:
        """Returns those of `downloads` that these options need."""
        return self.downloads

    def are_here(self) -> bool:
        """Returns whether the files, or what a run reads of them unpacked, are below the data folder."""
        if self.unpacked:
            return any((self.folder / path).exists() for path in self.unpacked)
        return bool(self.files()) and all((self.folder / path).is_file() for path in self.files())

    def settings(self) -> list[str]:
        """Returns `key=value` of the options that decide what is decoded and are not at their defaults."""
        values = self.model_dump(exclude={"name", "root", "num_train", "num_test"}, exclude_defaults=True)
        return [f"{key}={value}" for key, value in values.items()]

    def command(self, word: str, *words: str) -> str:
        """Returns `fedmpi data WORD` for the data set with these options."""
        settings = [f"data.{setting}" for setting in (*self.settings(), f"root={flow(self.root)}")]
        return shlex.join(["fedmpi", "data", word, self.name, *settings, *words])

    def how_to_fetch(self, *words: str) -> str:
        """Returns the advice to fetch the files; `words`, as `--force`, go into the command."""
        return f"get the files by `{self.command('fetch', *words)}`, where there is a network"


class PreparedOptions(FetchedOptions):
    """Options of a data set that takes decoding (archives of pictures, texts, signals): decoded once into one HDF5 file
    that runs read. Its arrays lie whole and uncompressed, with `digest_of` them as the attribute `digest`."""

    def prepare(self, folder: Path) -> Dataset:
        """Decodes the unpacked original files below `folder`."""
        raise NotImplementedError

    @property
    def path(self) -> Path:
        """Returns the path of the prepared file; options that are not at their defaults are part of its name."""
        return self.folder / f"{'-'.join([self.name, *self.settings()])}.fedmpi.h5"

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


def track(steps: Iterable[Any], words: str) -> Iterable[Any]:
    """Yields the steps of long work; a terminal shows meanwhile on stderr how far it is."""
    from rich.console import Console
    from rich.progress import track as shown

    console = Console(stderr=True)
    return shown(steps, words, console=console, transient=True, disable=not console.is_terminal)


def find(folder: Path, pattern: str, what: str) -> Path:
    """Returns the one path below `folder` that ends like `pattern`. Raises DataError for none, and for several."""
    # Archives made on a Mac hold a second tree of its own notes.
    paths = sorted(path for path in folder.rglob(pattern) if "__MACOSX" not in path.parts)
    if len(paths) != 1:
        there = f"{len(paths)} of them ({paths[0]}, {paths[1]})" if paths else "none"
        raise DataError(str(folder), f"expected one {pattern} in it or below, found {there}; give the folder of {what}")
    return paths[0]


@contextlib.contextmanager
def guarded(path: Path, advice: str, problem: str = "damaged or cut off") -> Iterator[None]:
    """Turns every error at a damaged file, or at a pipe or folder of its name, into one line: what, why, what to do."""
    try:
        if path.exists() and not path.is_file():
            raise ValueError("it is no regular file")
        yield
    except UserError:
        raise
    except Exception as error:  # decoders raise errors of many kinds
        raise DataError(str(path), f"{problem} ({reason(error)}); {advice}") from error


def read_text(path: Path) -> str:
    """Returns a whole file in UTF-8, every line end as a newline. Raises DataError if it is not such a file."""
    with guarded(path, "get the files again", "cannot be read as text"):
        return path.read_text(encoding="utf-8-sig")


class DownloadError(UserError):
    """The network or the server failed, after all retries."""

    exit_code = FAILED


def fetch(path: str, data_dir: Path, *, force: bool = False) -> None:
    """Downloads a file of `files.txt` to its place below `data_dir`, unless it is there with the right checksum.

    It appears whole and right or not at all. Raises DownloadError after all retries, DataError if it cannot be written.
    """
    import pooch  # these take some tenths of a second, which `list` does without
    import requests
    from rich.console import Console

    target = data_dir / path
    if force:
        target.unlink(missing_ok=True)
    store = pooch.create(data_dir, "", retry_if_failed=_NUM_RETRIES)
    store.load_registry(TABLE)
    downloader = pooch.HTTPDownloader(chunk_size=_CHUNK_BYTES, timeout=_TIMEOUT_S)
    try:
        with Console(stderr=True).status(f"loading {target.name}"):
            store.fetch(path, downloader=downloader)
        return
    except (requests.RequestException, ValueError) as error:
        problem = reason(error)  # raised below, because this error holds the connection
    except OSError as error:
        raise DataError(str(target), f"cannot be written: {reason(error)}") from error
    raise DownloadError(str(target), f"not loaded: {store.get_url(path)}: {problem}")


def install(archive: Path) -> list[Path]:
    """Unpacks beside the archive, whole or not at all, in place of what has the same names; returns the new paths."""
    targets = []
    with unpacked(archive, archive.parent) as folder:
        for entry in sorted(folder.iterdir()):
            target = archive.parent / entry.name
            if target.is_dir():
                shutil.rmtree(target)
            targets.append(entry.replace(target))
    return targets


@contextlib.contextmanager
def unpacked(archive: Path, folder: Path) -> Iterator[Path]:
    """Unpacks into a new folder within `folder`, which is gone at the end of the `with`. Raises UserError."""
    with writing(folder):
        temporary = tempfile.TemporaryDirectory(dir=folder, prefix=".unpacking-")
    with temporary as name:
        with guarded(archive, "get it again, or make room on the disk", "cannot be unpacked"):
            _extract(archive, Path(name))
            for inner in sorted(Path(name).rglob("*.zip")):  # UCI packs so
                _extract(inner, inner.parent)
                inner.unlink()
        yield Path(name)


def _extract(archive: Path, folder: Path) -> None:
    """Unpacks a .zip or a .tar; both libraries keep its members below `folder` and write no more than they declare."""
    if zipfile.is_zipfile(archive):
        with zipfile.ZipFile(archive) as file:
            if sum(member.file_size for member in file.infolist()) > MAX_UNPACKED_BYTES:
                raise ValueError(f"more than {MAX_UNPACKED_BYTES:,} bytes come out of it")
            file.extractall(folder)
        return
    # Python 3.11.2, as in Debian 12, has no filters.
    safely: dict[str, Any] = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}
    with tarfile.open(archive) as tar:
        for member in tar:
            inside = (folder / member.name).resolve().is_relative_to(folder.resolve())
            if not inside or not (member.isfile() or member.isdir()):
                raise ValueError(f"{member.name} is no file within it")
        tar.extractall(folder, **safely)


@functools.lru_cache(maxsize=1)
def _counts(path: Path, mtime_ns: int) -> dict[str, Any]:
    """Reads the counts of a prepared file, once for each time that it was written: the digest is of the whole file."""
    from fedmpi.store import hdf5

    attributes, _ = hdf5.read(path, KIND, None)
    return {name: attributes[name] for name in ("num_train", "num_test", "num_groups")}


def prepare(options: PreparedOptions, given: Path | None = None) -> Dataset:
    """Decodes the originals, `given` or as `fetch` loaded them, and writes the prepared file. Raises DataError."""
    make_folder(options.path.parent)  # else a user would wait minutes to learn that this cannot be
    with _originals(options, given) as folder:
        dataset = options.prepare(folder)
    info = options.info()
    if isinstance(options, CountedOptions):
        info = replace(info, **dataset.counts)
    save(options, check(f"data.name={options.name}", dataset, info))
    return dataset


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
    elif zipfile.is_zipfile(given) or tarfile.is_tarfile(given):
        with unpacked(given, options.path.parent) as folder:
            yield folder
    else:
        yield given.parent


def save(options: PreparedOptions, dataset: Dataset) -> None:
    """Writes the prepared file, whole or not at all. Raises RunDirError if it cannot be written."""
    from fedmpi.store import hdf5

    arrays = {name: array for name, array in dataset.arrays.items() if array is not None}
    make_folder(options.path.parent)
    write_atomic(options.path, hdf5.pack(KIND, {"digest": digest_of(arrays), **dataset.counts}, arrays))
