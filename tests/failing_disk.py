"""A small disk, and a way to fill it."""

import errno
import itertools
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest


@contextmanager
def small_disk(folder: Path, size: str) -> Iterator[Path]:
    """A file system of its own, so small; skips the test where one may not be mounted."""
    folder.mkdir()
    words = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder)]
    try:
        subprocess.run(words, check=True, capture_output=True, timeout=600)
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"no small file system may be mounted here: {error}")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True, timeout=600)


def fill(disk: Path) -> Path:
    """Writes until nothing more goes there; the file to delete for room."""
    filler = disk / "filler"
    with open(filler, "ab", buffering=0) as file:
        for num_bytes in (65536, 4096, 1):
            with pytest.raises(OSError, match=os.strerror(errno.ENOSPC)):
                file.writelines(itertools.repeat(b"x" * num_bytes))
    return filler
