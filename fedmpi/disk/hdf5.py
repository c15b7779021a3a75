"""Arrays in HDF5 files that are safe to read, however they were written or damaged.

The HDF5 library is not: of 10,000 crafted files of 10 KB, 6 ended the interpreter by SIGSEGV or SIGFPE, and
6 took up to 3 GB before they were refused (libhdf5 2.0.0).
So it only writes here. A file is what it wrote, and what h5dump and h5py read, with a line in its user
block in front and a table of contents behind:

    fedmpi <kind> format <n> bytes <after the user block> contents <bytes of the table> blake2b <hex>
    {"attributes": {name: text or integer}, "arrays": [[name, dtype, shape, offset], ...]}

The checksum is of the line before it and of all that follows the user block. It tells damage from
intent only, as a forger can compute it, too. What passes is still read as if written by an enemy: arrays are
plain numbers within the file, together no larger than the file, and the table is at most
`MAX_CONTENTS_BYTES`. Equal contents give equal bytes: no times are stored.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import math
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import h5py
import numpy as np
from numpy.typing import NDArray

from fedmpi.disk.plain import DIGEST_BYTES, NotPlainError, open_to_read

FORMAT = 2
USER_BLOCK_BYTES = 512
MAX_CONTENTS_BYTES = 8 * 2**20
"""Some 80,000 arrays. Parsed, a table takes up to 30 times its bytes."""
_BEGINNING = re.compile(rb"fedmpi ([a-z]+) format (\d{1,9}) bytes (\d{1,18}) ")
_HEADER = re.compile(rb"(fedmpi [a-z]+ format \d+ bytes (\d+) contents (\d{1,9})) blake2b ([0-9a-f]{32})\n\0*")
_DTYPE = re.compile(r"[<|][iuf][1248]")
_MAX_DIMS = 32  # HDF5's limit
_CHUNK_BYTES = 2**20
_FOREIGN = "not written by fedmpi, or its first bytes are damaged"

Attributes = Mapping[str, "str | int"]
Arrays = Mapping[str, NDArray[Any]]


class Damaged(Exception):
    """What is wrong with a file, in words that follow its name."""


@dataclass(frozen=True)
class Entry:
    """Where an array lies in a file: `offset` in bytes from its beginning."""

    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    offset: int

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        return self.size * self.dtype.itemsize


@dataclass(frozen=True)
class Reader:
    """An open file whose table of contents is a sound one."""

    attributes: Attributes
    entries: Mapping[str, Entry]
    _file: BinaryIO

    def array(self, name: str) -> NDArray[Any]:
        """An array of its own memory. Raises KeyError; `Damaged` if the file has shrunk since it was opened."""
        entry = self.entries[name]
        values = np.empty(entry.size, entry.dtype)
        self._file.seek(entry.offset)
        if values.size and self._file.readinto(values.data) != entry.nbytes:  # type: ignore[attr-defined]  # IO lacks it
            raise Damaged("has shrunk while it was read")
        return values.reshape(entry.shape)


def pack(kind: str, attributes: Attributes, arrays: Arrays) -> memoryview:
    """The bytes of a file of this `kind`. A name like `server/conv.weight` puts the array into a group.

    Built in memory, so that writing it is Python's: a full disk is an ordinary OSError and never a
    half-closed HDF5 file. Raises ValueError if the table of contents would be too long.
    """
    buffer = io.BytesIO()
    write(buffer, kind, attributes, arrays)
    return buffer.getbuffer()


def write(file: io.BytesIO | BinaryIO, kind: str, attributes: Attributes, arrays: Arrays) -> None:
    """Packs as `pack` does, into an empty `file` to write, read and seek in: for what is too large to have twice."""
    with h5py.File(file, "w", libver="latest", userblock_size=USER_BLOCK_BYTES) as hdf5:
        for name, value in attributes.items():
            hdf5.attrs[name] = np.bytes_(value.encode()) if isinstance(value, str) else np.int64(value)
        listed = [[name, array.dtype.str, array.shape, _add(hdf5, name, array)] for name, array in arrays.items()]
    contents = json.dumps({"attributes": dict(attributes), "arrays": listed}).encode()
    if len(contents) > MAX_CONTENTS_BYTES:
        raise ValueError(f"a table of contents of {len(contents)} bytes; at most {MAX_CONTENTS_BYTES} can be read")
    file.seek(0, os.SEEK_END)
    file.write(contents)
    signed = f"fedmpi {kind} format {FORMAT} bytes {file.tell() - USER_BLOCK_BYTES} contents {len(contents)}".encode()
    header = b"%s blake2b %s\n" % (signed, _checksum(signed, file).encode())
    file.seek(0)
    file.write(header.ljust(USER_BLOCK_BYTES, b"\0"))


def _add(hdf5: h5py.File, name: str, array: NDArray[Any]) -> int:
    """Writes an array and returns where it lies."""
    group, _, leaf = name.rpartition("/")
    if group and group not in hdf5:
        hdf5.create_group(group, track_order=True)
    dataset = (hdf5[group] if group else hdf5).create_dataset(leaf, data=array, track_times=False)
    return int(dataset.id.get_offset()) if array.size else USER_BLOCK_BYTES  # an empty one lies nowhere


@contextlib.contextmanager
def opened(path: Path, kind: str, *, check: bool = True) -> Iterator[Reader]:
    """A file of this `kind`, open for reading; with `check` it is, byte for byte, one that `write` has written.

    Raises `Damaged`, or OSError. O(file size) with `check`, O(table of contents) without.
    """
    try:
        file = open_to_read(path)
    except NotPlainError as error:
        raise Damaged(f"is {error.kind}, not a file") from None
    with file:
        signed, num_bytes, contents_bytes, checksum = _header(file, kind)
        if check and _checksum(signed, file) != checksum.decode():
            raise Damaged("is damaged: its checksum does not match its bytes")
        contents_at = USER_BLOCK_BYTES + int(num_bytes) - int(contents_bytes)
        if not contents_at >= USER_BLOCK_BYTES or int(contents_bytes) > MAX_CONTENTS_BYTES:
            raise Damaged(f"says that its table of contents has {int(contents_bytes)} bytes")
        file.seek(contents_at)
        try:
            attributes, entries = _contents(file.read(int(contents_bytes)), contents_at)
        except (ValueError, TypeError, KeyError, OverflowError, RecursionError):
            raise Damaged("has a table of contents that is not one") from None
        yield Reader(attributes, entries, file)


def _header(file: BinaryIO, kind: str) -> tuple[bytes, ...]:
    """The groups of `_HEADER`, in a file that is as long as they say."""
    size = os.fstat(file.fileno()).st_size
    if size == 0:
        raise Damaged("is empty")
    header = file.read(USER_BLOCK_BYTES)
    beginning = _BEGINNING.match(header)
    if beginning is None or size < USER_BLOCK_BYTES:
        is_ours = header.startswith(b"fedmpi ") and size < USER_BLOCK_BYTES
        raise Damaged(f"is truncated ({size} bytes)" if is_ours else f"was {_FOREIGN}")
    found, version, expected = beginning[1].decode(), int(beginning[2]), USER_BLOCK_BYTES + int(beginning[3])
    if version != FORMAT:
        raise Damaged(f"has format {version}, this fedmpi reads format {FORMAT}")
    if found != kind:
        raise Damaged(f"is a {found} file, not a {kind} file")
    if size != expected:
        raise Damaged(f"{'is truncated' if size < expected else 'is too long'}: {size} bytes of {expected}")
    match = _HEADER.fullmatch(header)
    if match is None:
        raise Damaged(f"was {_FOREIGN}")
    return match.groups()


def _checksum(signed: bytes, file: BinaryIO | io.BytesIO) -> str:
    """The checksum of `signed` and of all that follows the user block."""
    state = hashlib.blake2b(signed, digest_size=DIGEST_BYTES)
    file.seek(USER_BLOCK_BYTES)
    while chunk := file.read(_CHUNK_BYTES):
        state.update(chunk)
    return state.hexdigest()


def _contents(text: bytes, end: int) -> tuple[Attributes, Mapping[str, Entry]]:
    """The table, its arrays all before `end`. Raises one of many errors for what is no table; `Damaged` for a lie."""
    table = json.loads(text)
    attributes = table["attributes"]
    if not isinstance(attributes, dict) or not all(type(value) in (str, int) for value in attributes.values()):
        raise TypeError("attributes that are no texts and integers")
    entries: dict[str, Entry] = {}
    left_bytes = end  # of all arrays together, so that many names for the same bytes do not multiply them
    for name, dtype, shape, offset in table["arrays"]:
        if not isinstance(name, str) or name in entries or not _DTYPE.fullmatch(dtype):
            raise ValueError("an array without a name of its own, or not of plain numbers")
        if not all(type(number) is int and 0 <= number < 2**63 for number in (*shape, offset)):
            raise ValueError("a shape or an offset that is none")
        if len(shape) > _MAX_DIMS or math.prod(filter(None, shape)) >= 2**60:  # numpy refuses those, empty ones too
            raise ValueError("a shape that no array has")
        entries[name] = entry = Entry(np.dtype(dtype), tuple(shape), offset)
        left_bytes -= entry.nbytes
        if left_bytes < 0 or not USER_BLOCK_BYTES <= offset <= end - entry.nbytes:
            raise Damaged(f"declares more data than it has (at {name[:80]})")
    return attributes, entries
