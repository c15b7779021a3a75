"""Unpacking archives of other people: what comes out, and everything that must not."""

import bz2
import gzip
import io
import lzma
import stat
import struct
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
from golden_file import Told

from fedmpi.data.files import archives, members
from fedmpi.data.files.archives import Limits
from fedmpi.errors import DataError

Members = dict[str, bytes]
FILES: Members = {"set/a.txt": b"first", "set/deep/b.txt": b"", "set/c.bin": bytes(range(256)) * 1000}
PACKERS = {"tar": bytes, "tar.gz": gzip.compress, "tar.bz2": bz2.compress, "tar.xz": lzma.compress}


def silent(done: int, total: int) -> None:
    pass


def tar_bytes(members: Members) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as file:
        for name, content in members.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            file.addfile(member, io.BytesIO(content))
    return buffer.getvalue()


def zip_bytes(members: Members) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as file:
        for name, content in members.items():
            file.writestr(name, content)
    return buffer.getvalue()


def write(path: Path, content: bytes) -> Path:
    path.write_bytes(content)
    return path


def test_an_archive_of_something_else_is_refused_early(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, told: Told
) -> None:
    """A .tar after some members (here ten), a .zip before the first; a nested .zip may hold anything."""
    monkeypatch.setattr(archives, "_JUDGED_AFTER", 10)
    many = {f"set/{number}.txt": b"x" for number in range(10)}
    late, soon = {**many, "set/a.json": b""}, {"set/a.json": b"", **many}
    for number, (content, num_written) in enumerate(
        [
            (zip_bytes(many), 0),
            (zip_bytes(late), 11),
            (tar_bytes(late), 9),
            (tar_bytes(soon), 11),
            (zip_bytes({"a.zip": zip_bytes(many)}), 10),
            (tar_bytes({"x": b""}), 1),
        ]
    ):
        place = tmp_path / str(number)
        place.mkdir()
        archive = write(tmp_path / "archive", content)
        if num_written in (0, 9):
            with told.by(DataError):
                archives.unpack_into(archive, place, silent, traces=("*.h5", "*.json"))
        else:
            archives.unpack_into(archive, place, silent, traces=("*.h5", "*.json"))
        assert len(files_below(place)) == num_written
    archives.unpack_into(write(tmp_path / "archive", zip_bytes({})), tmp_path / "0", silent)


