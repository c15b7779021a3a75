"""Archives and files that were made to take memory, room or time: each ends in one line and takes little."""

import gzip
import lzma
import os
import random
import struct
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
from fast import fast
from golden_file import Told
from torture import fuzz_archives

from fedmpi.data import series
from fedmpi.data.files import archives
from fedmpi.data.files.archives import Limits
from fedmpi.data.files.budget import Budget
from fedmpi.errors import DataError

ROOT = Path(__file__).parents[2]
MAX_GROWTH_KB = 200_000
SCRIPT = """
import sys
from pathlib import Path
from fedmpi.command import data as data_command
from fedmpi.data import preparing
def peak_kb():  # not getrusage, which knows the peak of the process that started this one, too
    return next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("VmHWM:"))
before_kb = peak_kb()
words = ["prepare", "shakespeare", *sys.argv[2:], "--from", sys.argv[1], "--data-dir", sys.argv[1] + ".d"]
code = data_command.main(words)
print(code, peak_kb() - before_kb, sum(p.stat().st_size for p in Path(sys.argv[1] + ".d").rglob("*.*")))
"""


def long_name_in_xz(num_bytes: int) -> bytes:
    """A header with so long a name, which is there, in 1/7000 of the bytes."""
    chunk = lzma.compress(bytes(2**26), preset=1)
    return lzma.compress(fuzz_archives.header("././@LongLink", num_bytes, b"L")) + chunk * (num_bytes // 2**26 + 1)


def hard_links() -> bytes:
    return fuzz_archives.tar({"a": b"x"})[:-1024] + fuzz_archives.header("b", 0, b"1", "a") * 20_000 + bytes(1024)


def records_for_all() -> bytes:
    """PAX records that every further member would get a copy of."""
    text = b"".join(b"13 %07d=x\n" % number for number in range(200))
    return fuzz_archives.header("x", len(text), b"g") + fuzz_archives.padded(text) + fuzz_archives.tar({"a": b"x"})


def huge_records() -> bytes:
    """PAX records of 1 GB, which are there, in 1 MB."""
    return gzip.compress(fuzz_archives.header("x", 2**28, b"x") + bytes(2**28), 9)


def many_small_names() -> bytes:
    """A directory of 2^20 entries in 49 MB, which zipfile holds in memory before anybody can count them."""
    whole = fuzz_archives.zipped({"x": b""})
    at = whole.index(b"PK\1\2")
    entries = whole[at : whole.index(b"PK\5\6")] * 2**20
    return whole[:at] + entries + struct.pack("<4s4H2IH", b"PK\5\6", 0, 0, 65535, 65535, len(entries), at, 0)


BOMBS: dict[str, Callable[[], bytes]] = {
    "a long name of 2^50 bytes": lambda: fuzz_archives.header("././@LongLink", 2**50, b"L"),
    "a long name of 3 GB that is there": lambda: long_name_in_xz(3 * 2**30),
    "a sparse file": lambda: fuzz_archives.sparse(random.Random(0)),
    "hard links": hard_links,
    "clutter of 16 GiB": lambda: fuzz_archives.header("__MACOSX/x", 2**34) + bytes(512),
    "a long number": lambda: fuzz_archives.header("x", 15_360, b"x") + b"1" * 15_360,
    "keys of keys": lambda: fuzz_archives.header("x", 15_360, b"x") + b"2 " * 7679 + b"2=",
    "records for all": records_for_all,
    "huge records": huge_records,
    "a dictionary of 4 GiB": lambda: fuzz_archives.with_dictionary(40),
    "overlapping entries": lambda: fuzz_archives.overlapping(random.Random(3)),
    "many small names": many_small_names,
    "members of no bytes": lambda: gzip.compress(b"", 1) * 300_000,
}


@pytest.mark.parametrize("name", fast(*[*BOMBS][::2], of=BOMBS))
def test_a_bomb_is_one_line_and_takes_little_memory(name: str, tmp_path: Path) -> None:
    path = tmp_path / "bomb"
    path.write_bytes(BOMBS[name]())
    code, grown_kb, left_bytes, error = prepared(path)
    assert (code, left_bytes) == (2, 0)
    assert error.startswith(f"{path}: ") and error.count("\n") == 1 and "Traceback" not in error, error
    assert grown_kb < MAX_GROWTH_KB


def prepared(path: Path, *words: str) -> tuple[int, int, int, str]:
    """Exit code, growth of memory in KB, bytes left in the data folder, and stderr of the command in a new process."""
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(path), *words],
        capture_output=True,
        text=True,
        timeout=600,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert done.stdout, done.stderr
    code, grown_kb, left_bytes = map(int, done.stdout.split()[-3:])
    return code, grown_kb, left_bytes, done.stderr


