"""Folders as a user names them, and those that are made to write into and are gone again if nothing lies there."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

from fedmpi.disk import temporary


def below_home(folder: str) -> Path:
    """A leading ~ or ~user is that home folder. An unknown user's stays, as a folder that is missing."""
    return Path(os.path.expanduser(folder))


@contextlib.contextmanager
def made(folder: Path) -> Iterator[None]:
    """Makes a folder and its parents; those that are new and empty at the end are removed. Raises OSError."""
    missing = [place for place in (folder, *folder.parents) if not place.exists()]
    try:
        temporary.make_folder(folder)
        yield
    finally:
        with contextlib.suppress(OSError):  # not empty: then its parents are not, either
            for place in missing:
                place.rmdir()
