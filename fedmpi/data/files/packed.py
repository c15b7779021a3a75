"""Files packed by gzip, bzip2 or xz, read forward only and within a budget.

Python's own readers of compressed files have no limit on xz's dictionary, which a header of some bytes makes as large
as 4 GiB, and read whatever a caller asks for. This one asks the budget before bytes come out.
"""

from __future__ import annotations

import bz2
import lzma
import zlib
from collections.abc import Callable
from typing import BinaryIO, Protocol

from fedmpi.data.files.budget import Budget

CHUNK_BYTES = 2**20
_FIRST_BYTES = {"gz": b"\x1f\x8b", "bz2": b"BZh", "xz": b"\xfd7zXZ\x00"}
_PACKED_BYTES = 2**14  # read at once: where many streams are concatenated, each next one copies what is left of them


class Decoder(Protocol):
    """What bz2 and lzma offer."""

    @property
    def eof(self) -> bool: ...
    @property
    def unused_data(self) -> bytes: ...
    @property
    def needs_input(self) -> bool: ...
    def decompress(self, data: bytes, max_length: int) -> bytes: ...


class Deflate:
    """zlib's decompressor with the interface of the other two."""

    def __init__(self, wbits: int) -> None:
        self._zlib = zlib.decompressobj(wbits)

    @property
    def eof(self) -> bool:
        return self._zlib.eof

    @property
    def unused_data(self) -> bytes:
        return self._zlib.unused_data

    @property
    def needs_input(self) -> bool:
        return not self._zlib.unconsumed_tail

    def decompress(self, data: bytes, max_length: int) -> bytes:
        return self._zlib.decompress(self._zlib.unconsumed_tail + data, max_length)


class Stream:
    """The bytes of an open file, out of its compression if it has one.

    `make` makes a decoder for each of the streams that follow each other; None: the bytes as they are.
    """

    def __init__(self, file: BinaryIO, budget: Budget, make: Callable[[], Decoder] | None) -> None:
        self._file, self._budget, self._make = file, budget, make
        self._decoder = make() if make else None
        self._waiting = b""

    def read(self, num_bytes: int) -> bytes:
        """So many bytes, fewer only at the end. Raises EOFError if the file ends within a compressed stream; whatever
        decoders raise at damaged bytes; DataError beyond the budget.
        """
        pieces = []
        while num_bytes > 0 and (piece := self._piece(min(num_bytes, CHUNK_BYTES))):
            self._budget.add_read(len(piece))
            num_bytes -= len(piece)
            pieces.append(piece)
        return b"".join(pieces)

    def skip(self, num_bytes: int) -> None:
        """Raises EOFError if there are fewer."""
        while num_bytes:
            skipped = len(self.read(min(num_bytes, CHUNK_BYTES)))
            if not skipped:
                raise EOFError(f"{num_bytes:,} bytes are missing at its end")
            num_bytes -= skipped

    def _piece(self, num_bytes: int) -> bytes:
        """Some bytes, at most so many; none at the end."""
        if self._decoder is None:
            return self._file.read(num_bytes)
        while True:
            if self._decoder.eof and not self._next_stream():
                return b""
            data, self._waiting = self._waiting, b""
            is_wanted = not data and self._decoder.needs_input
            data = self._file.read(_PACKED_BYTES) if is_wanted else data
            piece = self._decoder.decompress(data, num_bytes)
            if piece:
                return piece
            if is_wanted and not data and not self._decoder.eof:
                raise EOFError("it ends within a compressed stream")

    def _next_stream(self) -> bool:
        """Goes on to the stream that follows, behind zeros, which pad gzip and xz; False if there is none."""
        assert self._decoder is not None and self._make is not None
        data = self._decoder.unused_data.lstrip(b"\0")
        while not data:
            packed = self._file.read(_PACKED_BYTES)
            if not packed:
                return False
            data = packed.lstrip(b"\0")
        self._budget.add_members()
        self._decoder, self._waiting = self._make(), data
        return True


def form_of(file: BinaryIO) -> str:
    """How a file is packed, by its first bytes: `gz`, `bz2`, `xz`, or empty for none of them."""
    head = file.read(6)
    file.seek(0)
    return next((form for form, magic in _FIRST_BYTES.items() if head.startswith(magic)), "")


def opened(file: BinaryIO, budget: Budget) -> Stream:
    """The stream in a file, which may be packed."""
    decoders: dict[str, Callable[[], Decoder]] = {
        "gz": lambda: Deflate(wbits=31),
        "bz2": bz2.BZ2Decompressor,
        "xz": lambda: lzma.LZMADecompressor(lzma.FORMAT_XZ, budget.limits.max_decoder_bytes),
    }
    return Stream(file, budget, decoders.get(form_of(file)))