def files_below(folder: Path) -> Members:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def refusal(tmp_path: Path, content: bytes, **options: object) -> str:
    """The one line of an archive that must not be unpacked; nothing of it may stay behind."""
    archive = write(tmp_path / "odd", content)
    with pytest.raises(DataError) as caught:
        archives.unpack(archive, tmp_path / "out", silent, **options)
    assert sorted(str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*")) == ["odd", "out"]
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize("form", ["zip", *PACKERS])
def test_every_form_comes_out_whole(tmp_path: Path, form: str) -> None:
    """The name says nothing: content decides."""
    content = zip_bytes(FILES) if form == "zip" else PACKERS[form](tar_bytes(FILES))
    archive = write(tmp_path / "archive.dat", content)
    assert archives.is_archive(archive)
    told: list[tuple[int, int]] = []
    made = archives.unpack(archive, tmp_path / "out", lambda done, total: told.append((done, total)))
    assert files_below(tmp_path / "out") == FILES and made == [tmp_path / "out" / "set"]
    assert told == [(done, 3 if form == "zip" else 0) for done in (1, 2, 3)]


def test_a_zip_within_a_zip_is_unpacked_in_its_place_once(tmp_path: Path) -> None:
    deepest = zip_bytes({"x.txt": b"x"})
    inner = zip_bytes({"UCI/y.txt": b"y", "UCI/deeper.zip": deepest})
    archive = write(tmp_path / "uci.zip", zip_bytes({"data.zip": inner, "names.txt": b"n", "__MACOSX/._a": b"-"}))
    archives.unpack(archive, tmp_path / "out", silent)
    assert files_below(tmp_path / "out") == {"UCI/y.txt": b"y", "UCI/deeper.zip": deepest, "names.txt": b"n"}


def test_what_is_there_stays_unless_it_is_to_be_replaced(tmp_path: Path) -> None:
    archive = write(tmp_path / "a.zip", zip_bytes({"set/new.txt": b"new"}))
    write_old = tmp_path / "out" / "set" / "old.txt"
    write_old.parent.mkdir(parents=True)
    write_old.write_bytes(b"old")
    with pytest.raises(DataError, match="is there already"):
        archives.unpack(archive, tmp_path / "out", silent)
    assert files_below(tmp_path / "out") == {"set/old.txt": b"old"}
    archives.unpack(archive, tmp_path / "out", silent, replace=True)
    assert files_below(tmp_path / "out") == {"set/new.txt": b"new"}


UNSAFE_NAMES = ["/etc/x", "../x", "a/../../x", "a\\..\\x", "C:x", "a//../x", "a/\x01b", "n" * 256]


@pytest.mark.parametrize("form", ["zip", "tar"])
@pytest.mark.parametrize("name", UNSAFE_NAMES)
def test_names_that_leave_the_folder(tmp_path: Path, name: str, form: str) -> None:
    content = (zip_bytes if form == "zip" else tar_bytes)({"good.txt": b"", name: b"evil"})
    assert "would land outside" in refusal(tmp_path, content)


SAME = [("a/x", "A/y"), ("x", "X"), ("x", "x/y"), ("x/y", "x"), ("stra\u00dfe", "strasse"), ("\u00e9", "e\u0301")]


@pytest.mark.parametrize("names", [*SAME, ("x", "x")], ids=repr)
@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_names_that_some_disk_takes_for_one(tmp_path: Path, names: tuple[str, str], told: Told) -> None:
    zipped, tarred = io.BytesIO(), io.BytesIO()
    with zipfile.ZipFile(zipped, "w") as file, tarfile.open(fileobj=tarred, mode="w") as tar:
        for name in names:
            file.writestr(name, b"1")
            tar.addfile(tarfile.TarInfo(name))
    for buffer in (zipped, tarred):
        told(refusal(tmp_path, buffer.getvalue()))


def test_a_folder_may_be_named_twice(tmp_path: Path) -> None:
    archive = write(tmp_path / "a.zip", zip_bytes({"x/": b"", "x/y": b"1", "./x/z": b"2"}))
    archives.unpack(archive, tmp_path / "out", silent)
    assert files_below(tmp_path / "out") == {"x/y": b"1", "x/z": b"2"}


@pytest.mark.parametrize("form", ["zip", "tar.gz"])
def test_limits(tmp_path: Path, form: str) -> None:
    """FILES have 3 members and 256,005 bytes."""
    content = zip_bytes(FILES) if form == "zip" else gzip.compress(tar_bytes(FILES))
    size = 256_005 if form == "zip" else len(tar_bytes(FILES))  # headers and padding count, too
    assert "more than 2 members" in refusal(tmp_path, content, limits=Limits(max_members=2))
    assert f"more than {size - 1:,} bytes" in refusal(tmp_path, content, limits=Limits(max_bytes=size - 1))
    archive = write(tmp_path / "good", content)
    archives.unpack(archive, tmp_path / "out", silent, limits=Limits(max_members=3, max_bytes=size))
    assert files_below(tmp_path / "out") == FILES


def test_limits_count_what_nested_archives_hold(tmp_path: Path) -> None:
    inner = zip_bytes({f"{number}": bytes(1000) for number in range(9)})
    outer = zip_bytes({"one/in.zip": inner, "two/in.zip": inner})
    assert "more than 19 members" in refusal(tmp_path, outer, limits=Limits(max_members=19))
    assert "bytes" in refusal(tmp_path, outer, limits=Limits(max_bytes=18_000))


def tar_member(name: str, size: int = 0, kind: bytes = tarfile.REGTYPE) -> bytes:
    """A member whose content is missing, and the end."""
    member = tarfile.TarInfo(name)
    member.size, member.type, member.linkname = size, kind, "a.txt"
    return member.tobuf(tarfile.GNU_FORMAT) + bytes(1024)


def zip_member(name: str, mode: int = 0, method: int = zipfile.ZIP_STORED) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as file:
        member = zipfile.ZipInfo(name)
        member.external_attr, member.compress_type = mode << 16, method
        file.writestr(member, b"/etc/passwd")
    return buffer.getvalue()


def changed(whole: bytes, offset: int, value: int) -> bytes:
    """Another byte in the directory's first entry."""
    at = whole.index(b"PK\1\2") + offset
    return whole[:at] + bytes([value]) + whole[at + 1 :]


def sharing() -> bytes:
    """Two entries for the same bytes."""
    whole = zip_bytes({"a": bytes(range(256))})
    at, end = whole.index(b"PK\1\2"), whole.index(b"PK\5\6")
    second = whole[at:end].replace(b"a", b"b")
    return whole[:end] + second + struct.pack("<4s4H2IH", b"PK\5\6", 0, 0, 2, 2, 2 * len(second), at, 0)


TAR, BOMB = tar_bytes({"a": b"1", "b": b"2"}), zip_bytes({"bomb": bytes(10_000_000)})
ODD: dict[str, tuple[bytes, str]] = {
    # zipfile itself would cut the name there.
    "a zero byte": (zip_bytes({"a.txtQ.sh": b""}).replace(b"a.txtQ.sh", b"a.txt\0.sh"), "would land outside"),
    "a zero byte first": (zip_bytes({"QQ": b""}).replace(b"QQ", b"\0a"), "has no portable name"),
    "no name": (zip_member(""), "has no portable name"),
    "encrypted": (changed(zip_bytes({"a": b"1"}), 8, 1), "it is encrypted"),
    # 10 MB whose headers say 10 bytes: no more than these are read, and their checksum is wrong.
    "a bomb": (BOMB.replace((10_000_000).to_bytes(4, "little"), (10).to_bytes(4, "little")), "damaged or cut off"),
    # Its checksum is right, for what there is: only the count tells.
    "short": (changed(zip_bytes({"short": b"0123456789"}), 24, 20), "holds 10 bytes or more, but declares 20"),
    "cut off": (tar_bytes({"a": b"1", "b": bytes(20_000)})[:10_000], "damaged or cut off"),
    # tarfile itself would take these for the end.
    "second header missing": (TAR[:1024], "the end is missing"),
    "second header cut off": (TAR[:1300], "the end is missing"),
    "second header damaged": (TAR[:1030] + b"!" + TAR[1031:], "the end is missing"),
    "shared bytes": (sharing(), "members lie over each other"),
    "a method without a limit": (zip_member("a", method=zipfile.ZIP_LZMA), "stored and deflated members are read"),
    "negative": (TAR[:1024] + tar_member("back", -512), ""),
    "nothing": (b"", "cut off"),
    "a page": (b"<html>404</html>" * 100, "cut off"),
    "begins like a zip": (b"PK\x03\x04", "cut off"),
    "begins like a gzip": (b"\x1f\x8b", "cut off"),
    **{
        f"tar of kind {kind!r}": (TAR[:1024] + tar_member("link", kind=kind), "only plain files and folders")
        for kind in (tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.CHRTYPE, tarfile.BLKTYPE, tarfile.FIFOTYPE)
    },
    **{
        f"zip of mode {mode:o}": (zip_member("link", mode | 0o777), "only plain files and folders are unpacked")
        for mode in (stat.S_IFLNK, stat.S_IFCHR, stat.S_IFIFO)
    },
}


@pytest.mark.parametrize("case", ODD)
def test_what_is_refused(tmp_path: Path, case: str) -> None:
    content, problem = ODD[case]
    line = refusal(tmp_path, content)
    assert line.startswith(str(tmp_path / "odd")) and problem in line


def test_a_zip_whose_directory_is_too_long(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, told: Told) -> None:
    monkeypatch.setattr(members, "_MAX_DIRECTORY_BYTES", 500)
    many = {f"{number}": b"" for number in range(20)}
    told(refusal(tmp_path, zip_bytes(many)))


def test_a_tar_that_declares_more_than_the_disk_has(tmp_path: Path) -> None:
    content = tar_member("huge", 1 << 62)
    assert "more than 32,000,000,000 bytes" in refusal(tmp_path, content)
    assert "make room" in refusal(tmp_path, content, limits=Limits(max_bytes=1 << 63, max_ratio=1 << 63))


@pytest.mark.parametrize("form", ["zip", "tar.gz", "tar.bz2", "tar.xz"])
def test_cut_off_and_damaged_archives(tmp_path: Path, form: str) -> None:
    content = zip_bytes(FILES) if form == "zip" else PACKERS[form](tar_bytes(FILES))
    refusal(tmp_path, content[: len(content) * 2 // 3])
    flipped = bytearray(content)
    flipped[len(content) // 2] ^= 0xFF
    refusal(tmp_path, bytes(flipped))


def test_a_full_or_closed_disk_is_no_damage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, told: Told) -> None:
    archive = write(tmp_path / "a.zip", zip_bytes(FILES))

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(archives._Unpacking, "_write", full)
    with told.by(DataError):
        archives.unpack(archive, tmp_path / "out", silent)


@pytest.mark.parametrize("form", ["zip", "tar"])
def test_first_members_are_gone_when_a_later_one_is_refused(tmp_path: Path, form: str) -> None:
    """What a caller's own folder has stays; nothing of the archive comes."""
    write_to: Callable[[Members], bytes] = zip_bytes if form == "zip" else tar_bytes
    archive = write(tmp_path / "a", write_to({"good": b"1", "../evil": b"2"}))
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "mine").write_bytes(b"m")
    with pytest.raises(DataError):
        archives.unpack(archive, tmp_path / "out", silent)
    assert files_below(tmp_path) == {"a": archive.read_bytes(), "out/mine": b"m"}
