"""Archives that lie, by seed: what `tests/torture/fuzz_files.py` and the tests give to the readers of archives.

`FORGERIES` are made from nothing, in any of the formats: sizes that are not true, bombs, names that lead elsewhere,
members that are no files. `damage.py` adds what disks and networks do to a good archive.
"""

from __future__ import annotations

import bz2
import gzip
import hashlib
import io
import lzma
import random
import struct
import tarfile
import tempfile
import warnings
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path

from fedmpi.data import preparing, series
from fedmpi.data.sets.shakespeare import Shakespeare

from . import damage

GOOD = {"input.txt": b"First:\nTo be or not to be.\n" * 40, "deep/a.bin": bytes(range(256)) * 8, "deep/b.txt": b""}
NAMES = (
    *("../x", "/etc/x", "a/../../x", "a\\..\\x", "C:x", "input.txt", "INPUT.TXT", "deep", "input.txt/x", "a" * 300),
    *("a/" * 500 + "x", "", ".", "x\0y", "\udcff", "x\n\x1b[2J", "a" * 5000, "con", ".DS_Store", "\u00e9", "e\u0301"),
)
SIZES = (0, 1, 511, 513, 2**31, 2**32 - 1, 2**32, 2**33, 2**50, 2**62, 2**63 - 1, 2**64, 2**80, -1, -512, -(2**40))
KINDS = b"\x000123456789ADKLMNSVXgx\xff"
PACKERS: dict[str, Callable[[bytes], bytes]] = {
    "tar": bytes,
    "gz": lambda data: gzip.compress(data, mtime=0),
    "bz2": bz2.compress,
    "xz": lzma.compress,
}


def tar(members: dict[str, bytes]) -> bytes:
    return b"".join(header(name, len(data)) + padded(data) for name, data in members.items()) + bytes(1024)


def header(name: str, size: int, kind: bytes = b"0", link: str = "") -> bytes:
    """A header of 512 bytes with the right checksum; a size that has no octal digits is binary."""
    member = tarfile.TarInfo(name.encode(errors="surrogateescape")[:100].decode(errors="surrogateescape"))
    member.size, member.type, member.linkname = size, kind, link
    return member.tobuf(tarfile.GNU_FORMAT, errors="surrogateescape")


def padded(data: bytes) -> bytes:
    return data + bytes(-len(data) % 512)


def zipped(members: dict[str, bytes], method: int = zipfile.ZIP_DEFLATED) -> bytes:
    buffer = io.BytesIO()
    with warnings.catch_warnings(), zipfile.ZipFile(buffer, "w", method) as file:
        warnings.simplefilter("ignore")
        for name, data in members.items():
            file.writestr(zipfile.ZipInfo(name), data, method)
    return buffer.getvalue()


def long_name(draw: random.Random) -> bytes:
    """GNU long names and links, and PAX records: of any size, with and without the bytes they promise."""
    size = draw.choice([*SIZES, 600, 70_000, 3_000_000])
    text = b"n" * draw.choice([0, 600, min(max(size, 0), 4_000_000)])
    return header("././@LongLink", size, draw.choice([b"L", b"K", b"x", b"g"])) + padded(text) + tar(GOOD)


def pax(draw: random.Random) -> bytes:
    """Records of sizes, names and sparse maps."""
    text = draw.choice([str(draw.choice(SIZES)), draw.choice(NAMES), "9" * 4000, "1,1," * 4000])
    value = text.encode("utf-8", "replace")
    key = draw.choice([b"size", b"path", b"linkpath", b"GNU.sparse.size", b"GNU.sparse.map", b"GNU.sparse.major", b"x"])
    body = b" %s=%s\n" % (key, value)
    length = draw.choice([len(body) + len(str(len(body) + 3)), 0, 10**18, 5])
    records = (b"%d" % length + body) * draw.choice([1, 2, 50])
    return header("p", len(records), draw.choice([b"x", b"g"])) + padded(records) + tar(GOOD)


def many_headers(draw: random.Random) -> bytes:
    """Long names in front of long names, more than a recursive reader can take."""
    return (header("l", 2, b"L") + padded(b"n\0")) * draw.choice([10, 20, 5000]) + tar(GOOD)


