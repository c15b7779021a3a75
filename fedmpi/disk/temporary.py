"""Folders that one process writes into before what is in them is renamed to what others may see, and lock files.

A folder's name holds the host and 16 random digits, so two processes never share one and nobody can plant a link where
it will be. As long as its process lives, it is locked. What a killed process left is removed by the next one that makes
such a folder there: only where the lock is free, which a process on the same host can trust. Of another host's, whose
locks some network file systems do not show, it must also be a day old.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import re
import secrets
import shutil
import socket
import time
from collections.abc import Iterator
from pathlib import Path

from fedmpi.disk import plain

_FOREIGN_AFTER_S = 24 * 3600.0
_TRIES = 100
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


@contextlib.contextmanager
def own_folder(parent: Path, purpose: str) -> Iterator[Path]:
    """An empty folder in `parent`, which only its user may look into; gone at the end. Raises OSError.

    `purpose` is in its name: of a file that is written into it and then renamed, that file's name.
    """
    remove_leftovers(parent, purpose)
    path, handle = _made(parent, purpose)
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)
        os.close(handle)


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    """Only one process at a time is inside, for the lock file `path`, which is gone at the end, however that comes.

    Raises BlockingIOError if another process is inside, OSError if there can be no such file.
    """
    while True:
        handle = plain.open_in_place(path, os.O_RDWR | os.O_CREAT)
        if _lock(path, handle):
            break
    try:
        yield
    finally:
        path.unlink(missing_ok=True)
        os.close(handle)


def remove_leftovers(parent: Path, purpose: str) -> None:
    """Removes folders for this purpose of this user in `parent` whose process is dead. Raises nothing."""
    pattern = re.compile(rf"\.{re.escape(_cut(purpose))}\.(.+)\.[0-9a-f]{{16}}\.partial")
    with contextlib.suppress(OSError):
        for path in sorted(parent.iterdir()):
            if (found := pattern.fullmatch(path.name)) is not None:
                with contextlib.suppress(OSError):
                    _remove_if_left(path, is_of_this_host=found[1] == _host())


def _remove_if_left(path: Path, *, is_of_this_host: bool) -> None:
    handle = os.open(path, _FOLDER)
    try:
        found = os.fstat(handle)
        is_old = is_of_this_host or time.time() - found.st_mtime > _FOREIGN_AFTER_S
        if found.st_uid == os.geteuid() and is_old:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)  # raises OSError while the owner lives
            shutil.rmtree(path)
    finally:
        os.close(handle)


def _made(parent: Path, purpose: str) -> tuple[Path, int]:
    """A new folder and a handle that locks it."""
    for _ in range(_TRIES):
        make_folder(parent)
        path = parent / f".{_cut(purpose)}.{_host()}.{secrets.token_hex(8)}.partial"
        # Another process may remove the parent, or take our folder for left over before it is locked.
        with contextlib.suppress(FileNotFoundError):
            path.mkdir(0o700)
            handle = os.open(path, _FOLDER)
            if _lock(path, handle, wait=True):
                return path, handle
    raise FileNotFoundError(errno.ENOENT, "other processes remove what is made there", str(parent))


def make_folder(folder: Path) -> None:
    """Makes a folder and its parents, even while another process removes empty ones. Raises OSError."""
    for tries_left in reversed(range(_TRIES)):
        try:
            folder.mkdir(parents=True, exist_ok=True)
            return
        except FileNotFoundError:
            if not tries_left:
                raise


def _lock(path: Path, handle: int, *, wait: bool = False) -> bool:
    """Locks the open `path` until the handle is closed; False if it was removed before it was locked.

    Where a file system has no locks it is True, too. Raises BlockingIOError if another process has the lock. The handle
    is closed unless the result is True.
    """
    try:
        fcntl.flock(handle, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(handle)
        raise
    except OSError:
        return True
    with contextlib.suppress(OSError):
        if os.path.samestat(os.stat(path, follow_symlinks=False), os.fstat(handle)):
            return True
    os.close(handle)
    return False


def _cut(name: str) -> str:
    """A name that leaves room for the rest in the 255 bytes that file systems allow."""
    return name.encode()[:150].decode(errors="ignore")


def _host() -> str:
    return re.sub(r"[^\w-]", "-", socket.gethostname())[:40] or "host"
