"""The files of data sets: their addresses and checksums, downloads, archives, and one line for each damaged file.

Checksums are those of torchvision (md5), of its prototype readers, tensorflow_datasets and TensorFlow Federated
(sha256). UCI publishes none: its two are those that several public repositories recorded independently.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import shlex
import shutil
import tarfile
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedmpi.errors import FAILED, DataError, UserError, reason

Tell = Callable[[int, int], None]
"""Long work calls it with what is done (files, members, bytes ...) and the total, 0 if that is unknown."""

MAX_UNPACKED_BYTES = 32 * 10**9
"""FEMNIST, the largest set, unpacks to a few GB: an archive of more than this would only fill the disk."""
_NUM_RETRIES = 4  # pooch waits 1, 2, 3 and 4 s before them
_TIMEOUT_S = 60.0
_CHUNK_BYTES = 2**18


@dataclass(frozen=True)
class File:
    """One file to download to `path` below the data folder; `urls` are tried in turn."""

    path: str
    urls: tuple[str, ...]
    checksum: str
    """`md5:` or `sha256:` and the digits."""
    num_bytes: int = 0
    """0 where unknown."""
    unpack_to: str = ""
    """The folder, below the data folder, where a run reads the unpacked archive; empty if a run does not read it."""
    contents: tuple[str, ...] = ()
    """Paths below `unpack_to` that unpacking makes; any of them shows that the archive was unpacked."""
    needed_if: tuple[str, str] | None = None
    """(option, value): only a configuration that says so needs the file."""


@dataclass(frozen=True)
class Source:
    """The files of a data set, the page that describes them and the terms of use."""

    page: str
    terms: str
    files: tuple[File, ...]
    other: str = ""
    """Other forms of the same data that the reader takes, and how to get them."""

    def needed(self, options: Any) -> tuple[File, ...]:
        """Returns the files that a configuration with these options reads."""
        return tuple(
            file
            for file in self.files
            if file.needed_if is None or str(getattr(options, file.needed_if[0], None)) == file.needed_if[1]
        )


# ---- advice


def how_to_fetch(options: Any) -> str:
    """Returns the advice to fetch the files of a data set, with the options that decide which files these are."""
    words = []
    if options.source is not None:
        by_default = options.source.needed(type(options)(name=options.name))
        for file in options.source.needed(options):
            if file not in by_default and file.needed_if is not None:
                words.append(f"data.{file.needed_if[0]}={file.needed_if[1]}")
    return get_again(options.name, str(getattr(options, "root", "")), *words)


def get_again(name: str, data_dir: str | Path, *words: str) -> str:
    """Returns the same advice for a reader that knows only the folder; `words`, as `--force`, go into the command."""
    command = " ".join(["fedmpi data fetch", name, *words, "--data-dir", quoted(str(data_dir))])
    return f"get the files by `{command}`, where there is a network"


def quoted(word: str) -> str:
    """Quotes a word for a shell; a leading ~ stays bare, so that the shell may expand it."""
    return word if re.fullmatch(r"[\w@%+=:,./~-]+", word) else shlex.quote(word)


# ---- on the disk


def below_home(folder: str) -> Path:
    """Replaces a leading ~ or ~user by that home folder. An unknown user's stays, as a folder that is missing."""
    return Path(os.path.expanduser(folder))


def is_here(options: Any) -> bool:
    """Returns whether all original files that these options need, or their unpacked contents, are there."""
    files = options.source.needed(options) if options.source else ()
    root = below_home(str(getattr(options, "root", "")))
    return bool(files) and all(
        unpacked(file, root) is not None or (not file.unpack_to and (root / file.path).is_file()) for file in files
    )


def unpacked(file: File, data_dir: Path) -> Path | None:
    """Returns where the unpacked contents of a file are, if they are there."""
    places = (data_dir / file.unpack_to / name for name in file.contents)
    return next((place for place in places if place.exists()), None)


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
        return path.read_text(encoding="utf-8")


def read_checked(path: Path, md5: str, advice: str) -> bytes:
    """Returns the bytes of a file. Raises DataError if they do not have this md5 (where it is not empty)."""
    with guarded(path, advice, "cannot be read"):
        content = path.read_bytes()
    digest = hashlib.md5(content, usedforsecurity=False).hexdigest()
    if md5 and digest != md5:
        problem = f"damaged or cut off: its {len(content):,} bytes have md5 {digest}, expected {md5}"
        raise DataError(str(path), f"{problem}; {advice}")
    return content


# ---- downloads


class DownloadError(UserError):
    """The network or the server failed, after all retries."""

    exit_code = FAILED


