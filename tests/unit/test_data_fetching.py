"""Downloads, against a server of our own on 127.0.0.1 that breaks off, changes files, lies and refuses."""

import fcntl
import hashlib
import re
import socketserver
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import pytest
from golden_file import Told

from fedmpi.data.files import fetching
from fedmpi.data.files.fetching import DownloadError, fetch
from fedmpi.data.files.source import File
from fedmpi.errors import DataError

CONTENT = bytes(range(256)) * 4000  # 1,024,000 bytes: four chunks
SHA256 = f"sha256:{hashlib.sha256(CONTENT).hexdigest()}"


@dataclass
class Server:
    """What the server has and how it behaves; `requests` are the Range headers it saw."""

    url: str = ""
    content: bytes = CONTENT
    statuses: list[int] = field(default_factory=list)
    """Error statuses of the first answers."""
    breaks_after: list[int] = field(default_factory=list)
    """So many bytes of the body come in the first answers."""
    has_range: bool = True
    sends_length: bool = True
    requests: list[str] = field(default_factory=list)
    meanwhile: Callable[[], None] = lambda: None
    """Called after each answer."""
    raw: list[bytes] = field(default_factory=list)
    """Whole answers to give first, as they go over the wire."""


class Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        ours: Server = self.server.ours
        asked = self.headers.get("Range", "")
        ours.requests.append(asked)
        if ours.raw:
            self.wfile.write(ours.raw.pop(0))
            return
        if ours.statuses:
            self.send_error(ours.statuses.pop(0))
            return
        begin = int(re.findall(r"\d+", asked)[0]) if asked and ours.has_range else 0
        if begin > len(ours.content):
            self.send_error(416)
            return
        self.send_response(206 if begin else 200)
        body = ours.content[begin:]
        if ours.sends_length:
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body[: ours.breaks_after.pop(0)] if ours.breaks_after else body)
        ours.meanwhile()

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def server() -> Iterator[Server]:
    with socketserver.TCPServer(("127.0.0.1", 0), Handler) as tcp:
        tcp.ours = Server(f"http://127.0.0.1:{tcp.server_address[1]}/file")
        thread = threading.Thread(target=tcp.serve_forever, args=(0.01,))
        thread.start()
        yield tcp.ours
        tcp.shutdown()
        thread.join()


def pinned(server: Server, **other: object) -> File:
    given: dict[str, object] = {"checksum": SHA256, "num_bytes": len(CONTENT), **other}
    return File("set/file.bin", (server.url,), **given)


