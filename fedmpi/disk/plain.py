"""Opening, making and deleting files in folders that other people may write to, too.

A shared run directory can hold a planted symbolic link, a named pipe or a device under a name that fedmpi uses. So
every file there is made, changed and read through this module: only regular files are opened, opening never waits,
what is written never goes through a link, and what is read is bounded. A *folder* may be a link: many users link
`runs` to a larger disk.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import secrets
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

DIGEST_BYTES = 16
"""Of every digest of contents: 128 bits, against accidents, not against forgers, who could write any digest."""

# What file systems answer that cannot sync a directory; the rename has taken place all the same.
_NO_DIRECTORY_SYNC = frozenset({errno.EINVAL, errno.ENOTSUP, errno.EBADF, errno.EACCES})
_TEMPORARY = re.compile(r"\.(.+)\.[0-9a-f]{16}\.tmp")
_KINDS = {
    stat.S_IFLNK: "a symbolic link",
    stat.S_IFDIR: "a directory",
    stat.S_IFIFO: "a named pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}


class NotPlainError(OSError):
    """Something else than a regular file has the name; `kind` says what: "a named pipe"."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        if kind == _KINDS[stat.S_IFDIR]:
            super().__init__(errno.EISDIR, os.strerror(errno.EISDIR))
        else:
            super().__init__(errno.EINVAL, f"{kind} has this name, not a regular file; remove it")


class LinkedError(OSError):
    """The file has a second name (a hard link), and what is written here would change that file, too."""

    def __init__(self) -> None:
        super().__init__(errno.EMLINK, "the file has another name, too (a hard link); replace it by a copy")


class TooLongError(OSError):
    """The file, or a line of it, is longer than any that fedmpi writes."""

    def __init__(self, what: str, most_bytes: int) -> None:
        super().__init__(errno.EFBIG, f"{what} has more than {most_bytes:,} bytes, which no such file of fedmpi has")


def open_to_read(path: str | Path) -> BinaryIO:
    """A regular file, or a link to one, for reading. Raises OSError."""
    return open(_opened(path, os.O_RDONLY, follow=True), "rb")


def open_in_place(path: str | Path, flags: int, mode: int = 0o666) -> int:
    """The handle of a regular file that is changed where it is: neither through a link nor under two names.

    `flags` are those of `os.open`; with O_CREAT an absent file is made. Raises OSError.
    """
    handle = _opened(path, flags, follow=False, mode=mode)
    if os.fstat(handle).st_nlink > 1:
        os.close(handle)
        raise LinkedError
    return handle


def _opened(path: str | Path, flags: int, *, follow: bool, mode: int = 0o666) -> int:
    with contextlib.suppress(FileNotFoundError):  # looked at first, because to open a device may have effects
        _check(os.stat(path, follow_symlinks=follow))
    more = os.O_NONBLOCK | os.O_NOCTTY | (0 if follow else os.O_NOFOLLOW)
    try:
        handle = os.open(path, flags | more, mode)
    except OSError as error:
        if error.errno == errno.ELOOP and not follow:
            raise NotPlainError(_KINDS[stat.S_IFLNK]) from None
        raise
    try:
        _check(os.fstat(handle))
    except BaseException:
        os.close(handle)
        raise
    return handle


def _check(found: os.stat_result) -> None:
    if not stat.S_ISREG(found.st_mode):
        raise NotPlainError(_KINDS.get(stat.S_IFMT(found.st_mode), "something unknown"))


def read_bytes(path: str | Path, most_bytes: int) -> bytes:
    """All of a file of at most `most_bytes`. Raises OSError, `TooLongError` for a longer one."""
    with open_to_read(path) as file:
        content = file.read(most_bytes + 1) or b""  # None where a file of /proc has nothing to say yet
    if len(content) > most_bytes:
        raise TooLongError("it", most_bytes)
    return content


def read_lines(path: str | Path, most_bytes: int) -> Iterator[bytes]:
    """Its lines, one after the other. Raises OSError, `TooLongError` for a line of more than `most_bytes`."""
    with open_to_read(path) as file:
        while line := file.readline(most_bytes + 1):
            if len(line) > most_bytes:
                raise TooLongError("a line of it", most_bytes)
            yield line


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """A new file (for writing, reading and seeking) that takes the name `path` when the block ends without an error.

    It is made under a name that nobody can guess and that no link can have, then synced and renamed, all within the
    folder as it was opened at the beginning. Of several that replace the same file, the last one to end stays. Raises
    OSError; `path` is then what it was, and nothing else is left.
    """
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        name = temporary_name(path.name)
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
        handle = os.open(name, flags, 0o666, dir_fd=folder)
        try:
            with open(handle, "w+b") as file:
                yield file
                file.flush()
                os.fsync(file.fileno())
            os.replace(name, path.name, src_dir_fd=folder, dst_dir_fd=folder)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(name, dir_fd=folder)
            raise
        _sync(folder)
    finally:
        os.close(folder)


def temporary_name(name: str) -> str:
    """A new one for the file that is to become `name`."""
    return f".{name}.{secrets.token_hex(8)}.tmp"


def becomes(name: str) -> str:
    """What a temporary file of this name was to become; empty for a name that `temporary_name` does not give."""
    match = _TEMPORARY.fullmatch(name)
    return match[1] if match else ""


def remove(path: Path) -> bool:
    """Deletes a regular file; whether it did. Anything else with that name stays."""
    with contextlib.suppress(OSError):
        if stat.S_ISREG(os.lstat(path).st_mode):
            os.unlink(path)
            return True
    return False


def _sync(folder: int) -> None:
    try:
        os.fsync(folder)
    except OSError as error:
        if error.errno not in _NO_DIRECTORY_SYNC:
            raise
