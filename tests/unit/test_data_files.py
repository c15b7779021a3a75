"""Files of data sets: checksums and addresses, downloads from a server of our own, archives good and bad."""

import functools
import gzip
import hashlib
import io
import lzma
import os
import shlex
import socketserver
import tarfile
import threading
import zipfile
from collections.abc import Iterator
from http.server import SimpleHTTPRequestHandler
from pathlib import Path

import pytest
from data_fixtures import FETCHED, refusal

from fedmpi import registry
from fedmpi.data import command as data_command
from fedmpi.data import files
from fedmpi.data.files import DownloadError, fetch, install

CONTENT = bytes(range(256)) * 4000
SHA256 = f"sha256:{hashlib.sha256(CONTENT).hexdigest()}"


def test_every_file_of_a_set_has_an_address_and_a_checksum() -> None:
    lines = [line.split() for line in files.TABLE.read_text().splitlines() if not line.startswith("#")]
    assert {path for options in FETCHED.values() for path in options.downloads} == {path for path, _, _ in lines}
    for path, checksum, url in lines:
        algorithm, _, digest = checksum.partition(":")
        assert len(digest) == {"md5": 32, "sha256": 64}[algorithm] and int(digest, 16) > 0
        assert url.startswith(("https://", "http://cs231n.stanford.edu/"))
        assert not Path(path).is_absolute() and ".." not in Path(path).parts


def test_commands_in_messages_are_taken_and_depend_on_the_options(tmp_path: Path) -> None:
    windows = registry.options("data", "har")()
    options = registry.options("data", "har")(root=str(tmp_path / "my data"), form="features")
    assert (windows.files(), options.files()) == (("har-341.zip",), ("har-240.zip",))
    assert "fetch har 'data.root=~/data'" in windows.how_to_fetch()
    for text in (options.how_to_fetch().split("`")[1], options.command("prepare")):
        arguments = data_command.parse(shlex.split(text)[2:])
        again = data_command.data_options(arguments.name, arguments.words)
        assert again.form == "features" and again.root == str(tmp_path / "my data")
    assert again == options