class Pauses(list[float]):
    """Waits for nothing; keeps the seconds, and the lines that say why."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def __call__(self, seconds: float, why: str) -> None:
        self.append(seconds)
        self.lines.append(why)


def silent(done: int, total: int) -> None:
    pass


def load(server: Server, folder: Path, **other: object) -> bool:
    return fetch(pinned(server, **other), folder, silent, wait=Pauses())


def only_file(folder: Path) -> bytes:
    """The content of the file, which is all there is: no .part, no note, no lock."""
    assert [path.name for path in (folder / "set").iterdir()] == ["file.bin"]
    return (folder / "set" / "file.bin").read_bytes()


def begin(server: Server, folder: Path, num_bytes: int) -> Path:
    """A download that was killed after `num_bytes`."""

    class Killed(Exception): ...

    def kill(seconds: float, why: str) -> None:
        raise Killed

    server.breaks_after = [num_bytes]
    with pytest.raises(Killed):
        fetch(pinned(server), folder, silent, wait=kill)
    part = folder / "set" / "file.bin.part"
    assert part.read_bytes() == server.content[:num_bytes]
    server.requests.clear()
    return part


def test_a_download_and_its_progress(server: Server, tmp_path: Path) -> None:
    told: list[tuple[int, int]] = []
    assert fetch(pinned(server), tmp_path, lambda done, total: told.append((done, total)), wait=Pauses())
    assert only_file(tmp_path) == CONTENT and server.requests == [""]
    assert told == [(done, 1_024_000) for done in (0, 262_144, 524_288, 786_432, 1_024_000)]


def test_what_is_there_and_right_is_not_loaded_again(server: Server, tmp_path: Path) -> None:
    load(server, tmp_path)
    assert not load(server, tmp_path) and len(server.requests) == 1
    assert fetch(pinned(server), tmp_path, silent, force=True, wait=Pauses()) and len(server.requests) == 2
    (tmp_path / "set" / "file.bin").write_bytes(CONTENT[:-1] + b"x")
    assert load(server, tmp_path) and only_file(tmp_path) == CONTENT


def test_a_broken_connection_goes_on_where_it_was(server: Server, tmp_path: Path) -> None:
    pauses = Pauses()
    server.breaks_after = [300_000, 400_000]
    fetch(pinned(server), tmp_path, silent, wait=pauses)
    assert only_file(tmp_path) == CONTENT
    assert server.requests == ["", "bytes=300000-", "bytes=700000-"]
    assert pauses == [1.0, 1.0], "each try brought something, so none counts as a second failure in a row"


RESUMED: dict[str, tuple[Callable[[Server, Path], object], list[str]]] = {
    "as it was": (lambda server, part: None, ["bytes=500000-"]),
    "another file": (lambda server, part: part.write_bytes(b"x" * 500_000), ["bytes=500000-", ""]),
    "a server without ranges": (lambda server, part: setattr(server, "has_range", False), ["bytes=500000-"]),
    "a part that is too long": (lambda server, part: part.write_bytes(bytes(2_000_000)), ["bytes=2000000-", ""]),
    "a part that is complete": (lambda server, part: part.write_bytes(CONTENT), []),
}


@pytest.mark.parametrize("case", RESUMED)
def test_a_killed_download_goes_on_where_it_was(server: Server, tmp_path: Path, case: str) -> None:
    """Unless what was there, or what comes, is not what it should be: then it is loaded afresh."""
    change, requests = RESUMED[case]
    change(server, begin(server, tmp_path, 500_000))
    load(server, tmp_path)
    assert only_file(tmp_path) == CONTENT and server.requests == requests


@pytest.mark.parametrize("algorithm", ["md5", "sha256"])
def test_a_wrong_checksum_puts_nothing_in_place(server: Server, tmp_path: Path, algorithm: str) -> None:
    right = hashlib.new(algorithm, CONTENT, usedforsecurity=False).hexdigest()
    server.content = b"y" * len(CONTENT)
    with pytest.raises(DownloadError) as caught:
        load(server, tmp_path, checksum=f"{algorithm}:{right}")
    line = str(caught.value)
    assert server.url in line and f"expected {right}" in line and "\n" not in line and caught.value.exit_code == 1
    assert list(tmp_path.iterdir()) == [] and len(server.requests) == 1, "the same bytes would come again"


@pytest.mark.parametrize("size", [10, 2_000_000])
def test_a_wrong_size_is_seen_before_the_body_comes(server: Server, tmp_path: Path, size: int) -> None:
    server.content = bytes(size)
    with pytest.raises(DownloadError, match=f"has {size:,} bytes, expected 1,024,000"):
        load(server, tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_body_without_end(server: Server, tmp_path: Path, told: Told) -> None:
    server.content, server.sends_length = bytes(2_000_000), False
    done_bytes: list[int] = []
    with told.by(DownloadError):
        fetch(pinned(server), tmp_path, lambda done, total: done_bytes.append(done), wait=Pauses())
    assert max(done_bytes) < 1_024_000 + 300_000, "stopped at once"
    assert list(tmp_path.iterdir()) == []


def test_errors_that_pass_are_waited_for(server: Server, tmp_path: Path) -> None:
    pauses = Pauses()
    server.statuses = [503, 429, 500]
    fetch(pinned(server), tmp_path, silent, wait=pauses)
    assert only_file(tmp_path) == CONTENT and pauses == [1.0, 2.0, 4.0]


def test_an_error_that_stays(server: Server, tmp_path: Path, told: Told) -> None:
    pauses = Pauses()
    server.statuses = [503] * 100
    with told.by(DownloadError):
        fetch(pinned(server), tmp_path, silent, wait=pauses)
    assert pauses == [1.0, 2.0, 4.0, 8.0, 16.0]


def test_what_came_stays_after_the_last_try(server: Server, tmp_path: Path) -> None:
    server.breaks_after = [500_000]
    server.meanwhile = lambda: server.statuses.extend([503] * 6)
    with pytest.raises(DownloadError, match="500,000 bytes are kept"):
        load(server, tmp_path)
    assert "500,000 bytes are kept" in fetching.kept(tmp_path, pinned(server))
    server.statuses, server.meanwhile = [], lambda: None
    load(server, tmp_path)
    assert only_file(tmp_path) == CONTENT and server.requests[-1] == "bytes=500000-"
    assert fetching.kept(tmp_path, pinned(server)) == ""


@pytest.mark.parametrize("status", [403, 404, 410])
def test_a_refusal_is_final_and_the_next_address_is_tried(server: Server, tmp_path: Path, status: int) -> None:
    server.statuses = [status]
    with pytest.raises(DownloadError, match=f"HTTP {status}"):
        load(server, tmp_path)
    server.statuses = [status]
    file = File("set/file.bin", (server.url, f"{server.url}?mirror"), SHA256)
    assert fetch(file, tmp_path, silent, wait=Pauses()) and only_file(tmp_path) == CONTENT


def test_nobody_listens(tmp_path: Path, told: Told) -> None:
    pauses = Pauses()
    with socketserver.TCPServer(("127.0.0.1", 0), Handler) as gone:
        port = gone.server_address[1]
    with told.by(DownloadError):
        fetch(File("set/file.bin", (f"http://127.0.0.1:{port}/x",)), tmp_path / "new", silent, wait=pauses)
    assert pauses == [1.0, 2.0, 4.0, 8.0, 16.0]
    assert re.fullmatch(r"127\.0\.0\.1: .*refused; .* 4 s", pauses.lines[2])
    assert list(tmp_path.iterdir()) == [], "the folders that it made are gone"


def test_a_full_disk_is_seen_before_anything_is_written(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, told: Told
) -> None:
    monkeypatch.setattr(fetching.shutil, "disk_usage", lambda folder: type("Usage", (), {"free": 1_023_999}))
    with told.by(DataError) as caught:
        load(server, tmp_path)
    assert caught.value.exit_code == 2
    monkeypatch.setattr(fetching.shutil, "disk_usage", lambda folder: type("Usage", (), {"free": 1_024_000}))
    assert load(server, tmp_path)


def test_a_folder_that_cannot_be_written(server: Server, tmp_path: Path) -> None:
    (tmp_path / "set").write_bytes(b"a file")
    with pytest.raises(DataError, match="cannot be written"):
        load(server, tmp_path)


def test_two_processes_do_not_write_one_file(server: Server, tmp_path: Path, told: Told) -> None:
    (tmp_path / "set").mkdir()
    with (tmp_path / "set" / "file.bin.lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with told.by(DataError):
            load(server, tmp_path)
    assert server.requests == [] and load(server, tmp_path)


def test_without_a_checksum_any_content_is_taken(server: Server, tmp_path: Path) -> None:
    """All of it: nobody would notice halves of two versions."""
    begin(server, tmp_path, 500_000)
    assert load(server, tmp_path, checksum="", num_bytes=0) and only_file(tmp_path) == CONTENT
    assert server.requests == [""] and not load(server, tmp_path, checksum="", num_bytes=0)


# ---- answers that make no sense: each ends in one line that a terminal can show


def answer(status: bytes, body: bytes = b"", **headers: bytes) -> bytes:
    """An answer as it goes over the wire; `_` in a header's name is a hyphen."""
    lines = [b"%s: %s" % (name.replace("_", "-").encode(), value) for name, value in headers.items()]
    return b"\r\n".join([b"HTTP/1.1 " + status, *lines, b"", body])


