"""Files of a run: written whole or not at all, read within bounds, and errors in one line that says what to do.

`fedmpi.disk.plain` opens them; what it refuses (links, pipes, devices) is a `RunDirError` here.
"""

from __future__ import annotations

import contextlib
import errno
import json
import math
import os
import shutil
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from fedmpi.disk.plain import read_bytes, replacing
from fedmpi.errors import RunDirError, reason
from fedmpi.store.units import size

MOST_BYTES = 64 * 2**20
"""A manifest has some 100 bytes a rank and start; every other file of a run that is read at once is smaller."""
MISSING = (FileNotFoundError, NotADirectoryError)
"""What opening a file raises where there is none, and where its folder is none."""
VISIBLE_WITHIN_S = 10.0
_LONG_WAIT_S = 1.0

_ADVICE = {
    errno.ENOSPC: "free space there",
    errno.EDQUOT: "delete something of yours there, or ask for a larger quota",
    errno.EFBIG: "the limit on a file's size is too low (ulimit -f)",
    errno.EROFS: "it is read-only now; take a file system that can be written to",
    errno.EACCES: "you may not write there; change its permissions",
    errno.EPERM: "you may not write there; change its permissions",
    errno.ENOENT: "its folder is gone: it was removed, or the file system is not mounted any more",
    errno.ESTALE: "the network file system has lost it: it was removed, or the server was restarted",
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
        notes = [_of_the_kernel(path)]
        if not any(notes):
            notes = [reason(error)]
            notes += [_room(path, num_bytes)] if error.errno in (errno.ENOSPC, errno.EDQUOT) else []
            notes += [_ADVICE[error.errno]] if error.errno in _ADVICE else []
        raise RunDirError(str(path), f"cannot be written: {'; '.join(notes)}") from error


def make_folder(path: Path) -> Path:
    """The folder `path`, made with its parents where it is not there. Raises RunDirError."""
    with writing(path):
        path.mkdir(parents=True, exist_ok=True)
    return path


def write_atomic(path: Path, *parts: bytes | memoryview) -> None:
    """Write `parts`, one after the other, as the file `path`: temporary file, fsync, rename, fsync of the folder.

    Raises RunDirError; `path` is then what it was before. What a killed process leaves is deleted by the next start
    of the run (`RunDir.clear_temporaries`).
    """
    with writing(path, sum(memoryview(part).nbytes for part in parts)), replacing(path) as file:
        for part in parts:
            file.write(part)


def write_text(path: Path, text: str) -> None:
    """`write_atomic` of UTF-8 text."""
    write_atomic(path, text.encode())


@contextlib.contextmanager
def reading(path: Path) -> Iterator[None]:
    """Turns what the operating system answers into a `RunDirError` of one line; a missing file raises `MISSING`."""
    try:
        yield
    except MISSING:
        raise
    except OSError as error:
        raise RunDirError(str(path), f"cannot be read: {reason(error)}") from error


def read_whole(path: Path, most_bytes: int = MOST_BYTES) -> bytes | None:
    """What a file has; None if there is none. Raises RunDirError: a pipe, a device, longer than `most_bytes`, ..."""
    try:
        with reading(path):
            return read_bytes(path, most_bytes)
    except MISSING:
        return None


def read_json(path: Path, most_bytes: int = MOST_BYTES) -> Any:
    """The value in a file of JSON; None if there is none, or if the text is no JSON. Raises RunDirError."""
    try:
        return json.loads(read_whole(path, most_bytes) or b"null")
    except (ValueError, RecursionError):
        return None


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
        line = f"warning: {path}\n  was written by another node and was seen here {waited_s:.1f} s later"
        print(line, file=sys.stderr, flush=True)


def _of_the_kernel(path: Path) -> str:
    """What to do below /proc and the like, where no file can be made; empty elsewhere."""
    folder = next((folder for folder in path.absolute().parents if folder.exists()), path)
    with contextlib.suppress(OSError):
        if os.statvfs(folder).f_blocks == 0:
            return f"{folder} is the kernel's own and holds no files of others; take a folder elsewhere"
    return ""


def _room(path: Path, num_bytes: int) -> str:
    """`needs 1.20 MB, 4.10 kB free`, as far as it is known."""
    parts = [f"needs {size(num_bytes)}"] if num_bytes else []
    with contextlib.suppress(OSError):
        parts.append(f"{size(shutil.disk_usage(path.parent).free)} free")
    return ", ".join(parts) or "how much is free is not known"


def json_safe(value: Any) -> Any:
    """`value` with NaN and infinities as null, tuples as lists, keys as strings and 0-dim arrays as numbers."""
    if isinstance(value, Mapping):
        return {str(key): json_safe(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [json_safe(item) for item in value]
    if hasattr(value, "item"):
        return json_safe(value.item())
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
