"""Where the files of a data set come from, with checksums and sizes, and where they lie below the data folder.

Checksums are those of torchvision (md5), of its prototype readers, tensorflow_datasets and TensorFlow
Federated (sha256). UCI publishes none: its two are those that several public repositories recorded
independently. A file without a checksum is checked by its reader alone.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from fedmpi.data.files.folders import below_home

if TYPE_CHECKING:
    from fedmpi.config.schema import Section
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
    """What a run that misses its files tells: the command that gets them."""
    told = [f"data.{file.needed_if[0]}={file.needed_if[1]}" for file in _files(options) if file.needed_if is not None]
    return get_again(options.name, str(getattr(options, "root", "")), *told)


def get_again(name: str, data_dir: str | Path, *words: str) -> str:
    """The same for a reader that knows the folder only; `words` as `--force` go into the command."""
    command = " ".join(["python -m fedmpi.data fetch", name, *words, "--data-dir", quoted(str(data_dir))])
    return f"get the files by `{command}`, where there is a network"


def _files(options: DataOptions) -> tuple[File, ...]:
    """The needed files that a fetch with default options would not get."""
    source = options.source
    if source is None:
        return ()
    by_default = source.needed(type(options)(name=options.name))
    return tuple(file for file in source.needed(options) if file not in by_default)


def present(file: File, data_dir: Path) -> bool:
    """Whether a run or `prepare` finds the file, or what unpacking it makes; says nothing about what is in it."""
    return unpacked(file, data_dir) is not None or (not file.unpack_to and (data_dir / file.path).is_file())


def is_here(options: DataOptions) -> bool:
    """Whether all original files that these options need are below data.root, and there are any to need."""
    files = options.source.needed(options) if options.source else ()
    root = below_home(str(getattr(options, "root", "")))
    return bool(files) and all(present(file, root) for file in files)


def unpacked(file: File, data_dir: Path) -> Path | None:
    """Where the unpacked contents are, if they are."""
    places = (data_dir / file.unpack_to / name for name in file.contents)
    return next((place for place in places if place.exists()), None)


def quoted(word: str) -> str:
    """A word for a shell; a leading ~ stays bare, so that the shell may expand it."""
    return word if re.fullmatch(r"[\w@%+=:,./~-]+", word) else shlex.quote(word)


def total_bytes(files: Iterable[File]) -> int:
    """Bytes to download; files of unknown size count nothing."""
    return sum(file.num_bytes for file in files)
