"""Downloads of pinned files: resumed where they stopped, checked, put in place whole or not at all.

What has come so far lies in `<file>.part`. If the file has changed on the server, or the server continues elsewhere,
the checksum shows that the halves do not belong together; so a file without a checksum is not resumed. No training run
imports this module.
"""

from __future__ import annotations

import contextlib
import http.client
import os
import shutil
import ssl
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import fedmpi
from fedmpi.data.files.budget import Tell
from fedmpi.data.files.source import File, made, wrong_checksum
from fedmpi.disk import temporary
from fedmpi.errors import FAILED, DataError, UserError, one_line, reason

Wait = Callable[[float, str], None]
"""Called to wait so many seconds before the next try, with a line that says why."""

_CHUNK_BYTES = 1 << 18
_TIMEOUT_S = 60.0
_PAUSES_S = (1.0, 2.0, 4.0, 8.0, 16.0)  # between tries that brought nothing
_MAX_BYTES = 32 * 10**9  # where neither we nor the server know the size
_MAX_CHARACTERS = 200  # of what a server says
_WORTH_TRYING_AGAIN = (408, 416, 425, 429, 500, 502, 503, 504)


class DownloadError(UserError):
    """The network or the server failed, after all retries."""

    exit_code = FAILED


class _Unlucky(Exception):
    """This try failed; another may not."""


class _Hopeless(Exception):
    """This address will not give the file."""


def fetch(file: File, data_dir: Path, tell: Tell, *, force: bool = False, wait: Wait) -> bool:
    """Brings `file` to its place below `data_dir`; False if it was there, complete, already.

    Raises DownloadError after all retries, DataError if the disk is full or another process loads the same file.
    """
    target = data_dir / file.path
    if target.is_file() and not force and not wrong_content(file, target):
        return False
    part = part_of(target)
    try:
        with made(target.parent), only_one(target):
            if force or not file.checksum:
                part.unlink(missing_ok=True)
            _load_and_check(file, target, tell, wait)
            part.replace(target)
    except OSError as error:
        raise DataError(str(target), f"cannot be written: {reason(error)}") from error
    return True


def wrong_content(file: File, path: Path) -> str:
    """What is wrong with the bytes at `path`; empty if they are the pinned ones (or nobody pinned any)."""
    num_bytes = path.stat().st_size
    if file.num_bytes and num_bytes != file.num_bytes:
        return f"{num_bytes:,} bytes, expected {file.num_bytes:,}"
    with path.open("rb") as stream:
        return wrong_checksum(stream, file.checksum) if file.checksum else ""


def part_of(target: Path) -> Path:
    """What has come of a file so far."""
    return target.with_name(f"{target.name}.part")


def _size(part: Path) -> int:
    return part.stat().st_size if part.is_file() else 0


@contextlib.contextmanager
def only_one(target: Path) -> Iterator[None]:
    """Two processes that append to one file would spoil it. The lock goes with the process, however it ends."""
    try:
        with temporary.locked(target.with_name(f"{target.name}.lock")):
            yield
    except BlockingIOError:
        raise DataError(str(target), "another process is downloading or unpacking it; wait for that one") from None


def _load_and_check(file: File, target: Path, tell: Tell, wait: Wait) -> None:
    """Address after address until the bytes are right; what was resumed and is wrong is loaded once afresh."""
    part, reasons = part_of(target), []
    for url in file.urls:
        for _ in range(2):
            was_resumed = _size(part) > 0
            try:
                _load(url, file, part, tell, wait)
            except _Hopeless as error:
                reasons.append(f"{url}: {error}")
                break
            wrong = wrong_content(file, part)
            if not wrong:
                return
            part.unlink()
            reasons.append(f"{url}: not the file it was ({wrong})")
            if not was_resumed:
                break
    raise DownloadError(str(target), f"not loaded: {'; '.join(reasons)}")