def test_text_that_takes_much_memory_once_parsed(tmp_path: Path, told: Told) -> None:
    """Empty lists: 3 bytes of text, 64 of memory."""
    path = tmp_path / "a.json"
    path.write_bytes(b"[" + b"[]," * 1_000_000 + b"[]]")
    with told.by(DataError):
        series.read_json(path, Budget(path, Limits(max_held_bytes=10**8)))
    assert series.read_json(path, Budget(path))[0] == []


@pytest.mark.parametrize("name", ["pipe", "device"])
def test_what_could_be_read_for_ever_is_not_opened(name: str, tmp_path: Path, told: Told) -> None:
    path = tmp_path / "input.txt"
    if name == "pipe":
        os.mkfifo(path)
    else:
        path.symlink_to("/dev/zero")
    with pytest.raises(DataError, match="no regular file"):
        series.read_text(path, Budget(tmp_path))
    code, _, _, error = prepared(path)
    assert code == 2
    told(error)


def test_what_comes_out_of_each_byte_is_limited(tmp_path: Path, told: Told) -> None:
    """Of a .tar.gz and a .zip alike; the line names the file, the member and both counts."""
    for name, content in (
        ("a", gzip.compress(fuzz_archives.tar({"zeros": bytes(3_000_000)}))),
        ("b", fuzz_archives.zipped({"zeros": bytes(3_000_000)})),
    ):
        path = tmp_path / name
        path.write_bytes(content)
        limits = Limits(max_ratio=100, ratio_from_bytes=10**6)
        with told.by(DataError, r"(?<=come out of its )[\d,]+"):
            archives.unpack(path, tmp_path / "out", lambda *_: None, limits=limits)
        archives.unpack(path, tmp_path / f"out-{name}", lambda *_: None, limits=Limits())


def test_names_are_held_within_the_budget(tmp_path: Path, told: Told) -> None:
    path = tmp_path / "a"
    path.write_bytes(fuzz_archives.tar({f"{number:090}": b"" for number in range(100)}))
    with told.by(DataError):
        archives.unpack(path, tmp_path / "out", lambda *_: None, limits=Limits(max_held_bytes=10_000))


@pytest.mark.parametrize("seed", range(15))
@pytest.mark.parametrize("make", fuzz_archives.FORGERIES.values(), ids=fuzz_archives.FORGERIES)
def test_forgeries_are_unpacked_or_refused_in_one_line(
    make: Callable[[random.Random], bytes], seed: int, tmp_path: Path
) -> None:
    path, out = tmp_path / "a", tmp_path / "out"
    path.write_bytes(make(random.Random(seed)))
    lines = []
    try:
        archives.unpack(path, out, lambda *_: None)
    except DataError as error:
        lines.append(error.text())
    assert not lines or (lines[0].isprintable() and list(out.iterdir()) == [])
    assert sorted(tmp_path.iterdir()) == [path, out]
    assert not any(entry.is_symlink() for entry in tmp_path.rglob("*"))


@pytest.mark.parametrize("method", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
def test_zips_as_others_write_them(method: int, tmp_path: Path) -> None:
    """Streamed (sizes behind the data), with 64-bit sizes, with a comment, with names that are not ASCII."""
    path = tmp_path / "a.zip"
    with path.open("wb") as raw, zipfile.ZipFile(_Unseekable(raw), "w", method) as file:
        file.comment = b"not the end"
        with file.open("deep/\u00e9.txt", "w", force_zip64=True) as member:
            member.write(b"x" * 100_000)
        file.writestr("empty", b"")
    archives.unpack(path, tmp_path / "out", lambda *_: None)
    assert (tmp_path / "out" / "deep" / "\u00e9.txt").read_bytes() == b"x" * 100_000


class _Unseekable:
    def __init__(self, raw: object) -> None:
        self.write, self.flush = raw.write, raw.flush
