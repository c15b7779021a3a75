"""One run at a time in a run directory.

A run holds `flock` on `.lock` for as long as it lives; the kernel releases it when the process ends, on whatever node.
Opening and closing the file elsewhere in the process, to read who holds it, leaves the lock in place. The file also
holds a note that names the holder: for the message to a second run, for commands that only look, and for file systems
without locks, where the note decides. The file stays when the run ends; an empty one is free.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import socket
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import psutil

from fedmpi.errors import RunDirError
from fedmpi.store.files import MISSING, open_file, reading, writing
from fedmpi.store.run_dir import RunDir

# Far above a heartbeat, far below the patience of a user whose node has died.
STALE_AFTER_S = 600.0
_BEAT_EVERY_S = 1.0
_LONGEST_NOTE_BYTES = 4096


@dataclass(frozen=True)
class Holder:
    """A process that holds a run directory."""

    host: str
    pid: int
    started_s: float
    """When the process started, in seconds since 1970: tells it from a later process with the same pid."""

    @classmethod
    def this_process(cls) -> Holder:
        return cls(socket.gethostname(), os.getpid(), psutil.Process().create_time())

    @property
    def is_local(self) -> bool:
        return self.host == socket.gethostname()

    def may_live(self, silent_s: float, patience_s: float) -> bool:
        """Returns whether the process still runs; one on another host does for `patience_s` after its heartbeat."""
        if not self.is_local:
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
        self._run_dir = run_dir
        self._path = run_dir.lock_path
        self._me = Holder.this_process()
        self._handle = -1
        self._beaten_s = time.monotonic()

    def __enter__(self) -> RunLock:
        """Raises RunDirError if another run holds the directory."""
        with writing(self._path):
            self._take()
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(OSError):
            if _read(self._handle) == self._me:
                os.ftruncate(self._handle, 0)
        self._close()

    def beat(self) -> None:
        """Calls `refresh`, but once a second at most: may be called at any time."""
        if time.monotonic() - self._beaten_s >= _BEAT_EVERY_S:
            self.refresh()

    def refresh(self) -> None:
        """Marks the file as fresh, for commands on other hosts; takes a deleted lock again.

        Raises RunDirError if another run has taken it (somebody deleted the file). An error of the file system, such as
        a run directory that is gone, shows when the run writes its next file.
        """
        self._beaten_s = time.monotonic()
        with contextlib.suppress(OSError):
            if not self._is_in_place() and self._run_dir.holds_run():
                self._close()
                self._take()
            os.utime(self._handle)

    def _is_in_place(self) -> bool:
        """Returns whether `.lock` is still the file that this run has locked."""
        try:
            return os.path.samestat(os.lstat(self._path), os.fstat(self._handle))
        except OSError:
            return False

    def _take(self) -> None:
        self._handle = open_file(self._path, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            self._lock()
        except BaseException:
            self._close()
            raise

    def _lock(self) -> None:
        holder = _read(self._handle)
        try:
            fcntl.flock(self._handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise _in_use(self._path, holder) from None
        except OSError:  # a file system without locks
            silent_s = time.time() - os.fstat(self._handle).st_mtime
            if holder not in (None, self._me) and holder.may_live(silent_s, STALE_AFTER_S):
                raise _in_use(self._path, holder, f" (if that run is gone, delete {self._path})") from None
        os.pwrite(self._handle, json.dumps(asdict(self._me)).encode().ljust(_LONGEST_NOTE_BYTES), 0)

    def _close(self) -> None:
        with contextlib.suppress(OSError):
            os.close(self._handle)
        self._handle = -1


def seen(run_dir: RunDir, patience_s: float) -> tuple[Holder, bool] | None:
    """Returns the process that the lock names and whether it lives, as far as a command that only looks can know.

    A process on another host counts as alive for `patience_s` after its last heartbeat. None if the lock names nobody.
    Raises RunDirError if the file cannot be read.
    """
    try:
        with reading(run_dir.lock_path), open(open_file(run_dir.lock_path), "rb") as file:
            holder = _read(file.fileno())
            silent_s = time.time() - os.fstat(file.fileno()).st_mtime
    except MISSING:
        return None
    return None if holder is None else (holder, holder.may_live(silent_s, patience_s))


def _in_use(path: Path, holder: Holder | None, advice: str = "") -> RunDirError:
    who = f"pid {holder.pid} on {holder.host}" if holder else "another process"
    return RunDirError(str(path.parent), f"is in use by {who}; wait for it or take another --run-dir{advice}")


def _read(handle: int) -> Holder | None:
    """Returns the holder that the note names; None for an empty, torn or foreign note."""
    try:
        note = json.loads(os.pread(handle, _LONGEST_NOTE_BYTES, 0))
        holder = Holder(str(note["host"]), int(note["pid"]), float(note["started_s"]))
    except (ValueError, TypeError, KeyError, RecursionError):
        return None
    return holder if holder.pid > 0 else None