def sparse(draw: random.Random) -> bytes:
    """A GNU sparse file: 20 GB of holes and nothing else."""
    block = bytearray(header("input.txt", 0, b"S"))
    size = draw.choice([2 * 10**10, 2**32, 100])
    block[483:495] = f"{size:011o}\0".encode() if size < 8**11 else (size | 1 << 95).to_bytes(12, "big")
    block[386:410] = f"{size:011o}\0{0:011o}\0".encode()[:24].ljust(24, b"\0")
    block[148:156] = b" " * 8
    block[148:156] = f"{sum(block):06o}\0 ".encode()
    return bytes(block) + tar(GOOD)


def odd_members(draw: random.Random) -> bytes:
    """Any kind, size and name, many of them: hard links, devices, absolute names, what is there twice."""
    kind, name, whole = bytes([draw.choice(KINDS)]), draw.choice(NAMES), tar(GOOD)
    members = draw.choice([whole[:-1024], b""])
    for number in range(draw.choice([1, 3, 2000])):
        own, size = name if draw.random() < 0.5 else f"{number}", draw.choice([0, 0, draw.choice(SIZES)])
        members += header(own, size, kind, draw.choice(["/etc/passwd", "../..", "input.txt"]))
    return members + draw.choice([whole, b"", bytes(1024)])


def bomb(draw: random.Random) -> bytes:
    """Much out of little, in members and in headers; packed below."""
    size = draw.choice([3_000_000, 20_000_000])
    return draw.choice([tar({"input.txt": bytes(size)}), header("x", size, b"x") + bytes(size), bytes(size)])


def odd_zip(draw: random.Random) -> bytes:
    """One to four fields of headers and of the directory changed to other sizes, places and methods."""
    whole = bytearray(zipped({**GOOD, draw.choice(NAMES[:9]): b"x"}, draw.choice([0, 8, 12])))
    marks = [b"PK\3\4", b"PK\1\2", b"PK\5\6"]
    for _ in range(draw.choice([1, 1, 2, 4])):
        mark = draw.choice(marks)
        at, length = whole.rfind(mark) + draw.randrange(4, 46), draw.choice([1, 2, 4])
        value = draw.choice([*SIZES, 8, 14, 99]) % 256**length
        whole[at : at + length] = value.to_bytes(length, "little")
    return bytes(whole)


def far_zip(draw: random.Random) -> bytes:
    """Zip64: sizes and places of 64 bits, in extra fields and in the record at the end."""
    name, packed = b"input.txt", zlib.compress(bytes(10_000), 9)[2:-4]
    crc = zlib.crc32(bytes(10_000))
    local = struct.pack("<4s5H3I2H", b"PK\3\4", 45, 0, 8, 0, 0, crc, len(packed), 10_000, len(name), 0) + name + packed
    size, offset = draw.choice([10_000, draw.choice(SIZES) % 2**64]), draw.choice([0, draw.choice(SIZES) % 2**64])
    extra = struct.pack("<2H3Q", 1, draw.choice([24, 24, 8, 0, 60_000]), size, len(packed), offset)
    lies = 0xFFFFFFFF
    lengths = (len(name), len(extra), 0)
    entry = struct.pack("<4s6H3I5H2I", b"PK\1\2", 45, 45, 0, 8, 0, 0, crc, lies, lies, *lengths, 0, 0, 0, lies)
    directory = entry + name + extra
    count, num_bytes = (draw.choice([right, right, draw.choice(SIZES) % 2**64]) for right in (1, len(directory)))
    far = struct.pack("<4sQ2H2I4Q", b"PK\6\6", 44, 45, 45, 0, 0, count, count, num_bytes, len(local))
    far_at = draw.choice([len(local) + len(directory), draw.choice(SIZES) % 2**64])
    end = struct.pack("<4sIQI", b"PK\6\7", 0, far_at, 1) + struct.pack("<4s4H2IH", b"PK\5\6", 0, 0, 1, 1, lies, lies, 0)
    return local + directory + far + end