@pytest.fixture
def served(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The file that a server of our own has for `set/file.bin`."""
    served = tmp_path / "served" / "file.bin"
    served.parent.mkdir()
    served.write_bytes(CONTENT)
    monkeypatch.setattr("pooch.core.time.sleep", lambda seconds: None)
    handler = functools.partial(SimpleHTTPRequestHandler, directory=str(served.parent))
    with socketserver.TCPServer(("127.0.0.1", 0), handler) as tcp:
        monkeypatch.setattr(files, "TABLE", tmp_path / "files.txt")
        files.TABLE.write_text(f"set/file.bin {SHA256} http://127.0.0.1:{tcp.server_address[1]}/file.bin")
        thread = threading.Thread(target=tcp.serve_forever, args=(0.01,))
        thread.start()
        yield served
        tcp.shutdown()
        thread.join()


def test_a_file_is_loaded_once_and_again_by_force(served: Path, tmp_path: Path) -> None:
    loaded = tmp_path / "set" / "file.bin"
    for found in (b"", b"damaged"):
        loaded.parent.mkdir(exist_ok=True)
        loaded.write_bytes(found)
        fetch("set/file.bin", tmp_path)
        assert [*loaded.parent.iterdir()] == [loaded] and loaded.read_bytes() == CONTENT
    served.unlink()
    fetch("set/file.bin", tmp_path)
    with pytest.raises(DownloadError):
        fetch("set/file.bin", tmp_path, force=True)


def test_passing_trouble_is_tried_again(served: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    served.unlink()
    monkeypatch.setattr("pooch.core.time.sleep", lambda seconds: served.write_bytes(CONTENT))
    fetch("set/file.bin", tmp_path)
    assert (tmp_path / "set" / "file.bin").read_bytes() == CONTENT


@pytest.mark.parametrize(("content", "problem"), [(b"another", "does not match"), (None, "404")])
def test_a_server_without_the_file_is_one_line_of_exit_code_1(
    served: Path, tmp_path: Path, content: bytes | None, problem: str
) -> None:
    served.unlink() if content is None else served.write_bytes(content)
    with pytest.raises(DownloadError, match=problem) as caught:
        fetch("set/file.bin", tmp_path)
    assert caught.value.exit_code == 1 and "\n" not in caught.value.text() and "/file.bin" in caught.value.text()
    assert not any((tmp_path / "set").iterdir())


MEMBERS = {"set/a.txt": b"first", "set/deep/b.txt": b"", "set/c.bin": bytes(range(256)) * 1000}
PACKERS = {"tar": bytes, "tar.gz": gzip.compress, "tar.xz": lzma.compress}


def tar_bytes(members: dict[str, bytes], **changes: object) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as file:
        for name, content in members.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            for key, value in changes.items():
                setattr(member, key, value)
            file.addfile(member, io.BytesIO(content))
    return buffer.getvalue()


def zip_bytes(members: dict[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as file:
        for name, content in members.items():
            file.writestr(name, content)
    return buffer.getvalue()


def packed(form: str, members: dict[str, bytes]) -> bytes:
    return zip_bytes(members) if form == "zip" else PACKERS[form](tar_bytes(members))


def files_below(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("form", ["zip", *PACKERS])
def test_every_form_comes_out_whole_in_place_of_what_is_there(tmp_path: Path, form: str) -> None:
    """The content decides, not the name."""
    archive = tmp_path / "archive.dat"
    archive.write_bytes(packed(form, MEMBERS))
    (tmp_path / "set").mkdir(parents=True)
    (tmp_path / "set" / "old.txt").touch()
    assert install(archive) == [tmp_path / "set"]
    assert files_below(tmp_path) == {**MEMBERS, "archive.dat": archive.read_bytes()}


def test_a_zip_within_a_zip_is_unpacked_in_its_place(tmp_path: Path) -> None:
    archive = tmp_path / "uci.dat"
    archive.write_bytes(zip_bytes({"data.zip": zip_bytes({"UCI/y.txt": b"y"}), "names.txt": b"n"}))
    with files.unpacked(archive, tmp_path) as folder:
        assert files_below(folder) == {"UCI/y.txt": b"y", "names.txt": b"n"}
    assert [*tmp_path.iterdir()] == [archive]


BAD = {
    "a web page": b"<html>404</html>" * 100,
    "a cut .zip": zip_bytes(MEMBERS)[:-200],
    "a name that leaves": tar_bytes({"good": b"", "../evil": b"x"}),
    "a link that leaves": tar_bytes({"good": b""}, type=tarfile.SYMTYPE, linkname="/etc/passwd"),
    "more than the limit": zip_bytes({"a": bytes(600_000), "b": bytes(600_000)}),
}


@pytest.mark.parametrize("case", BAD)
def test_a_bad_archive_is_one_line_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, case: str
) -> None:
    monkeypatch.setattr(files, "MAX_UNPACKED_BYTES", 1_000_000)
    archive = tmp_path / "set" / "odd"
    archive.parent.mkdir()
    archive.write_bytes(BAD[case])
    line = refusal(lambda: install(archive))
    assert line.startswith(f"{archive}: cannot be unpacked (") and "get it again" in line
    assert ("1,000,000 bytes" in line) == ("limit" in case)
    assert files_below(tmp_path) == {"set/odd": BAD[case]}


@pytest.mark.parametrize("kind", ["pipe", "no text"])
def test_what_is_no_text_file_is_one_line(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "input.txt"
    if kind == "pipe":
        os.mkfifo(path)
    else:
        path.write_bytes(b"\xff\xfe")
    line = refusal(lambda: files.read_text(path))
    assert line.startswith(f"{path}: cannot be read as text (") and ("no regular file" in line) == (kind == "pipe")


def test_one_path_is_found_or_all_are_named(tmp_path: Path) -> None:
    assert "found none; give the folder of the play" in refusal(files.find, tmp_path, "input.txt", "the play")
    for folder in ("a", "b", "__MACOSX"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "input.txt").touch()
    assert "2 of them" in refusal(files.find, tmp_path, "input.txt", "the play")
    (tmp_path / "b" / "input.txt").unlink()
    assert files.find(tmp_path, "input.txt", "the play") == tmp_path / "a" / "input.txt"
