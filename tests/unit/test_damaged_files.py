"""Every file that a run or a user hands us, damaged and crafted: refused in one line, or nothing of it changes.

The files are those of small runs, with and without client memories, and the damage is laid over all of
them: header, HDF5 structure, values, table of contents. `tests/torture/fuzz_files.py` is the long version.
"""

import contextlib
import os
import random
from collections.abc import Callable
from pathlib import Path

import crafted_hdf5
import h5py
import pytest
from fast import fast
from torture import damage, fuzz_files

from fedmpi.disk.hdf5 import USER_BLOCK_BYTES
from fedmpi.errors import UserError

FILES = ("checkpoint", "with memories", "memory", "partition", "data")
STORED, ARCHIVES = "checkpoint,with memories,index,memory,partition,data", "zip,gz,bz2,xz"


@pytest.fixture(scope="module")
def victims(tmp_path_factory: pytest.TempPathFactory) -> dict[str, fuzz_files.Victim]:
    return fuzz_files.victims(tmp_path_factory.mktemp("runs"))


@pytest.fixture(params=FILES)
def victim(request: pytest.FixtureRequest, victims: dict[str, fuzz_files.Victim]) -> fuzz_files.Victim:
    return victims[request.param]


def answer(victim: fuzz_files.Victim, content: bytes) -> str | None:
    """The line with which `content` is refused, None if it reads as the good file does. It is a good one again."""
    good, refusal = victim.path.read_bytes(), None
    victim.path.write_bytes(content)
    try:
        found = victim.read()
    except UserError as error:
        refusal = error
    finally:
        victim.path.write_bytes(good)
    if refusal is None:
        assert found == victim.read(), "it reads as something else"
        return None
    assert refusal.text().isprintable() and str(victim.path) in refusal.text() and len(refusal.problems) == 1
    return refusal.problems[0]


@pytest.fixture
def no_hdf5(monkeypatch: pytest.MonkeyPatch) -> None:
    """The HDF5 library, which crafted files can crash, is not asked."""
    for name in ("File", "is_hdf5"):
        monkeypatch.setattr(h5py, name, lambda *_, **__: pytest.fail("the HDF5 library was asked"))
    for name in ("open", "is_hdf5"):
        monkeypatch.setattr(h5py.h5f, name, lambda *_, **__: pytest.fail("the HDF5 library was asked"))


def test_cut_off_at_every_tenth(victim: fuzz_files.Victim, no_hdf5: None) -> None:
    whole = victim.path.read_bytes()
    lines = [answer(victim, whole[: len(whole) * tenth // 10]) or "" for tenth in range(10)]
    assert lines[0].startswith("is empty") and all(line.startswith("is truncated") for line in lines[1:]), lines


@pytest.mark.parametrize("num_flips", fast(50, of=(50, 300)))
def test_no_flipped_bit_changes_what_is_read(victim: fuzz_files.Victim, no_hdf5: None, num_flips: int) -> None:
    """One seeded bit in each of so many stretches of the file, and each bit of the line in front."""
    whole, draw = victim.path.read_bytes(), random.Random(5)
    line_bytes, stretch = whole.index(b"\n") + 1, len(whole) / num_flips
    anywhere = [8 * int(number * stretch) + draw.randrange(int(8 * stretch)) for number in range(num_flips)]
    for bit in [*anywhere, *range(8 * line_bytes)]:
        flipped = bytearray(whole)
        flipped[bit // 8] ^= 1 << bit % 8
        assert answer(victim, bytes(flipped)) is not None, f"bit {bit % 8} of byte {bit // 8}"


def test_another_format_and_another_kind(victim: fuzz_files.Victim, victims: dict[str, fuzz_files.Victim]) -> None:
    whole, others = victim.path.read_bytes(), victims["memory" if victim is not victims["memory"] else "checkpoint"]
    for number in (b"1", b"3", b"999999999"):
        line = answer(victim, whole.replace(b"format 2", b"format " + number, 1)) or ""
        assert line.startswith(f"has format {number.decode()}, "), line
    kind = damage.parts(others.path.read_bytes())[0]
    assert (answer(victim, others.path.read_bytes()) or "").startswith(f"is a {kind} file, ")


@pytest.mark.parametrize("name", crafted_hdf5.CRAFTED)
def test_other_programs_and_crafted_files(
    name: str, victims: dict[str, fuzz_files.Victim], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As they are, behind a user block, and with our own header and table of contents around them.

    The latter tell us where to find numbers; those of a checkpoint or memory have a digest beside.
    """
    fill, path = crafted_hdf5.CRAFTED[name], tmp_path / "crafted.h5"
    plain, shifted = (crafted_hdf5.write(path, fill, userblock_size=size) for size in (0, USER_BLOCK_BYTES))
    forgeries = {file: crafted_hdf5.disguised(path, fill, victims[file].path.read_bytes()) for file in FILES}
    monkeypatch.setattr(h5py.h5f, "open", lambda *_, **__: pytest.fail("the HDF5 library was asked"))
    for file in FILES:
        for content in (plain, shifted):
            assert "written by fedmpi" in (answer(victims[file], content) or "")
    for file in ("checkpoint", "with memories", "memory"):
        assert answer(victims[file], forgeries[file]) is not None
    for file in ("partition", "data"):
        good = victims[file].path.read_bytes()
        victims[file].path.write_bytes(forgeries[file])
        with contextlib.suppress(UserError):
            victims[file].read()
        victims[file].path.write_bytes(good)


def test_a_b_tree_that_has_itself_as_its_child(victim: fuzz_files.Victim, tmp_path: Path) -> None:
    assert "written by fedmpi" in (answer(victim, crafted_hdf5.looped(tmp_path / "crafted.h5")) or "")


@pytest.mark.parametrize(("num_stored", "num_archives"), fast((50, 20), of=((50, 20), (250, 60))))
def test_the_fuzzer_finds_nothing(capfd: pytest.CaptureFixture[str], num_stored: int, num_archives: int) -> None:
    """The short version of `tests/torture/fuzz_files.py`: no traceback, crash, hang or excess of memory."""
    for files, count, kind in ((STORED, num_stored, "forged contents"), (ARCHIVES, num_archives, "zip64")):
        code = fuzz_files.main(["--seed", "7", "--count", str(count), "--files", files])
        out = capfd.readouterr().out
        assert code == 0 and kind in out, out


@pytest.mark.parametrize(
    ("read", "outcome"),
    [
        (lambda content: "", "unchanged"),
        (lambda content: content.hex(), "other"),
        (lambda content: 1 // 0, "traceback"),
        (lambda content: os._exit(139), "crash"),
        (lambda content: bytearray(b"x" * 2**28), "memory"),
    ],
)
def test_the_fuzzer_sees_what_it_is_there_for(read: Callable[[bytes], str], outcome: str, tmp_path: Path) -> None:
    """A reader that goes wrong on damaged files."""
    path = tmp_path / "x"
    path.write_bytes(bytes(1000))
    victim = fuzz_files.Victim(path, lambda: "" if path.read_bytes() == bytes(1000) else read(path.read_bytes()))
    assert outcome in {found.verdict for found in fuzz_files.outcomes(victim, range(4))}
    assert path.read_bytes() == bytes(1000)
