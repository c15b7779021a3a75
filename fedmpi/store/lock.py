"""One run at a time in a run directory.

A run holds `flock` on `.lock` for as long as it lives; the kernel releases it when the process ends, on whatever node.
The file also holds a note that names the holder: for the message to a second run, for commands that only look, and for
file systems without locks, where the note decides. The file stays when the run ends; an empty one is free.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import math
import os
import socket
import time

import psutil

from fedmpi.errors import RunDirError
from fedmpi.store.files import open_file, reading, writing
from fedmpi.store.run_dir import RunDir

# Far above a heartbeat, far below the patience of a user whose node has died.
STALE_AFTER_S = 600.0
_BEAT_EVERY_S = 1.0
_LONGEST_NOTE_BYTES = 4096


class RunLock:
    """Holds a run directory while the block runs, which calls `beat` now and then."""

    def __init__(self, run_dir: RunDir) -> None:
        self._path = run_dir.lock_path
        self._handle = -1
        self._beaten_s = time.monotonic()

    def __enter__(self) -> RunLock:
        """Raises RunDirError if another run holds the directory."""
        with writing(self._path):
            self._handle = open_file(self._path, os.O_RDWR | os.O_CREAT, 0o644)
            try:
                self._take()
            except BaseException:
                os.close(self._handle)
                raise
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(OSError):
            os.ftruncate(self._handle, 0)
        with contextlib.suppress(OSError):
            os.close(self._handle)

    def beat(self) -> None:
        """Marks the file as fresh for commands on other hosts, once a second at most: may be called at any time."""
        if time.monotonic() - self._beaten_s >= _BEAT_EVERY_S:
            self._beaten_s = time.monotonic()
            with contextlib.suppress(OSError):
                os.utime(self._handle)

    def _take(self) -> None:
        holder = ""
        try:
            fcntl.flock(self._handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = _living_holder(self._handle, math.inf) or "another process"
        except OSError:  # a file system without locks
            if holder := _living_holder(self._handle, STALE_AFTER_S):
                holder = f"{holder} (if that run is gone, delete {self._path})"
        if holder:
            in_use = f"is in use by {holder}; wait for it or take another --run-dir"
            raise RunDirError(str(self._path.parent), in_use)
        note = {"host": socket.gethostname(), "pid": os.getpid(), "started_s": psutil.Process().create_time()}
        os.pwrite(self._handle, json.dumps(note).encode().ljust(_LONGEST_NOTE_BYTES), 0)


def is_held(run_dir: RunDir, patience_s: float) -> bool:
    """Returns whether a run holds the directory, as far as a command that only looks can know: a process on another
    host does for `patience_s` after its last heartbeat. Raises RunDirError.
    """
    with reading(run_dir.lock_path), open(open_file(run_dir.lock_path), "rb") as file:
        return bool(_living_holder(file.fileno(), patience_s))
    return False


def _living_holder(handle: int, patience_s: float) -> str:
    """Returns `pid 7 on a`, the process that the note names; '' if it is dead, and for a torn or foreign note."""
    try:
        note = json.loads(os.pread(handle, _LONGEST_NOTE_BYTES, 0))
        host = str(note["host"])
        pid = int(note["pid"])
        if host == socket.gethostname():
            process = psutil.Process(pid)
            # A later process with the same pid has started at another time.
            lives = process.create_time() == note["started_s"] and process.status() != psutil.STATUS_ZOMBIE
        else:
            lives = time.time() - os.fstat(handle).st_mtime <= patience_s
    except (ValueError, TypeError, KeyError, RecursionError, psutil.NoSuchProcess):
        return ""
    return f"pid {pid} on {host}" if lives else ""
