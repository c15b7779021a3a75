"""Writing a file so that it is either the old one or the new one, whenever the power goes, and saying why not."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from fedmpi.errors import RunDirError
from fedmpi.output.units import size

# What file systems answer that cannot sync a directory; the rename has taken place all the same.
_NO_DIRECTORY_SYNC = frozenset({errno.EINVAL, errno.ENOTSUP, errno.EBADF, errno.EACCES})

VISIBLE_WITHIN_S = 10.0
_LONG_WAIT_S = 1.0

_ADVICE = {
    errno.ENOSPC: "free space there",
    errno.EDQUOT: "delete something of yours there, or ask for a larger quota",
    errno.EFBIG: "the limit on a file's size is too low (ulimit -f)",
    errno.EROFS: "it is read-only now; take a file system that can be written to",
    errno.EACCES: "you may not write there; change its permissions",
    errno.EPERM: "you may not write there; change its permissions",
    errno.ENOENT: "its folder is gone: somebody removed it, or the file system is not mounted any more",
    errno.ESTALE: "the network file system has lost it: somebody removed it, or the server was restarted",
    errno.ENOTDIR: "a file stands where a folder should be",
    errno.EIO: "the disk, or the connection to it, fails",
}


@contextlib.contextmanager
def writing(path: Path, num_bytes: int = 0) -> Iterator[None]:
    """Turns what the operating system answers into a `RunDirError` of one line that names `path`.

    The line says what to do, where that is known, and on a full disk how much is free of the
    `num_bytes` that are to be written (0: unknown).
    """
    try:
        yield
    except OSError as error:
        notes = [_room(path, num_bytes)] if error.errno in (errno.ENOSPC, errno.EDQUOT) else []
        notes += [_ADVICE[error.errno]] if error.errno in _ADVICE else []
        raise RunDirError(str(path), "; ".join([f"cannot be written: {error.strerror or error}", *notes])) from error


def write_atomic(path: Path, *parts: bytes | memoryview) -> None:
    """Write `parts`, one after the other, as the file `path`: temporary file, fsync, rename, fsync of the folder.

    The temporary file has a fixed name, so what a killed process left is overwritten by the next
    one; two processes never write the same file of a run. Raises RunDirError; `path` is then
    what it was before.
    """
    temporary = temporary_of(path)
    with writing(path, sum(memoryview(part).nbytes for part in parts)):
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


def wait_until_visible(path: Path, patience_s: float = VISIBLE_WITHIN_S) -> None:
    """Wait until a file that another node has written is there for this one, too.

    A network file system may answer for some time out of its memory that a file is missing;
    listing the folder makes it ask anew. Returns after `patience_s` at the latest, whether the file
    is there or not: the one who opens it says what is missing. A long wait is a line on stderr.
    """
    begun, pause_s = time.monotonic(), 0.01
    while not path.exists() and (waited_s := time.monotonic() - begun) < patience_s:
        for folder in (path.parent.parent, path.parent):
            with contextlib.suppress(OSError):
                os.listdir(folder)
        time.sleep(min(pause_s, patience_s - waited_s))
        pause_s = min(2 * pause_s, 0.5)
    waited_s = time.monotonic() - begun
    if _LONG_WAIT_S < waited_s < patience_s:
        line = f"warning: {path} was written by another node and was seen here {waited_s:.1f} s later"
        print(line, file=sys.stderr, flush=True)


def temporary_of(path: Path) -> Path:
    return path.with_name(f".{path.name}.tmp")


def is_temporary(path: Path) -> bool:
    return path.name.startswith(".") and path.name.endswith(".tmp")


def _room(path: Path, num_bytes: int) -> str:
    """`needs 1.20 MB, 4.10 kB free`, as far as it is known."""
    parts = [f"needs {size(num_bytes)}"] if num_bytes else []
    with contextlib.suppress(OSError):
        parts.append(f"{size(shutil.disk_usage(path.parent).free)} free")
    return ", ".join(parts) or "how much is free is not known"


def _sync_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    except OSError as error:
        if error.errno not in _NO_DIRECTORY_SYNC:
            raise
    finally:
        os.close(handle)
