"""Answers of a server that make no sense: each ends in one line that a terminal can show."""

from __future__ import annotations

import socketserver
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from fedmpi.data.files.fetching import DownloadError, fetch
from fedmpi.data.files.source import File

BODY = b"0123456789"
Answers = tuple[str, list[bytes], list[bytes]]
"""The address, the answers to give one after the other, and the requests that came."""


@pytest.fixture
def server() -> Iterator[Answers]:
    """A server on 127.0.0.1 that gives these bytes, and then closes the connection."""
    answers: list[bytes] = []
    requests: list[bytes] = []

    class Handler(socketserver.StreamRequestHandler):
        def handle(self) -> None:
            lines = list(iter(self.rfile.readline, b"\r\n"))
            requests.append(b"".join(lines))
            self.wfile.write(answers.pop(0))

    with socketserver.TCPServer(("127.0.0.1", 0), Handler) as tcp:
        thread = threading.Thread(target=tcp.serve_forever, args=(0.01,))
        thread.start()
        yield f"http://127.0.0.1:{tcp.server_address[1]}/file", answers, requests
        tcp.shutdown()
        thread.join()


def answer(status: bytes, body: bytes = b"", **headers: bytes) -> bytes:
    """An answer as it goes over the wire; `_` in a header's name is a hyphen."""
    lines = [b"%s: %s" % (name.replace("_", "-").encode(), value) for name, value in headers.items()]
    return b"\r\n".join([b"HTTP/1.1 " + status, *lines, b"", body])


def load(url: str, folder: Path, waits: list[str], num_bytes: int = 0) -> bytes:
    file = File("file.bin", (url,), num_bytes=num_bytes)
    fetch(file, folder, lambda done, total: None, wait=lambda seconds, why: waits.append(why))
    return (folder / "file.bin").read_bytes()


def refused(server: Answers, folder: Path, *answers: bytes) -> tuple[str, list[str]]:
    """The one line, and what was told before each of the later tries."""
    waits: list[str] = []
    server[1].extend(answers)
    with pytest.raises(DownloadError) as caught:
        load(server[0], folder, waits)
    assert all(line.isprintable() and len(line) < 600 for line in [str(caught.value), *waits])
    return str(caught.value), waits


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
def test_a_redirect_to_no_address_is_final(server: Answers, tmp_path: Path, address: bytes) -> None:
    line, waits = refused(server, tmp_path, answer(b"302 Found", Location=address))
    assert server[0] in line and waits == [] and len(server[2]) == 1


def test_a_length_that_nobody_can_count(server: Answers, tmp_path: Path) -> None:
    line, waits = refused(server, tmp_path, answer(b"200 OK", BODY, Content_Length=b"9" * 5000))
    assert "the server's answer makes no sense" in line and waits == []


def test_a_mark_that_cannot_be_sent_back_is_none(server: Answers, tmp_path: Path) -> None:
    """A header that is folded over two lines; nothing else says that both halves are of one version."""
    first = answer(b"200 OK", BODY[:4], Content_Length=b"10", ETag=b'"one\r\n two"')
    server[1].extend([first, answer(b"200 OK", BODY, Content_Length=b"10")])
    assert load(server[0], tmp_path, [], num_bytes=10) == BODY
    assert len(server[2]) == 2 and b"Range" not in server[2][1]


@pytest.mark.parametrize("status", [b"404", b"503"])
def test_what_a_server_says_writes_nothing_to_a_terminal(server: Answers, tmp_path: Path, status: bytes) -> None:
    odd = answer(status + b" \x1b[31mno\x07" + b"!" * 1000)
    line, waits = refused(server, tmp_path, *[odd] * 6)
    assert r"\x1b[31mno\x07!!" in line and len(waits) == (5 if status == b"503" else 0)
