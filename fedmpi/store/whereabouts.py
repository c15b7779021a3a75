"""What has become of a run directory that is no longer where it was: removed, moved, replaced or emptied."""

from __future__ import annotations

import contextlib
import os
import sys
from pathlib import Path

from fedmpi.errors import FAILED, RunDirError


class GoneError(RunDirError):
    """The run directory is gone; `for_good` says that no mount and no `mv` brings it back, `moved_to` where it is now
    (empty where that is not known).
    """

    exit_code = FAILED  # whichever step of the run meets it: a failure on the way, no mistake in what was asked for

    def __init__(self, folder: Path, problem: str, *, for_good: bool = False, moved_to: str = "") -> None:
        self.for_good, self.moved_to = for_good, moved_to
        super().__init__(str(folder), problem)


def gone(folder: Path, handle: int) -> GoneError | None:
    """Why `folder`, which was opened as `handle`, is gone; None if it is there, or if the file system does not say."""
    held = _status(handle)
    try:
        found = os.stat(folder)
    except (FileNotFoundError, NotADirectoryError):
        found = None
    except OSError:
        return None
    if held is not None and found is not None and found.st_ino == held.st_ino:
        return None
    if held is not None and held.st_nlink == 0:
        again = "; another one has its name now" if found is not None else ""
        problem = f"the run directory was removed while the run used it{again}"
        return GoneError(folder, f"{problem}; begin again in another --run-dir", for_good=True)
    again = "something else has its name now; " if found is not None else ""
    if place := _place_of(handle):
        return GoneError(folder, f"{again}the run directory was moved to {place}", moved_to=place)
    problem = "was moved, or its file system is not mounted any more; bring it back, then resume"
    return GoneError(folder, f"{again}the run directory {problem}")


def emptied(folder: Path) -> GoneError:
    problem = "what was in the run directory was removed while the run used it; begin again in another --run-dir"
    return GoneError(folder, problem, for_good=True)


def _status(handle: int) -> os.stat_result | None:
    try:
        return os.fstat(handle)
    except OSError:  # a network file system no longer knows it
        return None


def _place_of(handle: int) -> str:
    """Where it is now; empty where the kernel does not tell that."""
    place = ""
    if sys.platform == "linux":
        with contextlib.suppress(OSError):
            place = os.readlink(f"/proc/self/fd/{handle}")
    return place if os.path.isdir(place) else ""
