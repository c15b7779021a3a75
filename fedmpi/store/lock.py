"""One run at a time in a run directory.

A run holds `flock` on `.lock` for as long as it lives; the kernel releases it when the process ends, on whatever node.
The file also holds a note that names the holder: for the message to a second run, for commands that only look, and for
file systems without locks, where the note decides. The file stays when the run ends; an empty one is free.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import socket
import time
from dataclasses import asdict, dataclass

import psutil

from fedmpi.errors import RunDirError
from fedmpi.store.files import MISSING, open_file, reading, writing
from fedmpi.store.run_dir import RunDir

# Far above a heartbeat, far below the patience of a user whose node has died.
STALE_AFTER_S = 600.0
_BEAT_EVERY_S = 1.0
_LONGEST_NOTE_BYTES = 4096


@dataclass(frozen=True)
class _Holder:
    """A process that holds a run directory."""

    host: str
    pid: int
    started_s: float
    """When the process started, in seconds since 1970: tells it from a later process with the same pid."""

    def may_live(self, silent_s: float, patience_s: float) -> bool:
        """Returns whether the process still runs; one on another host does for `patience_s` after its heartbeat."""
        if self.host != socket.gethostname():
            return silent_s <= patience_s
        try:
            process = psutil.Process(self.pid)
            return process.create_time() == self.started_s and process.status() != psutil.STATUS_ZOMBIE
        except psutil.NoSuchProcess:
            return False


class RunLock:
    """Holds a run directory while the block runs.

    >>> with RunLock(run_dir) as lock:
    ...     lock.beat()  # now and then
    """

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
        holder = _holder(self._handle)
        who = f"pid {holder.pid} on {holder.host}" if holder else "another process"
        in_use = f"is in use by {who}; wait for it or take another --run-dir"
        try:
            fcntl.flock(self._handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise RunDirError(str(self._path.parent), in_use) from None
        except OSError:  # a file system without locks
            if holder and holder.may_live(_silent_s(self._handle), STALE_AFTER_S):
                advice = f"if that run is gone, delete {self._path}"
                raise RunDirError(str(self._path.parent), f"{in_use} ({advice})") from None
        me = _Holder(socket.gethostname(), os.getpid(), psutil.Process().create_time())
        os.pwrite(self._handle, json.dumps(asdict(me)).encode().ljust(_LONGEST_NOTE_BYTES), 0)


def is_held(run_dir: RunDir, patience_s: float) -> bool:
    """Returns whether a run holds the directory, as far as a command that only looks can know.

    A process on another host counts as alive for `patience_s` after its last heartbeat. Raises RunDirError if the file
    cannot be read.
    """
    try:
        with reading(run_dir.lock_path), open(open_file(run_dir.lock_path), "rb") as file:
            holder = _holder(file.fileno())
            return holder is not None and holder.may_live(_silent_s(file.fileno()), patience_s)
    except MISSING:
        return False


def _silent_s(handle: int) -> float:
    return time.time() - os.fstat(handle).st_mtime


def _holder(handle: int) -> _Holder | None:
    """Returns the process that the note names; None for an empty, torn or foreign note."""
    try:
        note = json.loads(os.pread(handle, _LONGEST_NOTE_BYTES, 0))
        holder = _Holder(str(note["host"]), int(note["pid"]), float(note["started_s"]))
    except (ValueError, TypeError, KeyError, RecursionError):
        return None
    return holder if holder.pid > 0 else None
