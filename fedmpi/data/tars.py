"""The .tar format, read forward only: ustar, GNU's long names, PAX records of names and sizes, and nothing else.

Python's `tarfile` reads headers of any length into memory, searches them by regular expressions of quadratic cost,
unpacks holes of sparse files as zeros, and goes where sizes below zero send it. Here a header has at most
`MAX_HEADER_BYTES`, and a kind of member that is no plain file or folder has a name in words and no content.
Source: POSIX.1-2017, pax, "ustar Interchange Format"; GNU tar's manual, "Basic Tar Format".
"""

from __future__ import annotations

from collections.abc import Iterator

from fedmpi.data.members import Content, Member
from fedmpi.data.packed import Stream

BLOCK_BYTES = 512
MAX_HEADER_BYTES = 2**16
"""Of a long name or of PAX records; both have some hundred bytes."""
_MAX_HEADERS = 16  # in front of one member
_KINDS = {
    b"\0": "file", b"0": "file", b"7": "file", b"5": "folder", b"1": "a hard link", b"2": "a symbolic link",
    b"3": "a device", b"4": "a device", b"6": "a pipe", b"S": "a sparse file",
}  # fmt: skip
_LONG_NAME, _LONG_LINK, _RECORDS, _RECORDS_FOR_ALL = b"L", b"K", b"x", b"g"


class _Content:
    """The bytes of one member."""

    def __init__(self, stream: Stream, num_bytes: int) -> None:
        self._stream, self.num_left = stream, num_bytes

    def read(self, num_bytes: int) -> bytes:
        num_bytes = min(num_bytes, self.num_left)
        data = self._stream.read(num_bytes)
        if len(data) < num_bytes:
            raise EOFError("it ends within a member")
        self.num_left -= len(data)
        return data


def is_header(block: bytes) -> bool:
    """Whether 512 bytes begin a member: their checksum says so."""
    try:
        # Some old programs added bytes as signed ones.
        expected, as_space = _number(block[148:156]), 8 * ord(" ")
    except ValueError:
        return False
    others = block[:148] + block[156:]
    signed = sum(others) - 256 * sum(byte > 127 for byte in others)
    return len(block) == BLOCK_BYTES and any(block) and expected in (sum(others) + as_space, signed + as_space)


def members(stream: Stream) -> Iterator[tuple[Member, Content]]:
    """Each member and its content, which must be read before the next member is asked for.

    Raises ValueError or EOFError for what is no .tar or is cut off, and what the stream raises.
    """
    for_all: dict[str, bytes] = {}
    while (found := _member(stream, for_all)) is not None:
        content = _Content(stream, found.num_bytes if found.kind == "file" else 0)
        yield found, content
        stream.skip(content.num_left + (-found.num_bytes % BLOCK_BYTES if found.kind == "file" else 0))
    while stream.read(2**20):
        pass  # to the end, where the compression has its checksum


def _member(stream: Stream, for_all: dict[str, bytes]) -> Member | None:
    """The next member, with the headers in front that describe it; None at the end."""
    described = dict(for_all)
    for _ in range(_MAX_HEADERS):
        block = stream.read(BLOCK_BYTES)
        if len(block) == BLOCK_BYTES and not any(block):
            return None
        if not is_header(block):
            is_short = len(block) < BLOCK_BYTES
            raise EOFError("it ends without an end mark") if is_short else ValueError("a header is wrong")
        kind, num_bytes = block[156:157], _number(block[124:136])
        if kind in (_LONG_NAME, _LONG_LINK):
            text = _header(stream, num_bytes).partition(b"\0")[0]
            described |= {"path": text} if kind == _LONG_NAME else {}
        elif kind in (_RECORDS, _RECORDS_FOR_ALL):
            records = _records(_header(stream, num_bytes))
            (for_all if kind == _RECORDS_FOR_ALL else described).update(records)
            described = {**for_all, **described}
        else:
            return _described(block, kind, num_bytes, described)
    raise ValueError(f"more than {_MAX_HEADERS} headers for one member")


def _described(block: bytes, kind: bytes, num_bytes: int, described: dict[str, bytes]) -> Member:
    name = block[:100].partition(b"\0")[0]
    if block[257:263] == b"ustar\0" and (prefix := block[345:500].partition(b"\0")[0]):
        name = prefix + b"/" + name
    name = described.get("path", name)
    if "size" in described:
        num_bytes = _decimal(described["size"])
    words = _KINDS.get(kind, f"of an unknown kind {kind!r}")
    if words == "file" and name.endswith(b"/"):  # as programs wrote folders before there was a kind for them
        words = "folder"
    if any(key.startswith("GNU.sparse.") or key == "SCHILY.realsize" for key in described):
        words = "a sparse file"
    if num_bytes < 0:
        words = "of a size below zero"
    return Member(name.decode("utf-8", "surrogateescape"), num_bytes, words)


def _header(stream: Stream, num_bytes: int) -> bytes:
    """The text of a header that is longer than a block."""
    if not 0 <= num_bytes <= MAX_HEADER_BYTES:
        raise ValueError(f"a header of {num_bytes:,} bytes; at most {MAX_HEADER_BYTES:,} are read")
    text = stream.read(num_bytes)
    if len(text) < num_bytes:
        raise EOFError("it ends within a header")
    stream.skip(-num_bytes % BLOCK_BYTES)
    return text


def _records(text: bytes) -> dict[str, bytes]:
    """PAX records: each `<its length in bytes> <key>=<value>` and a line end."""
    records, begin = dict[str, bytes](), 0
    while begin < len(text) and text[begin : begin + 1] != b"\0":
        digits = text[begin : begin + 20].partition(b" ")[0]
        end = begin + _decimal(digits)
        key, equals, value = text[begin + len(digits) + 1 : end - 1].partition(b"=")
        if not equals or end > len(text) or end <= begin + len(digits) or text[end - 1 : end] != b"\n":
            raise ValueError("a PAX record is wrong")
        records[key.decode("utf-8", "replace")] = value
        begin = end
    return records


def _decimal(digits: bytes) -> int:
    if not digits.isdigit() or len(digits) > 20:
        raise ValueError(f"{digits[:20]!r} is no size")
    return int(digits)


def _number(field: bytes) -> int:
    """Octal digits; or, as GNU tar writes what is too large for them, a binary number in two's complement."""
    if field[:1] in (b"\x80", b"\xff"):
        return int.from_bytes(field[1:], "big") - (256 ** (len(field) - 1) if field[0] == 255 else 0)
    digits = field.partition(b"\0")[0].strip()
    if not set(digits) <= set(b"01234567"):
        raise ValueError(f"{digits!r} is no octal number")
    return int(digits or b"0", 8)