def overlapping(draw: random.Random) -> bytes:
    """Many entries for the same compressed bytes."""
    size = draw.choice([100, 10**6])
    whole = zipped({"input.txt": bytes(size)})
    at = whole.index(b"PK\1\2")
    entry, count = bytearray(whole[at : whole.index(b"PK\5\6")]), draw.choice([2, 500, 20_000])
    names = (f"{number:09}".encode() for number in range(count))
    directory = b"".join(bytes(entry[:46]) + name + bytes(entry[55:]) for name in names)
    count %= 2**16
    return whole[:at] + directory + struct.pack("<4s4H2IH", b"PK\5\6", 0, 0, count, count, len(directory), at, 0)


def nested(draw: random.Random) -> bytes:
    """An archive in an archive, either of them wrong."""
    inner = draw.choice([odd_zip, overlapping, far_zip, lambda _: zipped(GOOD), lambda _: zipped({"x": bytes(10**7)})])
    members = {"in.zip": inner(draw), "input.txt": b"x", "two/in.zip": inner(draw)}
    return draw.choice([zipped, tar])(members)


def dictionary(draw: random.Random) -> bytes:
    """An .xz that asks for up to 4 GiB of memory, and the other compressions concatenated or followed by junk."""
    if draw.random() < 0.5:
        return with_dictionary(draw.choice([40, 39, 36, 30, 41, 255]))
    pack = PACKERS[draw.choice(["gz", "bz2", "xz"])]
    empty, junk = pack(b"") * draw.choice([1, 3000]), draw.choice([b"", b"\0" * 9, b"x"])
    return pack(tar(GOOD)[:1000]) + empty + pack(tar(GOOD)[1000:]) + junk


def with_dictionary(size: int) -> bytes:
    """LZMA2's dictionary (40: 4 GiB) is one byte of the block's header, whose checksum is made right again."""
    whole = bytearray(lzma.compress(tar(GOOD)))
    whole[12 + 4] = size
    end = 12 + (whole[12] + 1) * 4
    whole[end - 4 : end] = zlib.crc32(bytes(whole[12 : end - 4])).to_bytes(4, "little")
    return bytes(whole)


FORGERIES: dict[str, Callable[[random.Random], bytes]] = {
    "long names": long_name,
    "PAX records": pax,
    "many headers": many_headers,
    "sparse": sparse,
    "odd members": odd_members,
    "bombs": bomb,
    "odd zips": odd_zip,
    "zip64": far_zip,
    "overlapping": overlapping,
    "nested": nested,
    "dictionaries, streams": dictionary,
}
_PLAIN = ("long names", "PAX records", "many headers", "sparse", "odd members", "bombs")


def good(folder: Path) -> dict[str, Path]:
    """A good archive of each form that has a checksum."""
    found = {name: folder / f"good.{name}" for name in ("zip", "gz", "bz2", "xz")}
    for name, path in found.items():
        path.write_bytes(zipped(GOOD) if name == "zip" else PACKERS[name](tar(GOOD)))
    return found


def harmed(whole: bytes, draw: random.Random) -> tuple[str, bytes]:
    """What is wrong, and the bytes: damage to a good archive, or a forgery in place of it."""
    draw.seed(f"{draw.random()} {whole[:2]!r}")  # other draws for each form
    if draw.random() < 0.3:
        kind, harm = draw.choice([*damage.ACCIDENTS.items()])
        return kind, harm(whole, draw)
    kind, make = draw.choice([*FORGERIES.items()])
    content = make(draw)
    return kind, PACKERS[draw.choice([*PACKERS])](content) if kind in _PLAIN else content


def digest(archive: Path) -> str:
    """Of all that `prepare` would find in the archive. Raises DataError."""
    with (
        tempfile.TemporaryDirectory(dir=archive.parent) as place,
        preparing.originals(archive, Shakespeare.traces, lambda done, total: None, Path(place)) as folder,
    ):
        series.find(folder, "input.txt", "tinyshakespeare")
        state = hashlib.blake2b()
        for path in sorted(folder.rglob("*")):
            if path.is_file():
                state.update(f"{path.relative_to(folder)} {path.stat().st_size} ".encode() + path.read_bytes())
    return state.hexdigest()
