"""Files packed by gzip, bzip2 or xz, read forward only and within a budget.

Python's own reader of xz has no limit on the dictionary, which some bytes of a header make as large as 4 GiB; ours has.
"""

from __future__ import annotations

import bz2
import gzip
import lzma
from typing import BinaryIO, Protocol

from fedmpi.data.files.budget import Budget

CHUNK_BYTES = 2**20
_FIRST_BYTES = {"gz": b"\x1f\x8b", "bz2": b"BZh", "xz": b"\xfd7zXZ\x00"}
_PACKED_BYTES = 2**14  # read at once: where many streams are concatenated, each next one copies what is left of them


class Content(Protocol):
    """Bytes to be read once."""

    def read(self, num_bytes: int, /) -> bytes:
        """Some bytes, at most so many; none at the end."""


class Counted:
    """Bytes of which the budget hears."""

    def __init__(self, content: Content, budget: Budget) -> None:
        self._content, self._budget = content, budget

    def read(self, num_bytes: int) -> bytes:
        """Reads so many bytes, fewer only at the end. Raises DataError beyond the budget, and what decoders raise at
        damaged bytes, EOFError at a compressed stream without an end.
        """
        pieces = []
        while num_bytes > 0 and (piece := self._content.read(min(num_bytes, CHUNK_BYTES))):
            self._budget.add_read(len(piece))
            num_bytes -= len(piece)
            pieces.append(piece)
        return b"".join(pieces)


class _Xz:
    """The streams in a file, one after the other, behind zeros, which pad them."""

    def __init__(self, file: BinaryIO, max_decoder_bytes: int) -> None:
        self._file, self._max_bytes, self._packed = file, max_decoder_bytes, b""
        self._decoder = lzma.LZMADecompressor(lzma.FORMAT_XZ, max_decoder_bytes)

    def read(self, num_bytes: int) -> bytes:
        while True:
            if self._decoder.eof:
                self._packed = self._decoder.unused_data.lstrip(b"\0") or self._file.read(_PACKED_BYTES).lstrip(b"\0")
                if not self._packed:
                    return b""
                self._decoder = lzma.LZMADecompressor(lzma.FORMAT_XZ, self._max_bytes)
            is_wanted = self._decoder.needs_input and not self._packed
            data, self._packed = self._packed or (self._file.read(_PACKED_BYTES) if is_wanted else b""), b""
            if piece := self._decoder.decompress(data, num_bytes):
                return piece
            if is_wanted and not data and not self._decoder.eof:
                raise EOFError("it ends within a compressed stream")


def form_of(file: BinaryIO) -> str:
    """How a file is packed, by its first bytes: `gz`, `bz2`, `xz`, or empty for none of them."""
    head = file.read(6)
    file.seek(0)
    return next((form for form, magic in _FIRST_BYTES.items() if head.startswith(magic)), "")


def opened(file: BinaryIO, budget: Budget) -> Counted:
    """The bytes of an open file, out of its compression if it has one."""
    form = form_of(file)
    if form == "gz":
        return Counted(gzip.GzipFile(fileobj=file), budget)
    if form == "bz2":
        return Counted(bz2.BZ2File(file), budget)
    return Counted(_Xz(file, budget.limits.max_decoder_bytes) if form == "xz" else file, budget)
