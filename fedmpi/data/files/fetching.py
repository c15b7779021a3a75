"""Downloads of pinned files: resumed where they stopped, checked, put in place whole or not at all.

What has come so far lies in `<file>.part`, with `<file>.part.json` beside it: the server's mark of the version
(ETag or Last-Modified). A resumed request carries it in If-Range, so a file that changed meanwhile comes whole.
Nothing in a training run imports this module.
"""

from __future__ import annotations

import contextlib
import hashlib
import http.client
import json
import os
import re
import shutil
import ssl
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from email.message import Message
from pathlib import Path
from typing import Any, BinaryIO

import fedmpi
from fedmpi.data.files.budget import Tell
from fedmpi.data.files.folders import made
from fedmpi.data.files.source import File
from fedmpi.disk import temporary
from fedmpi.errors import DataError, UserError, one_line

Wait = Callable[[float, str], None]
"""Called to wait so many seconds before the next try, with a line that says why."""

_CHUNK_BYTES = 1 << 18
_TIMEOUT_S = 60.0
_PAUSES_S = (1.0, 2.0, 4.0, 8.0, 16.0)  # between tries that brought nothing
_MAX_BYTES = 32 * 10**9  # where neither we nor the server know the size
_MAX_CHARACTERS = 200  # of what a server says
_WORTH_WAITING_FOR = (408, 425, 429, 500, 502, 503, 504)


def _wait(seconds: float, why: str) -> None:
    time.sleep(seconds)


class DownloadError(UserError):
    """The network or the server failed, after all retries."""

    exit_code = 1


class _Unlucky(Exception):
    """This try failed; another may not."""


class _Hopeless(Exception):
    """This address will not give the file."""


def fetch(file: File, data_dir: Path, tell: Tell, *, force: bool = False, wait: Wait = _wait) -> bool:
    """Brings `file` to its place below `data_dir`; False if it was there, complete, already.

    Raises DownloadError after all retries, DataError if the disk is full or another process loads the same file.
    """
    target = data_dir / file.path
    if target.is_file() and not force and not wrong_content(file, target):
        return False
    part = Part(target)
    try:
        with made(target.parent), only_one(target):
            if force:
                part.remove()
            _load_and_check(file, part, tell, wait)
            part.path.replace(target)
            part.remove()
    except OSError as error:
        raise DataError(str(target), f"cannot be written: {error}") from error
    return True


def wrong_content(file: File, path: Path) -> str:
    """What is wrong with the bytes at `path`; empty if they are the pinned ones (or nobody pinned any)."""
    num_bytes = path.stat().st_size
    if file.num_bytes and num_bytes != file.num_bytes:
        return f"{num_bytes:,} bytes, expected {file.num_bytes:,}"
    algorithm, _, expected = file.checksum.partition(":")
    if not expected:
        return ""
    digest = hashlib.new(algorithm, usedforsecurity=False)
    with path.open("rb") as stream:
        while chunk := stream.read(1 << 20):
            digest.update(chunk)
    return "" if digest.hexdigest() == expected else f"{algorithm} {digest.hexdigest()}, expected {expected}"


@dataclass(frozen=True)
class Part:
    """What has come of a file so far."""

    target: Path

    @property
    def path(self) -> Path:
        return self.target.with_name(f"{self.target.name}.part")

    @property
    def note(self) -> Path:
        return self.target.with_name(f"{self.target.name}.part.json")

    def num_bytes(self) -> int:
        return self.path.stat().st_size if self.path.is_file() else 0

    def version(self) -> str:
        """The server's mark of what we have; empty if it gave none."""
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
            return str(json.loads(self.note.read_text())["version"])
        return ""

    def restart(self, version: str) -> None:
        self.remove()
        for path, text in ((self.path, ""), (self.note, json.dumps({"version": version}))):
            with path.open("x") as file:
                file.write(text)

    def remove(self) -> None:
        self.path.unlink(missing_ok=True)
        self.note.unlink(missing_ok=True)

    def append(self) -> BinaryIO:
        """The file, open to be written on. Raises OSError if it is a link, which another user may have planted."""
        return open(os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC), "ab")


@contextlib.contextmanager
def only_one(target: Path) -> Iterator[None]:
    """Two processes that append to one file would spoil it. The lock goes with the process, however it ends."""
    with contextlib.ExitStack() as stack:
        try:
            stack.enter_context(temporary.locked(target.with_name(f"{target.name}.lock")))
        except BlockingIOError:
            problem = "another process is downloading or unpacking it; wait for that one"
            raise DataError(str(target), problem) from None
        yield


def _load_and_check(file: File, part: Part, tell: Tell, wait: Wait) -> None:
    """Address after address until the bytes are right; what was resumed and is wrong is loaded once afresh."""
    reasons = []
    for url in file.urls:
        for _ in range(2):
            was_resumed = part.num_bytes() > 0
            try:
                _load(url, file, part, tell, wait)
            except _Hopeless as error:
                reasons.append(f"{url}: {error}")
                break
            wrong = wrong_content(file, part.path)
            if not wrong:
                return
            part.remove()
            reasons.append(f"{url}: not the file it was ({wrong})")
            if not was_resumed:
                break
    raise DownloadError(str(part.target), f"not loaded: {'; '.join(reasons)}")


