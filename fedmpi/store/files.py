"""Files of a run: opened without waiting, written whole or not at all; an error is one line that says what to do.

Others may write to a shared run directory, too: only regular files are opened, nothing is written through a symbolic
link, and what is read is bounded. A folder may be a link: many users link `runs` to a larger disk.
"""

import contextlib
import errno
import json
import os
import secrets
import shutil
import stat
from collections.abc import Iterator
from operator import methodcaller
from pathlib import Path
from typing import Any

from pydantic_core import to_jsonable_python

from fedmpi.errors import RunDirError, reason
from fedmpi.store.units import size

DIGEST_BYTES = 16
"""The length of each digest of contents: 128 bits, against accidents, not against forgers."""
MOST_BYTES = 64 * 2**20
"""A manifest has some 100 bytes a rank and start; every other file of a run that is read at once is smaller."""

_ADVICE = {
    errno.ENOSPC: "free space there",
    errno.EDQUOT: "delete something of yours there, or ask for a larger quota",
    errno.EROFS: "it is read-only now; take a file system that can be written to",
    errno.EACCES: "you may not write there; change its permissions",
    errno.EPERM: "you may not write there; change its permissions",
    errno.ENOENT: "its folder is gone, or its file system takes no new files; name another",
    errno.ENOTDIR: "a file stands where a folder should be",
    errno.EEXIST: "a symbolic link whose target is missing has its name; remove it",
    errno.ELOOP: "a symbolic link has its name; remove it",
}


def user_path(path: str | os.PathLike[str]) -> str:
    """Returns a user's path with a leading ~ or ~user replaced by that home folder. Raises ValueError without one."""
    text = os.fspath(path)
    expanded = os.path.expanduser(text)
    if expanded.startswith("~"):
        raise ValueError(f"there is no home folder {text.partition('/')[0]}; a file of that name is ./{text}")
    return expanded


def open_file(path: str | Path, flags: int = os.O_RDONLY, mode: int = 0o666) -> int:
    """Opens a regular file as `os.open` does; waits for no pipe, and to write follows no symbolic link."""
    if flags & (os.O_WRONLY | os.O_RDWR):
        flags |= os.O_NOFOLLOW
    handle = os.open(path, flags | os.O_NONBLOCK | os.O_NOCTTY, mode)
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise OSError(errno.EINVAL, "something else than a regular file has its name")
    return handle


def read_bytes(path: str | Path, most_bytes: int = MOST_BYTES) -> bytes:
    """Reads a file of at most `most_bytes`. Raises OSError, also for a longer one."""
    with open(open_file(path), "rb") as file:
        content = file.read(most_bytes + 1) or b""  # None where a file of /proc has nothing to say yet
    if len(content) > most_bytes:
        raise OSError(errno.EFBIG, f"it has more than {most_bytes:,} bytes, which no such file of fedmpi has")
    return content


def remove(path: Path) -> None:
    """Deletes a regular file; anything else with that name stays."""
    with contextlib.suppress(OSError):
        if stat.S_ISREG(path.lstat().st_mode):
            path.unlink()


@contextlib.contextmanager
def writing(path: Path) -> Iterator[None]:
    """Turns an OSError into a `RunDirError` of one line: path, reason, what is free on a full disk, what to do."""
    try:
        yield
    except OSError as error:
        notes = [reason(error)]
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            with contextlib.suppress(OSError):
                notes.append(f"{size(shutil.disk_usage(path.parent).free)} free")
        if error.errno in _ADVICE:
            notes.append(_ADVICE[error.errno])
        raise RunDirError(str(path), f"cannot be written: {'; '.join(notes)}") from error


def make_folder(path: Path) -> Path:
    """Makes the folder `path`, with its parents, where it is not there. Raises RunDirError."""
    with writing(path):
        path.mkdir(parents=True, exist_ok=True)
    return path


def write_atomic(path: Path, content: bytes | memoryview) -> None:
    """Writes the file `path` whole or not at all: under a name that nobody can guess, synced, then renamed. Raises
    RunDirError. A killed process leaves a temporary file, which the next start of the run deletes.
    """
    with writing(path):
        temporary = path.with_name(f".{path.name}.{secrets.token_hex(8)}.tmp")
        try:
            with open(temporary, "xb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, path)
        except BaseException:
            remove(temporary)
            raise
        folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
        with contextlib.suppress(OSError):  # a file system that cannot sync a folder has renamed all the same
            os.fsync(folder)
        os.close(folder)


def write_text(path: Path, text: str) -> None:
    """Writes UTF-8 text as `write_atomic` does."""
    write_atomic(path, text.encode())


@contextlib.contextmanager
def reading(path: Path) -> Iterator[None]:
    """Turns an OSError into a `RunDirError` of one line; just ends the block where there is no such file."""
    try:
        yield
    except (FileNotFoundError, NotADirectoryError):
        pass
    except OSError as error:
        raise RunDirError(str(path), f"cannot be read: {reason(error)}") from error


def read_whole(path: Path) -> bytes | None:
    """Reads a file; returns None if there is none. Raises RunDirError."""
    with reading(path):
        return read_bytes(path)
    return None


def read_json(path: Path) -> Any:
    """Reads a file of JSON; returns None if there is none, or if the text is no JSON. Raises RunDirError."""
    try:
        return json.loads(read_whole(path) or b"null")
    except (ValueError, RecursionError):
        return None


def json_safe(value: Any) -> Any:
    """Returns `value` with NaN and infinities as None, tuples as lists, keys as texts, numbers of numpy as Python's."""
    return to_jsonable_python(value, inf_nan_mode="null", fallback=methodcaller("item"))
