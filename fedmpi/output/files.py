"""Writing a file so that it is either the old one or the new one, whenever the power goes."""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterator
from pathlib import Path

from fedmpi.errors import RunDirError

# What file systems answer that cannot sync a directory; the rename has taken place all the same.
_NO_DIRECTORY_SYNC = frozenset({errno.EINVAL, errno.ENOTSUP, errno.EBADF, errno.EACCES})


@contextlib.contextmanager
def writing(path: Path) -> Iterator[None]:
    """Turns what the operating system answers into a `RunDirError` of one line that names `path`."""
    try:
        yield
    except OSError as error:
        raise RunDirError(str(path), f"cannot be written: {error.strerror or error}") from error


def write_atomic(path: Path, *parts: bytes | memoryview) -> None:
    """Write `parts`, one after the other, as the file `path`: temporary file, fsync, rename, fsync of the folder.

    The temporary file has a fixed name, so what a killed process left is overwritten by the next
    one; two processes never write the same file of a run. Raises RunDirError; `path` is then
    what it was before.
    """
    temporary = temporary_of(path)
    with writing(path):
        try:
            with open(temporary, "wb") as file:
                for part in parts:
                    file.write(part)
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, path)
        except BaseException:
            with contextlib.suppress(OSError):
                temporary.unlink()
            raise
        _sync_folder(path.parent)


def write_text(path: Path, text: str) -> None:
    """`write_atomic` of UTF-8 text."""
    write_atomic(path, text.encode())


def temporary_of(path: Path) -> Path:
    return path.with_name(f".{path.name}.tmp")


def is_temporary(path: Path) -> bool:
    return path.name.startswith(".") and path.name.endswith(".tmp")


def _sync_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    except OSError as error:
        if error.errno not in _NO_DIRECTORY_SYNC:
            raise
    finally:
        os.close(handle)