def _load(url: str, file: File, part: Part, tell: Tell, wait: Wait) -> None:
    """Tries until all bytes are there. Raises _Hopeless after too many tries in a row that brought nothing."""
    failures = 0
    while True:
        before = part.num_bytes()
        try:
            return _try(url, file, part, tell)
        except _Unlucky as error:
            failures = 1 if part.num_bytes() > before else failures + 1
            if failures > len(_PAUSES_S):
                kept = f"; {part.num_bytes():,} bytes are kept, the same command goes on there" if before else ""
                raise _Hopeless(f"{error}, {failures} times in a row{kept}") from error
            pause_s = _PAUSES_S[failures - 1]
            wait(pause_s, f"{urllib.parse.urlsplit(url).hostname}: {error}; trying again in {pause_s:.0f} s")


def _try(url: str, file: File, part: Part, tell: Tell) -> None:
    """One request. Raises _Unlucky if less came than promised, _Hopeless if the server refuses."""
    have = part.num_bytes()
    # Without a mark and without a checksum nobody would notice that the halves are of two versions.
    if have and not part.version() and not file.checksum:
        have = 0
    if have and have == file.num_bytes:
        return
    headers = {"User-Agent": f"fedmpi/{fedmpi.__version__}", "Accept-Encoding": "identity"}
    if have:
        headers["Range"] = f"bytes={have}-"
        headers |= {"If-Range": part.version()} if part.version() else {}
    try:
        with urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=_TIMEOUT_S) as answer:
            _receive(answer, have, file, part, tell)
    except urllib.error.HTTPError as error:
        _refused(error, part)
    except (urllib.error.URLError, http.client.HTTPException, TimeoutError, ConnectionError, ssl.SSLError) as error:
        reason = getattr(error, "reason", "") or error
        is_hopeless = isinstance(reason, (ssl.SSLCertVerificationError, http.client.InvalidURL))
        raise (_Hopeless if is_hopeless else _Unlucky)(one_line(str(reason) or type(error).__name__)) from error
    except ValueError as error:  # from deep in urllib: an address or a header that is none
        raise _Hopeless(one_line(f"the server's answer makes no sense: {error}"[:_MAX_CHARACTERS])) from error


def _refused(error: urllib.error.HTTPError, part: Part) -> None:
    """What an error status means for the next try."""
    error.close()
    text = one_line(f"HTTP {error.code} {error.reason}"[:_MAX_CHARACTERS])
    if error.code == 416:  # we asked to go on behind the end: the file is another one, or ours is too long
        part.remove()
        raise _Unlucky(text) from error
    raise (_Unlucky if error.code in _WORTH_WAITING_FOR else _Hopeless)(text) from error


def _receive(answer: Any, have: int, file: File, part: Part, tell: Tell) -> None:
    """Appends the body to what we have, or begins afresh if the server sends the file whole."""
    begin, total = _position(answer)
    is_other = begin > 0 and part.version() not in ("", _version(answer.headers))
    if begin not in (0, have) or is_other:
        part.remove()
        raise _Unlucky("the server went on with another file than it began with")
    if file.num_bytes and total and total != file.num_bytes:
        raise _Hopeless(f"the server has {total:,} bytes, expected {file.num_bytes:,}: not the file it was")
    if begin == 0:
        part.restart(_version(answer.headers))
    have, total = begin, total or file.num_bytes
    _check_disk(part.path.parent, total - have, file.path)
    tell(have, total)
    with part.append() as stream:
        while have <= (total or _MAX_BYTES) and (chunk := answer.read(_CHUNK_BYTES)):
            stream.write(chunk)
            have += len(chunk)
            tell(have, total)
    if have > (total or _MAX_BYTES):
        part.remove()
        raise _Hopeless(f"the server sends more than the {total or _MAX_BYTES:,} bytes there should be")
    if have < total:
        raise _Unlucky(f"the connection broke after {have:,} of {total:,} bytes")


def _position(answer: Any) -> tuple[int, int]:
    """Where the body begins in the file and how long the file is, 0 if unknown."""
    if answer.status == 206:
        found = re.fullmatch(r"bytes (\d+)-\d+/(\d+|\*)", answer.headers.get("Content-Range", "").strip())
        if found is None:
            raise _Hopeless("HTTP 206 without a usable Content-Range")
        return int(found[1]), int(found[2]) if found[2] != "*" else 0
    length = answer.headers.get("Content-Length", "")
    return 0, int(length) if length.isdecimal() else 0


def _version(headers: Message) -> str:
    """A mark that If-Range takes: a strong ETag, else the date of the last change."""
    etag = headers.get("ETag", "")
    mark = etag if etag.startswith('"') else headers.get("Last-Modified", "")
    return mark if mark.isascii() and mark.isprintable() else ""


def _check_disk(folder: Path, num_bytes: int, name: str) -> None:
    free = shutil.disk_usage(folder).free
    if num_bytes > free:
        raise DataError(str(folder), f"{free:,} bytes are free, the rest of {name} takes {num_bytes:,}; make room")


def kept(data_dir: Path, file: File) -> str:
    """A line about what an interrupted download left, empty if nothing."""
    part = Part(data_dir / file.path)
    num_bytes = part.num_bytes()
    return f"{num_bytes:,} bytes are kept in {part.path}" if num_bytes else ""
