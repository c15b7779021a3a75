"""What reading a file of the user's may cost, counted in one place, and the one line that ends what costs more.

Every reader of archives and originals is handed a `Budget` and reports to it before it spends: bytes read (after
decompression), bytes held in memory, members, and how many bytes come out for each byte of the file.
`guarded` turns everything else that a damaged or crafted file can raise into the same kind of line.
"""

from __future__ import annotations

import contextlib
import lzma
import os
import struct
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

from fedmpi.disk.plain import NotPlainError, open_to_read
from fedmpi.errors import DataError, reason

Tell = Callable[[int, int], None]
"""Called by long work with what is done (files, members, bytes ...) and the total, 0 if unknown."""

CRAFTED = (
    *(ArithmeticError, AssertionError, BufferError, EOFError, LookupError, MemoryError, OSError, RuntimeError),
    *(SyntaxError, TypeError, ValueError, Warning, lzma.LZMAError, struct.error, zlib.error),
)
"""What decoders raise at bytes that are not what their format says; RuntimeError covers RecursionError."""


@dataclass(frozen=True)
class Limits:
    """What one file may cost. The data sets of the papers stay far below: Tiny ImageNet has 120,609 members with names
    of 60 bytes, FEMNIST a few GB, and of text, the most compressible data here, xz makes 1 byte out of 10.
    """

    max_members: int = 1_000_000
    max_bytes: int = 32 * 10**9
    """Bytes that may be read after decompression: members, headers, and what is skipped."""
    max_held_bytes: int = 2**29
    """Bytes of names, headers and texts that may be in memory at once."""
    max_ratio: int = 200
    """Bytes read after decompression for each byte of the file."""
    ratio_from_bytes: int = 10**8
    """The ratio is judged once more bytes than these were read: a small file of zeros does no harm."""
    max_decoder_bytes: int = 2**28
    """The memory of a decompressor; xz asks for 65 MiB at its highest usual level, -9."""


DECODED = Limits(max_held_bytes=2**33)
"""For decoded data sets: FEMNIST's images take 0.6 GB, the parsed JSON of one of LEAF's files up to 2 GB."""


@dataclass
class Budget:
    """What reading the file (or folder) `path` has cost so far. Each method raises DataError at its limit."""

    path: Path
    limits: Limits = Limits()
    num_members: int = 0
    num_read: int = 0
    num_held: int = 0
    member: str = ""
    """The member that is being read, for messages."""
    file_bytes: int = field(init=False)

    def __post_init__(self) -> None:
        self.file_bytes = self.path.stat().st_size if self.path.is_file() else 0

    def add_member(self) -> None:
        self.num_members += 1
        if self.num_members > self.limits.max_members:
            raise self.refuse(f"holds more than {self.limits.max_members:,} members")

    def check_read(self, count: int) -> None:
        """Refuses `count` bytes more to come out of decompression, before they are read."""
        num_read, limits = self.num_read + count, self.limits
        if num_read > limits.max_bytes:
            raise self.refuse(f"more than {limits.max_bytes:,} bytes come out of it")
        if num_read > (most := max(limits.ratio_from_bytes, limits.max_ratio * self.file_bytes)):
            allowed = f"at most {limits.max_ratio} for each of its bytes are allowed"
            raise self.refuse(f"more than {most:,} bytes come out of its {self.file_bytes:,}; {allowed}")

    def add_read(self, count: int) -> None:
        """Bytes that came out of decompression."""
        self.check_read(count)
        self.num_read += count

    def hold(self, count: int, what: str) -> None:
        """Bytes that will be in memory until the reader is done."""
        self.num_held += count
        if self.num_held > self.limits.max_held_bytes:
            found = f"{what} would take {self.num_held:,} bytes of memory"
            raise self.refuse(f"{found}; at most {self.limits.max_held_bytes:,} are allowed")

    def release(self, count: int) -> None:
        """Bytes that are not in memory any more."""
        self.num_held -= count

    @contextlib.contextmanager
    def opened(self, path: Path, max_bytes: int) -> Iterator[BinaryIO]:
        """A regular file of at most `max_bytes`, open for reading; its bytes count as held within the `with`.

        A pipe or a device, which could be read for ever, is refused. Raises OSError.
        """
        try:
            file = open_to_read(path)
        except NotPlainError as error:
            raise DataError(str(path), f"is {error.kind}, no regular file; replace it by one") from None
        with file:
            num_bytes = os.fstat(file.fileno()).st_size
            if num_bytes > max_bytes:
                allowed = f"at most {max_bytes:,} are allowed for such a file"
                raise DataError(str(path), f"has {num_bytes:,} bytes; {allowed}; get the files again")
            self.hold(num_bytes, path.name)
            try:
                yield file
            finally:
                self.release(num_bytes)

    def read(self, path: Path, max_bytes: int) -> bytes:
        """The bytes of such a file. Raises OSError."""
        with self.opened(path, max_bytes) as file:
            return file.read(max_bytes)

    def refuse(self, problem: str, advice: str = "this is not what a data set looks like: get it again") -> DataError:
        """One line: the file, the member that is being read, what was found, what to do."""
        member = f"member {self.member[:200]!r}: " if self.member else ""
        return DataError(str(self.path), f"{member}{problem}; {advice}")


@contextlib.contextmanager
def guarded(path: Path, advice: str, problem: str = "damaged or cut off") -> Iterator[None]:
    """Turns whatever crafted or damaged bytes can raise into one line: path, problem, reason, advice."""
    try:
        yield
    except CRAFTED as error:
        raise DataError(str(path), f"{problem} ({reason(error)}); {advice}") from error
