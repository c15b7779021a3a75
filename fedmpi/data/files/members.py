"""The members of a .tar or .zip, as Python's `tarfile` and `zipfile` find them, within a budget.

Both believe what an archive says of itself: `tarfile` reads headers of any length into memory and skips 2^62 bytes
block by block, `zipfile` holds every entry before they can be counted. They get file objects that refuse this.
Overriding `TarInfo.frombuf` would not do, because newer versions of `tarfile` do not call it.
"""

from __future__ import annotations

import re
import stat
import tarfile
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from typing import IO, Any, BinaryIO, cast

from fedmpi.data.files.budget import CRAFTED, Budget
from fedmpi.data.files.packed import CHUNK_BYTES, Content, Counted

BROKEN = (*CRAFTED, tarfile.TarError, zipfile.BadZipFile)
"""What the readers of this module raise at an archive that is damaged, cut off or crafted."""
_MAX_HEADER_BYTES = 2**14  # of all headers in front of one member, together; a usual one has 512
_MAX_RECORDS = 100  # PAX records for all members; each member gets a copy of them
_LONG_NUMBER = re.compile(rb"\d{256}")  # the time that tarfile of Python 3.11.9 needs grows with the square of this
_MAX_DIRECTORY_BYTES = 2**25  # zipfile makes some 700 bytes of memory out of each entry of 47 bytes or more
_LOCAL_BYTES = 30  # in front of each member of a .zip
_METHODS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)  # zipfile has no limit on what comes out of the others at once


@dataclass(frozen=True)
class Member:
    """A member as its header declares it."""

    name: str
    num_bytes: int
    kind: str
    """`file`, `folder`, or in words what it is instead, as `a hard link`."""


def is_tar(head: bytes) -> bool:
    """Whether 512 bytes begin a .tar: their checksum says so."""
    try:
        tarfile.TarInfo.frombuf(head, "utf-8", "surrogateescape")
    except (tarfile.HeaderError, ValueError):
        return False
    return True


def of_tar(stream: Counted) -> Iterator[tuple[Member, Content | None]]:
    """Each member, and the content of a file, which must be read before the next member is asked for.

    Raises `BROKEN`, and what the stream raises.
    """
    forward = _Forward(stream)
    with tarfile.open(fileobj=cast(IO[bytes], forward), mode="r:", encoding="utf-8") as file:
        while (found := file.next()) is not None:
            member = Member(found.name, found.size, _kind(found))
            if len(file.pax_headers) > _MAX_RECORDS:
                raise ValueError(f"more than {_MAX_RECORDS} PAX records for all members")
            forward.num_left = max(0, found.size)
            yield member, file.extractfile(found) if member.kind == "file" else None
            forward.num_left = _MAX_HEADER_BYTES
            cast(Any, file).members.clear()  # tarfile keeps every header that it has read
    if forward.last != bytes(tarfile.BLOCKSIZE):  # tarfile takes what is no header for the end
        raise ValueError("a header is wrong, or the end is missing")
    while stream.read(CHUNK_BYTES):
        pass  # to the end, where the compression has its checksum


def _kind(found: tarfile.TarInfo) -> str:
    if found.size < 0:
        return "of a size below zero"
    if found.issparse() or any(key.startswith("GNU.sparse.") or key == "SCHILY.realsize" for key in found.pax_headers):
        return "a sparse file"
    if found.islnk() or found.issym():
        return "a hard link" if found.islnk() else "a symbolic link"
    if found.isdev():
        return "a device or a pipe"
    if found.isdir() or found.isfile():
        return "folder" if found.isdir() else "file"
    return f"of an unknown kind {found.type!r}"


class _Forward:
    """A stream as a file that tarfile can skip in, but never go back, and read no more of than `num_left` bytes."""

    def __init__(self, stream: Counted) -> None:
        self._stream, self._position = stream, 0
        self.num_left = _MAX_HEADER_BYTES
        self.last = b""

    def tell(self) -> int:
        return self._position

    def seek(self, position: int) -> None:
        if position < self._position:
            raise ValueError("a header leads backwards")
        while (num_bytes := position - self._position) > 0:
            self._position += len(skipped := self._stream.read(min(num_bytes, CHUNK_BYTES)))
            if not skipped:
                raise EOFError(f"{num_bytes:,} bytes are missing at its end")  # where tarfile would continue

    def read(self, num_bytes: int) -> bytes:
        if not 0 <= num_bytes <= self.num_left:
            raise ValueError(f"a header of {num_bytes:,} bytes; {self.num_left:,} are allowed there")
        self.last = self._stream.read(num_bytes)
        if self.num_left <= _MAX_HEADER_BYTES and _LONG_NUMBER.search(self.last):
            raise ValueError("a header with a number of more than 255 digits")
        self.num_left -= num_bytes
        self._position += len(self.last)
        return self.last


def opened_zip(file: BinaryIO, budget: Budget) -> zipfile.ZipFile:
    """A .zip whose directory has been read. Raises `BROKEN`; DataError for a directory that is too long."""
    limited = _Limited(file, budget)
    archive = zipfile.ZipFile(cast(IO[bytes], limited))
    if sum(entry.compress_size + _LOCAL_BYTES for entry in archive.infolist()) > limited.num_bytes:
        raise ValueError("members lie over each other")  # which makes 4 PB out of 46 MB
    return archive


def declared(archive: zipfile.ZipFile) -> Iterator[Member]:
    """The members as the directory has them."""
    for entry in archive.infolist():
        # zipfile cuts a name at a zero byte: the original one is what is judged.
        kind = "folder" if entry.orig_filename.endswith("/") else "file"
        if stat.S_IFMT(entry.external_attr >> 16) not in (0, stat.S_IFREG, stat.S_IFDIR):
            kind = "a link, a pipe or a device"
        if entry.flag_bits & 1:
            kind = "encrypted"
        yield Member(entry.orig_filename, entry.file_size, kind)


def of_zip(archive: zipfile.ZipFile, budget: Budget) -> Iterator[tuple[Member, Content]]:
    """Each member and its content, which must be read before the next member is asked for. Raises `BROKEN`."""
    for member, entry in zip(declared(archive), archive.infolist(), strict=True):
        budget.member = member.name
        if entry.compress_type not in _METHODS:
            raise ValueError(f"it is compressed by method {entry.compress_type}; stored and deflated members are read")
        with archive.open(entry) as content:
            yield member, Counted(content, budget)


class _Limited:
    """A .zip as a file that zipfile can read no more of at once than `_MAX_DIRECTORY_BYTES`."""

    def __init__(self, file: BinaryIO, budget: Budget) -> None:
        self._file, self._budget = file, budget
        self.num_bytes = file.seek(0, 2)
        self.tell, self.seekable = file.tell, file.seekable

    def seek(self, offset: int, whence: int = 0) -> int:
        position = offset + (0, self._file.tell(), self.num_bytes)[whence]
        if not 0 <= position <= self.num_bytes:
            raise OSError("its directory leads out of it")  # without a number: the disk is not at fault
        return self._file.seek(position)

    def read(self, num_bytes: int = -1) -> bytes:
        num_left = self.num_bytes - self._file.tell()
        num_bytes = min(num_bytes, num_left) if num_bytes >= 0 else num_left
        if num_bytes > _MAX_DIRECTORY_BYTES:
            found = f"its directory has {num_bytes:,} bytes; at most {_MAX_DIRECTORY_BYTES:,} are read"
            raise self._budget.refuse(found)
        return self._file.read(num_bytes)
