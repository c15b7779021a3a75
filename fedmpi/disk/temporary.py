"""Files and folders that one process writes into before they are renamed to what others may see.

A name holds the host and 16 random digits, and is made with O_EXCL, so two processes never share one and nobody can
plant a link where it will be. As long as its process lives, it is locked. What a killed process left is removed by the
next one that makes such a temporary in that folder: only where the lock is free, which a process on the same host can
trust. Of another host's, whose locks some network file systems do not show, it must also be a day old.
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
import stat
import time
from collections.abc import Iterator
from pathlib import Path

from fedmpi.disk import plain

_FOREIGN_AFTER_S = 24 * 3600.0
_TRIES = 100


@contextlib.contextmanager
def own_file(target: Path) -> Iterator[Path]:
    """An empty file beside `target`, to be renamed to it; gone at the end if it was not. Raises OSError."""
    remove_leftovers(target.parent, target.name)
    path, handle = _made(target.parent, target.name, is_folder=False)
    try:
        yield path
    finally:
        path.unlink(missing_ok=True)
        os.close(handle)


@contextlib.contextmanager
def own_folder(parent: Path, purpose: str) -> Iterator[Path]:
    """An empty folder in `parent`, which only its user may look into; gone at the end. Raises OSError."""
    remove_leftovers(parent, purpose)
    path, handle = _made(parent, purpose, is_folder=True)
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
        if lock(path, handle):
            break
    try:
        yield
    finally:
        path.unlink(missing_ok=True)
        os.close(handle)


def remove_leftovers(folder: Path, name: str) -> None:
    """Removes temporaries of this name and this user in `folder` whose process is dead. Raises nothing."""
    pattern = re.compile(rf"\.{re.escape(_cut(name))}\.(.+)\.[0-9a-f]{{16}}\.partial")
    with contextlib.suppress(OSError):
        for path in sorted(folder.iterdir()):
            if (found := pattern.fullmatch(path.name)) is not None:
                with contextlib.suppress(OSError):
                    _remove_if_left(path, is_of_this_host=found[1] == _host())


def _remove_if_left(path: Path, *, is_of_this_host: bool) -> None:
    # O_NONBLOCK: a pipe of such a name must not be waited for.
    handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        found = os.fstat(handle)
        is_old = is_of_this_host or time.time() - found.st_mtime > _FOREIGN_AFTER_S
        if found.st_uid != os.geteuid() or not is_old:
            return
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)  # raises OSError while the owner lives
        if stat.S_ISREG(found.st_mode):
            path.unlink()
        elif stat.S_ISDIR(found.st_mode):
            shutil.rmtree(path)
    finally:
        os.close(handle)


def _made(folder: Path, name: str, *, is_folder: bool) -> tuple[Path, int]:
    """A new temporary and a handle that locks it."""
    flags = os.O_RDONLY | os.O_DIRECTORY if is_folder else os.O_RDWR | os.O_CREAT | os.O_EXCL
    for _ in range(_TRIES):
        make_folder(folder)
        path = folder / _new_name(name)
        # Another process may remove the folder, or take our temporary for left over before it is locked.
        with contextlib.suppress(FileNotFoundError):
            if is_folder:
                path.mkdir(0o700)
            handle = os.open(path, flags | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666)
            if lock(path, handle, wait=True):
                return path, handle
    raise FileNotFoundError(errno.ENOENT, "other processes remove what is made there", str(folder))


def make_folder(folder: Path) -> None:
    """Makes a folder and its parents, even while another process removes empty ones. Raises OSError."""
    for tries_left in reversed(range(_TRIES)):
        try:
            folder.mkdir(parents=True, exist_ok=True)
            return
        except FileNotFoundError:
            if not tries_left:
                raise


def lock(path: Path, handle: int, *, wait: bool = False) -> bool:
    """Locks the open file `path` until the handle is closed; False if it was removed before it was locked.

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


def _new_name(name: str) -> str:
    return f".{_cut(name)}.{_host()}.{secrets.token_hex(8)}.partial"


def _cut(name: str) -> str:
    """A name that leaves room for the rest in the 255 bytes that file systems allow."""
    return name.encode()[:150].decode(errors="ignore")


def _host() -> str:
    return re.sub(r"[^\w-]", "-", socket.gethostname())[:40] or "host"
