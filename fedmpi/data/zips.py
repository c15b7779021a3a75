"""The .zip format: its directory read entry by entry, its members by way of it.

Python's `zipfile` holds all entries in memory, some 700 bytes each, before anybody can count them. Here one entry is
in memory at a time, and entries that lie over each other, which make 4 PB out of 46 MB, do not fit into the file.
Source: PKWARE, APPNOTE.TXT 6.3.10, sections 4.3 to 4.5.
"""

from __future__ import annotations

import bz2
import stat
import struct
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import BinaryIO

from fedmpi.data.budget import Budget
from fedmpi.data.members import Member
from fedmpi.data.packed import Decoder, Deflate, Stream

_END = struct.Struct("<4s4H2IH")
_FAR_LOCATOR = struct.Struct("<4sIQI")
_FAR_END = struct.Struct("<4sQ2H2I4Q")
_ENTRY = struct.Struct("<4s6H3I5H2I")
_LOCAL = struct.Struct("<4s5H3I2H")
_MAX_COMMENT_BYTES = 2**16
_FAR_EXTRA, _IS_FAR = 1, 0xFFFFFFFF
_ENCRYPTED, _UTF8 = 1, 0x800
_DECODERS: dict[int, Callable[[], Decoder] | None] = {0: None, 8: lambda: Deflate(wbits=-15), 12: bz2.BZ2Decompressor}


@dataclass(frozen=True)
class Entry(Member):
    """A member, and where its compressed bytes lie."""

    raw_name: bytes
    method: int
    crc: int
    num_packed: int
    offset: int


def entries(file: BinaryIO, budget: Budget) -> Iterator[Entry]:
    """The entries of the directory. Raises ValueError for what is none; DataError beyond the budget.

    Positions in `file` are set before each read, so that contents may be read of it meanwhile.
    """
    file_bytes = file.seek(0, 2)
    at, end, count = _directory(file, file_bytes)
    num_packed = 0
    for _ in range(count):
        file.seek(at)
        fixed = file.read(_ENTRY.size)
        if len(fixed) < _ENTRY.size or at + _ENTRY.size > end:
            raise ValueError("its directory ends within an entry")
        entry, at = _entry(_ENTRY.unpack(fixed), file, at)
        num_packed += entry.num_packed + _LOCAL.size
        if num_packed > file_bytes:
            raise ValueError("members lie over each other")
        yield entry
    if at != end:
        raise ValueError(f"its directory has {end - at:,} bytes that belong to none of its {count:,} entries")


def _directory(file: BinaryIO, file_bytes: int) -> tuple[int, int, int]:
    """Where the directory begins and ends, and how many entries it has."""
    tail_at = max(0, file_bytes - _END.size - _MAX_COMMENT_BYTES - _FAR_LOCATOR.size)
    file.seek(tail_at)
    tail = file.read(file_bytes - tail_at)
    found = tail.rfind(b"PK\5\6")
    while found >= 0 and not _is_end(tail[found:]):  # a comment may hold these letters, too
        found = tail.rfind(b"PK\5\6", 0, found)
    if found < 0:
        raise ValueError("it has no directory")
    _, disk, _, _, count, num_bytes, begin, _ = _END.unpack_from(tail, found)
    end = tail_at + found
    if found >= _FAR_LOCATOR.size:
        mark, _, far_at, _ = _FAR_LOCATOR.unpack_from(tail, found - _FAR_LOCATOR.size)
        if mark == b"PK\6\7":
            file.seek(min(far_at, file_bytes))
            fixed = file.read(_FAR_END.size)
            if len(fixed) < _FAR_END.size or fixed[:4] != b"PK\6\6":
                raise ValueError("its directory is not where it says")
            *_, count, num_bytes, begin = _FAR_END.unpack(fixed)
            end = far_at
    if disk not in (0, 0xFFFF) or begin + num_bytes != end:
        raise ValueError("its directory is not where it says")
    return begin, end, count


def _is_end(tail: bytes) -> bool:
    """Whether the record of the end lies here, followed by its comment and nothing else."""
    return len(tail) >= _END.size and len(tail) == _END.size + _END.unpack_from(tail)[-1]


def _entry(fixed: tuple[int, ...], file: BinaryIO, at: int) -> tuple[Entry, int]:
    """The entry whose fixed part lies at `at`, and where the next one begins."""
    mark, version, _, flags, method, _, _, crc, packed, size, name_bytes, extra_bytes, comment_bytes, *rest = fixed
    _, _, attributes, offset = rest
    if mark != b"PK\1\2":
        raise ValueError("its directory has an entry that is none")
    name, extra = file.read(name_bytes), file.read(extra_bytes)
    if len(name) + len(extra) < name_bytes + extra_bytes:
        raise ValueError("its directory ends within an entry")
    size, packed, offset = _far(extra, size, packed, offset)
    text = name.decode("utf-8" if flags & _UTF8 else "cp437")
    mode = stat.S_IFMT(attributes >> 16)
    kind = "folder" if text.endswith("/") else "file"
    if mode not in (0, stat.S_IFREG, stat.S_IFDIR):
        kind = "a link, a pipe or a device"
    if flags & _ENCRYPTED:
        kind = "encrypted"
    following = at + _ENTRY.size + name_bytes + extra_bytes + comment_bytes
    return Entry(text, size, kind, name, method, crc, packed, offset), following


def _far(extra: bytes, *values: int) -> list[int]:
    """Size, packed size and offset, those that are too large for 32 bits taken out of the extra field."""
    begin, far = 0, b""
    while begin + 4 <= len(extra):
        kind, length = struct.unpack_from("<2H", extra, begin)
        if kind == _FAR_EXTRA:
            far = extra[begin + 4 : begin + 4 + length]
        begin += 4 + length
    found = []
    for value in values:
        if value == _IS_FAR:
            (value,), far = struct.unpack("<Q", far[:8].ljust(8, b"\xff")), far[8:]
        found.append(value)
    return found


class Content:
    """The bytes of one member. At its end the checksum is compared; raises ValueError if it is another."""

    def __init__(self, file: BinaryIO, entry: Entry, budget: Budget) -> None:
        if entry.method not in _DECODERS:
            raise ValueError(f"it is compressed by method {entry.method}; stored, deflated and bzip2 members are read")
        file.seek(entry.offset)
        fixed = file.read(_LOCAL.size)
        if len(fixed) < _LOCAL.size or fixed[:4] != b"PK\3\4":
            raise ValueError("the directory names a place where no member begins")
        *_, name_bytes, extra_bytes = _LOCAL.unpack(fixed)
        if file.read(name_bytes) != entry.raw_name:
            raise ValueError("the directory has another name for it")
        file.seek(extra_bytes, 1)
        self._stream = Stream(file, budget, _DECODERS[entry.method], entry.num_packed)
        self._crc, self._expected = 0, entry.crc

    def read(self, num_bytes: int) -> bytes:
        data = self._stream.read(num_bytes)
        self._crc = zlib.crc32(data, self._crc)
        if len(data) < num_bytes and self._crc != self._expected:
            raise ValueError("its checksum is not that of its bytes")
        return data
