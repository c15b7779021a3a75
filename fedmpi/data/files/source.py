"""Where the files of a data set come from, with checksums and sizes, and where they lie below the data folder.

Checksums are those of torchvision (md5), of its prototype readers, tensorflow_datasets and TensorFlow
Federated (sha256). UCI publishes none: its two are those that several public repositories recorded
independently. A file without a checksum is checked by its reader alone.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from fedmpi.disk import temporary

if TYPE_CHECKING:
    from fedmpi.config.fields import Section
    from fedmpi.data.options import DataOptions


@dataclass(frozen=True)
class File:
    """One file to download to `path` below the data folder; `urls` are tried in turn."""

    path: str
    urls: tuple[str, ...]
    checksum: str = ""
    """`md5:` or `sha256:` and the digits; empty where none is known."""
    num_bytes: int = 0
    """0 where unknown."""
    unpack_to: str = ""
    """The folder, below the data folder, that a run reads the unpacked archive from; empty where it is not unpacked."""
    contents: tuple[str, ...] = ()
    """What unpacking makes, below `unpack_to`; any of them shows that it was unpacked."""
    needed_if: tuple[str, str] | None = None
    """(option, value): needed only by a configuration that says so."""


@dataclass(frozen=True)
class Source:
    """The files of a data set, the page that describes them and the terms of use."""

    page: str
    terms: str
    files: tuple[File, ...]
    other: str = ""
    """Other forms of the same data that the reader takes, and how to get them."""

    def needed(self, options: Section) -> tuple[File, ...]:
        """The files that a configuration with these options reads."""
        return tuple(
            file
            for file in self.files
            if file.needed_if is None or str(getattr(options, file.needed_if[0], None)) == file.needed_if[1]
        )


def how_to_fetch(options: DataOptions) -> str:
    """What a run that misses its files tells: the command that gets them, with the options that decide which."""
    source, told = options.source, []
    if source is not None:
        by_default = source.needed(type(options)(name=options.name))
        others = [file.needed_if for file in source.needed(options) if file not in by_default]
        told = [f"data.{needed_if[0]}={needed_if[1]}" for needed_if in others if needed_if is not None]
    return get_again(options.name, str(getattr(options, "root", "")), *told)


def get_again(name: str, data_dir: str | Path, *words: str) -> str:
    """The same for a reader that knows the folder only; `words` as `--force` go into the command."""
    command = " ".join(["python -m fedmpi.data fetch", name, *words, "--data-dir", quoted(str(data_dir))])
    return f"get the files by `{command}`, where there is a network"


def is_here(options: DataOptions) -> bool:
    """Whether a run or `prepare` finds all original files that these options need, or what unpacking makes of them.

    Says nothing about what is in them; False if no files are needed.
    """
    files = options.source.needed(options) if options.source else ()
    root = below_home(str(getattr(options, "root", "")))
    return bool(files) and all(
        unpacked(file, root) is not None or (not file.unpack_to and (root / file.path).is_file()) for file in files
    )


def unpacked(file: File, data_dir: Path) -> Path | None:
    """Where the unpacked contents are, if they are."""
    places = (data_dir / file.unpack_to / name for name in file.contents)
    return next((place for place in places if place.exists()), None)


def wrong_checksum(file: BinaryIO, checksum: str) -> str:
    """What is wrong with the bytes of an open file, then back at its start; empty if they have `checksum`."""
    algorithm, _, expected = checksum.partition(":")
    digest = hashlib.new(algorithm, usedforsecurity=False)
    while chunk := file.read(1 << 20):
        digest.update(chunk)
    num_bytes = file.tell()
    file.seek(0)
    found = digest.hexdigest()
    return "" if found == expected else f"its {num_bytes:,} bytes have {algorithm} {found}, expected {expected}"


def quoted(word: str) -> str:
    """A word for a shell; a leading ~ stays bare, so that the shell may expand it."""
    return word if re.fullmatch(r"[\w@%+=:,./~-]+", word) else shlex.quote(word)


def below_home(folder: str) -> Path:
    """A leading ~ or ~user is that home folder. An unknown user's stays, as a folder that is missing."""
    return Path(os.path.expanduser(folder))


@contextlib.contextmanager
def made(folder: Path) -> Iterator[None]:
    """Makes a folder and its parents, and at the end removes the new ones that are empty. Raises OSError."""
    missing = [place for place in (folder, *folder.parents) if not place.exists()]
    try:
        temporary.make_folder(folder)
        yield
    finally:
        with contextlib.suppress(OSError):  # not empty: then its parents are not, either
            for place in missing:
                place.rmdir()