def refused(server: Server, folder: Path, *answers: bytes) -> tuple[str, list[str]]:
    """The one line, and what was told before each of the later tries."""
    server.raw, pauses = [*answers], Pauses()
    with pytest.raises(DownloadError) as caught:
        fetch(File("file.bin", (server.url,)), folder, silent, wait=pauses)
    assert all(line.isprintable() and len(line) < 600 for line in [str(caught.value), *pauses.lines])
    return str(caught.value), pauses.lines


@pytest.mark.parametrize(
    "address",
    [
        b"http://[bad/",
        b"http://127.0.0.1:port/",
        b"http://\xe9\xff.invalid/",
        b"http://ex\xed\xb3\xbfample.invalid/",
        b"http://" + b"a" * 300 + b"/",
        b"file:///etc/hostname",
    ],
)
def test_a_redirect_to_no_address_is_final(server: Server, tmp_path: Path, address: bytes) -> None:
    line, waits = refused(server, tmp_path, answer(b"302 Found", Location=address))
    assert server.url in line and waits == [] and len(server.requests) == 1


def test_a_length_that_nobody_can_count(server: Server, tmp_path: Path, told: Told) -> None:
    line, waits = refused(server, tmp_path, answer(b"200 OK", b"0123456789", Content_Length=b"9" * 5000))
    told(line, r"(?<=makes no sense: ).*")
    assert waits == []


@pytest.mark.parametrize("status", [b"404", b"503"])
def test_what_a_server_says_writes_nothing_to_a_terminal(server: Server, tmp_path: Path, status: bytes) -> None:
    odd = answer(status + b" \x1b[31mno\x07" + b"!" * 1000)
    line, waits = refused(server, tmp_path, *[odd] * 6)
    assert r"\x1b[31mno\x07!!" in line and len(waits) == (5 if status == b"503" else 0)