class _Bar:
    """The progress bar that pooch calls."""

    total = 0

    def __init__(self, tell: Tell) -> None:
        self._tell = tell
        self._num_bytes = 0

    def update(self, num_bytes: int) -> None:
        self._num_bytes = min(self._num_bytes + num_bytes, self.total)
        self._tell(self._num_bytes, self.total)

    def reset(self) -> None:
        self._num_bytes = 0

    def close(self) -> None:
        pass


def fetch(file: File, data_dir: Path, tell: Tell, *, force: bool = False) -> bool:
    """Downloads a file to its place below `data_dir`; returns False if it is there already, with its checksum.

    The file appears whole and with the right checksum or not at all. Raises DownloadError after all retries of all
    addresses, DataError if the file cannot be written.
    """
    import pooch  # takes a tenth of a second, which `list` does without
    import requests

    target = data_dir / file.path
    if force:
        target.unlink(missing_ok=True)
    elif target.is_file() and pooch.hashes.hash_matches(str(target), file.checksum):
        return False
    reasons = []
    for url in file.urls:
        bar = _Bar(tell)
        downloader = pooch.HTTPDownloader(progressbar=bar, chunk_size=_CHUNK_BYTES, timeout=_TIMEOUT_S)
        registry = {file.path: file.checksum}
        store = pooch.create(data_dir, "", registry=registry, urls={file.path: url}, retry_if_failed=_NUM_RETRIES)
        try:
            store.fetch(file.path, downloader=downloader)
            return True
        except (requests.RequestException, ValueError) as error:
            reasons.append(f"{url}: {reason(error)}")
        except OSError as error:
            raise DataError(str(target), f"cannot be written: {reason(error)}") from error
    raise DownloadError(str(target), f"not loaded: {'; '.join(reasons)}")


# ---- archives


def is_archive(path: Path) -> bool:
    """Returns whether a file's content (not its name) is a .zip or a .tar (plain, .gz, .bz2 or .xz)."""
    return zipfile.is_zipfile(path) or tarfile.is_tarfile(path)


def install(archive: Path, folder: Path, tell: Tell) -> list[Path]:
    """Unpacks into `folder`, whole or not at all, in place of what has the same names there; returns the new paths."""
    with unpacked_beside(archive, folder, tell) as place:
        targets = []
        for entry in sorted(place.iterdir()):
            target = folder / entry.name
            if target.is_dir():
                shutil.rmtree(target)
            targets.append(entry.replace(target))
    return targets


@contextlib.contextmanager
def unpacked_beside(archive: Path, folder: Path, tell: Tell) -> Iterator[Path]:
    """Unpacks into a new folder within `folder`, which is gone at the end of the `with`. Raises DataError."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        temporary = tempfile.TemporaryDirectory(dir=folder, prefix=".unpacking-")
    except OSError as error:
        raise DataError(str(folder), f"{archive.name} cannot be unpacked there: {reason(error)}") from error
    with temporary as name:
        with guarded(archive, "get it again, or make room on the disk", "cannot be unpacked"):
            num_bytes = _extract(archive, Path(name), 0, tell)
            for inner in sorted(Path(name).rglob("*.zip")):  # UCI packs so
                num_bytes = _extract(inner, inner.parent, num_bytes, tell)
                inner.unlink()
        yield Path(name)


def _extract(archive: Path, folder: Path, num_bytes: int, tell: Tell) -> int:
    """Unpacks into `folder`; returns `num_bytes` and the sizes of all members.

    Both libraries keep names within the folder and write no more than a member declares; tarfile's filter `data` also
    refuses devices.
    """
    if zipfile.is_zipfile(archive):
        with zipfile.ZipFile(archive) as file:
            members = file.infolist()
            for done, member in enumerate(members, start=1):
                num_bytes = _sum_within_limit(num_bytes, member.file_size)
                file.extract(member, folder)
                tell(done, len(members))
        return num_bytes
    if not hasattr(tarfile, "data_filter"):
        raise ValueError("this Python's tarfile has no filter for data; take a newer Python, or unpack it yourself")
    with tarfile.open(archive) as tar:
        for done, entry in enumerate(tar, start=1):
            num_bytes = _sum_within_limit(num_bytes, entry.size)
            tar.extract(entry, folder, filter="data")
            tell(done, 0)
    return num_bytes


def _sum_within_limit(num_bytes: int, more: int) -> int:
    if num_bytes + more > MAX_UNPACKED_BYTES:
        raise ValueError(f"more than {MAX_UNPACKED_BYTES:,} bytes come out of it")
    return num_bytes + more
