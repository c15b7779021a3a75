"""Archives of other people, unpacked so that nothing lands outside the folder, nothing is overwritten, no disk fills.

Only plain files and folders come out, written by our own code: links, devices, absolute names, `..`, names that
differ by case alone and encrypted members are refused, whatever the rest of the archive. What members declare
and what they really hold are both counted. Everything is written beside the target and renamed at the end.
"""

from __future__ import annotations

import fnmatch
import lzma
import re
import shutil
import stat
import struct
import tarfile
import tempfile
import unicodedata
import zipfile
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import IO, BinaryIO, cast

from fedmpi.data.tell import Tell
from fedmpi.errors import DataError

_BROKEN = (
    tarfile.TarError, zipfile.BadZipFile, zlib.error, lzma.LZMAError, struct.error,
    EOFError, NotImplementedError, ValueError, OverflowError,
)  # fmt: skip
_CHUNK_BYTES = 1 << 20
_MAX_READ_BYTES = 1 << 26  # a tar header may ask for any amount of memory
_JUDGED_AFTER = 1000  # members of a .tar, whose names come one by one; a .zip lists all of them at once
_CLUTTER = ("__MACOSX", ".DS_Store")


@dataclass(frozen=True)
class Limits:
    """No data set here comes near: Tiny ImageNet has 120,609 members, LEAF's and TFF's FEMNIST a few GB."""

    max_members: int = 1_000_000
    max_bytes: int = 32 * 10**9


def is_archive(path: Path) -> bool:
    """Whether the content (not the name) is a .zip or a .tar, plain or packed by gzip, bzip2 or xz."""
    if _is_zip(path):
        return True
    try:
        return tarfile.is_tarfile(path)
    except (*_BROKEN, OSError):
        return False