def _load(url: str, file: File, part: Path, tell: Tell, wait: Wait) -> None:
    """Tries until all bytes are there. Raises _Hopeless after too many tries in a row that brought nothing."""
    failures = 0
    while True:
        before = _size(part)
        try:
            return _try(url, file, part, tell)
        except _Unlucky as error:
            failures = 1 if _size(part) > before else failures + 1
            if failures > len(_PAUSES_S):
                kept = f"; {before:,} bytes are kept, the same command continues there"
                is_kept = before and file.checksum
                raise _Hopeless(f"{error}, {failures} times in a row{kept if is_kept else ''}") from error
            pause_s = _PAUSES_S[failures - 1]
            wait(pause_s, f"{urllib.parse.urlsplit(url).hostname}: {error}; trying again in {pause_s:.0f} s")


def _try(url: str, file: File, part: Path, tell: Tell) -> None:
    """One request. Raises _Unlucky if less came than promised, _Hopeless if the server refuses."""
    have = _size(part) if file.checksum else 0
    if have and have == file.num_bytes:
        return
    headers = {"User-Agent": f"fedmpi/{fedmpi.__version__}", "Accept-Encoding": "identity"}
    headers |= {"Range": f"bytes={have}-"} if have else {}
    try:
        with urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=_TIMEOUT_S) as answer:
            _receive(answer, have, file, part, tell)
    except urllib.error.HTTPError as error:
        error.close()
        text = one_line(f"HTTP {error.code} {error.reason}"[:_MAX_CHARACTERS])
        if error.code == 416:  # we asked to continue behind the end: the file is another one, or ours is too long
            part.unlink(missing_ok=True)
        raise (_Unlucky if error.code in _WORTH_TRYING_AGAIN else _Hopeless)(text) from error
    except (urllib.error.URLError, http.client.HTTPException, TimeoutError, ConnectionError, ssl.SSLError) as error:
        reason = getattr(error, "reason", "") or error
        is_hopeless = isinstance(reason, (ssl.SSLCertVerificationError, http.client.InvalidURL))
        raise (_Hopeless if is_hopeless else _Unlucky)(one_line(str(reason) or type(error).__name__)) from error
    except ValueError as error:  # from deep in urllib: an address or a header that is none
        raise _Hopeless(one_line(f"the server's answer makes no sense: {error}"[:_MAX_CHARACTERS])) from error


def _receive(answer: Any, have: int, file: File, part: Path, tell: Tell) -> None:
    """Appends the body to what we have, or begins afresh if the server sends the file whole."""
    begin, length = have if answer.status == 206 else 0, answer.headers.get("Content-Length", "")
    total = begin + int(length) if length.isdecimal() else 0
    if file.num_bytes and total and total != file.num_bytes:
        raise _Hopeless(f"the server has {total:,} bytes, expected {file.num_bytes:,}: not the file it was")
    if begin == 0:
        part.unlink(missing_ok=True)
    have, total = begin, total or file.num_bytes
    free = shutil.disk_usage(part.parent).free
    if total - have > free:
        found = f"{free:,} bytes are free, the rest of {file.path} takes {total - have:,}; make room"
        raise DataError(str(part.parent), found)
    tell(have, total)
    # Another user may have planted a link of that name: O_NOFOLLOW raises OSError.
    handle = os.open(part, os.O_CREAT | os.O_WRONLY | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666)
    with open(handle, "ab") as stream:
        while have <= (total or _MAX_BYTES) and (chunk := answer.read(_CHUNK_BYTES)):
            stream.write(chunk)
            have += len(chunk)
            tell(have, total)
    if have > (total or _MAX_BYTES):
        part.unlink()
        raise _Hopeless(f"the server sends more than the {total or _MAX_BYTES:,} bytes there should be")
    if have < total:
        raise _Unlucky(f"the connection broke after {have:,} of {total:,} bytes")


def kept(data_dir: Path, file: File) -> str:
    """A line about what an interrupted download left, empty if nothing."""
    part = part_of(data_dir / file.path)
    return f"{_size(part):,} bytes are kept in {part}" if _size(part) and file.checksum else ""