def unpack(
    archive: Path, folder: Path, tell: Tell, *, replace: bool = False, limits: Limits | None = None
) -> list[Path]:
    """Unpacks into `folder`, whole or not at all; returns what is new at its top.

    A .zip within the archive is unpacked in its place, once (UCI packs so). Raises DataError: unsafe, damaged, too
    large for the limits or the disk, or something of that name is there already and `replace` is false.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder, prefix=".unpacking-") as temporary:
            place = Path(temporary)
            unpack_into(archive, place, tell, limits)
            return [_move(entry, folder / entry.name, archive, replace) for entry in sorted(place.iterdir())]
    except OSError as error:
        raise DataError(str(folder), f"{archive.name} cannot be unpacked there: {error}") from error


def unpack_into(
    archive: Path, empty: Path, tell: Tell, limits: Limits | None = None, traces: tuple[str, ...] = ()
) -> None:
    """Unpacks into an empty folder of the caller, who throws it away if this fails.

    An archive whose (first) members have no name like any of the `traces`, as *.json, is refused early.
    """
    _Unpacking(archive, empty, tell, limits or Limits(), traces).run()


def _move(entry: Path, target: Path, archive: Path, replace: bool) -> Path:
    if target.exists() or target.is_symlink():
        if not replace:
            raise DataError(str(target), f"is there already; remove it, or unpack {archive.name} with --force")
        if target.is_dir() and not target.is_symlink():
            shutil.rmtree(target)
        else:
            target.unlink()
    return entry.rename(target)


@dataclass
class _Unpacking:
    """One archive on its way out: the names so far, members and bytes counted over nested archives, too."""

    archive: Path
    place: Path
    tell: Tell
    limits: Limits
    traces: tuple[str, ...] = ()
    num_members: int = 0
    num_bytes: int = 0
    names: dict[str, str] = field(default_factory=dict)

    def run(self) -> None:
        self._unpack(self.archive, PurePosixPath(), is_nested=False)

    def _unpack(self, archive: Path, below: PurePosixPath, is_nested: bool) -> None:
        try:
            nested = list(self._zip(archive, below) if _is_zip(archive) else self._tar(archive, below))
        except (*_BROKEN, RuntimeError, OSError) as error:
            if isinstance(error, OSError) and error.errno is not None:
                raise  # the disk's fault; gzip and bz2 raise OSErrors without a number
            if isinstance(error, tarfile.ReadError) and not is_archive(archive):
                raise self._refuse("is neither a .zip nor a .tar (plain, .gz, .bz2, .xz), or is cut off") from error
            raise self._refuse(f"damaged or cut off ({error}); get it again") from error
        self.traces = ()  # what is in an archive within the archive may be anything
        for inner in nested if not is_nested else ():
            if _is_zip(inner):
                self._unpack(inner, PurePosixPath(inner.parent.relative_to(self.place)), is_nested=True)
                inner.unlink()

    def _zip(self, archive: Path, below: PurePosixPath) -> Iterator[Path]:
        with zipfile.ZipFile(archive) as file:
            members = file.infolist()
            self._check_room(sum(member.file_size for member in members), len(members))
            if self.traces and not any(self._is_trace(member.orig_filename) for member in members):
                raise self._strange(len(members))
            for done, member in enumerate(members, 1):
                kind = stat.S_IFMT(member.external_attr >> 16)
                if kind not in (0, stat.S_IFREG, stat.S_IFDIR) or member.flag_bits & 1:
                    raise self._refuse(f"member {member.orig_filename!r} is a link, a device or encrypted")
                # zipfile cuts a name at a zero byte: the original one is what is judged.
                target = self._target(member.orig_filename, below, member.filename.endswith("/"))
                if target is not None:
                    with file.open(member) as content:
                        self._write(content, target, member.file_size)
                    yield from [target] if target.suffix == ".zip" else []
                self.tell(done, len(members))

    def _tar(self, archive: Path, below: PurePosixPath) -> Iterator[Path]:
        with _open_tar(archive) as raw, tarfile.open(fileobj=raw, mode="r:") as file:
            is_known = not self.traces
            for done, member in enumerate(file, 1):
                is_known = is_known or self._is_trace(member.name)
                if not is_known and done >= _JUDGED_AFTER:
                    raise self._strange(done)
                if not (member.isreg() or member.isdir()) or member.size < 0:
                    raise self._refuse(f"member {member.name!r} is a link, a device or of negative size")
                self._check_room(member.size)
                target = self._target(member.name, below, member.isdir())
                content = file.extractfile(member) if target is not None else None
                if target is not None and content is not None:
                    with content:
                        self._write(content, target, member.size)
                    yield from [target] if target.suffix == ".zip" else []
                file.members = []  # type: ignore[attr-defined]  # tarfile keeps every header it has read
                self.tell(self.num_members, 0)

    def _is_trace(self, name: str) -> bool:
        """Whether such a member is in the archives that the caller wants; an archive within may hold one."""
        return any(fnmatch.fnmatchcase(name, trace) for trace in (*self.traces, "*.zip"))

    def _strange(self, num_members: int) -> DataError:
        names = " or ".join(self.traces)
        return self._refuse(f"no {names} among its first {num_members:,} members: these are other files")

    def _target(self, name: str, below: PurePosixPath, is_folder: bool) -> Path | None:
        """Where a member goes; None for a folder, which is made, and for clutter. Refuses what is unsafe."""
        self.num_members += 1
        if self.num_members > self.limits.max_members:
            raise self._refuse(f"more than {self.limits.max_members:,} members")
        parts = tuple(part for part in name.rstrip("/").split("/") if part != ".")
        if any(not _is_safe(part) for part in parts):  # an absolute name begins with an empty part
            raise self._refuse(f"member {name!r} would land outside the folder or has no portable name")
        if not parts or any(part in _CLUTTER for part in parts):
            return None
        path = below.joinpath(*parts)
        self._register(path, is_folder)
        target = self.place / path
        (target if is_folder else target.parent).mkdir(parents=True, exist_ok=True)
        return None if is_folder else target

    def _register(self, path: PurePosixPath, is_folder: bool) -> None:
        """Remembers a name and its folders; another spelling of one of them, or a file twice, is refused."""
        for prefix in (path, *path.parents[:-1]):
            spelling = f"{prefix}/" if is_folder or prefix != path else str(prefix)
            same_to_a_disk = unicodedata.normalize("NFC", str(prefix)).casefold()
            known = self.names.get(same_to_a_disk)
            if known is not None and (known != spelling or not spelling.endswith("/")):
                raise self._refuse(f"members {known!r} and {spelling!r} would be the same file")
            self.names[same_to_a_disk] = spelling

    def _write(self, content: IO[bytes], target: Path, declared_bytes: int) -> None:
        """Copies a member; one that holds more or less than it declares is refused."""
        written = 0
        with target.open("xb") as file:
            while chunk := content.read(_CHUNK_BYTES):
                written += len(chunk)
                if written > declared_bytes:
                    break
                file.write(chunk)
        self.num_bytes += written
        if written != declared_bytes:
            raise self._refuse(
                f"member {target.name!r} holds {written:,} bytes or more, but declares {declared_bytes:,}"
            )

    def _check_room(self, num_bytes: int, num_members: int = 0) -> None:
        """Refuses, before anything is written, what is declared beyond the limits and the free disk space."""
        if self.num_members + num_members > self.limits.max_members:
            raise self._refuse(f"more than {self.limits.max_members:,} members")
        if self.num_bytes + num_bytes > self.limits.max_bytes:
            raise self._refuse(f"unpacks to more than {self.limits.max_bytes:,} bytes")
        free = shutil.disk_usage(self.place).free
        if num_bytes > free:
            raise DataError(
                str(self.place.parent),
                f"{free:,} bytes are free, unpacking {self.archive.name} takes {num_bytes:,}; make room",
            )

    def _refuse(self, problem: str) -> DataError:
        return DataError(str(self.archive), problem)


def _is_safe(part: str) -> bool:
    return part not in ("", "..") and len(part.encode()) <= 255 and not re.search(r"[\\\x00-\x1f\x7f]|^[A-Za-z]:", part)


def _is_zip(path: Path) -> bool:
    """By the first bytes: zipfile.is_zipfile also takes files that merely end like one."""
    with path.open("rb") as file:
        return file.read(4) in (b"PK\x03\x04", b"PK\x05\x06")


class _Bounded:
    """A stream that no header can make read much at once."""

    def __init__(self, raw: BinaryIO) -> None:
        self._raw = raw
        self.seek, self.tell = raw.seek, raw.tell

    def read(self, num_bytes: int = -1) -> bytes:
        if not 0 <= num_bytes <= _MAX_READ_BYTES:
            raise tarfile.ReadError(f"a header of {num_bytes:,} bytes")
        return self._raw.read(num_bytes)

    def __enter__(self) -> BinaryIO:
        return cast(BinaryIO, self)

    def __exit__(self, *_: object) -> None:
        self._raw.close()


def _open_tar(path: Path) -> _Bounded:
    import bz2
    import gzip

    with path.open("rb") as file:
        head = file.read(6)
    openers: tuple[tuple[bytes, Callable[..., object]], ...] = (
        (b"\x1f\x8b", gzip.open), (b"BZh", bz2.open), (b"\xfd7zXZ\x00", lzma.open),
    )  # fmt: skip
    opener = next((opener for magic, opener in openers if head.startswith(magic)), open)
    return _Bounded(cast(BinaryIO, opener(path, "rb")))
