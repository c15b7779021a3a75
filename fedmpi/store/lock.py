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
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import psutil

from fedmpi.disk.plain import LinkedError, NotPlainError, open_in_place, open_to_read
from fedmpi.errors import RunDirError, reason
from fedmpi.store import whereabouts
from fedmpi.store.files import MISSING, reading, writing
from fedmpi.store.run_dir import RunDir

# Far above a heartbeat a round, far below the patience of a user whose node has died.
STALE_AFTER_S = 600.0
_BEAT_EVERY_S = 10.0
_LOOK_EVERY_S = 1.0
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

    def runs_here(self) -> bool:
        """Returns whether this process still runs on this host. One that has ended and was not yet waited for does
        not."""
        try:
            process = psutil.Process(self.pid)
            return process.create_time() == self.started_s and process.status() != psutil.STATUS_ZOMBIE
        except psutil.NoSuchProcess:
            return False


class RunLock:
    """Holds a run directory while the block runs, and notices when the directory is gone.

    >>> with RunLock(run_dir) as lock:
    ...     lock.refresh()  # once a round
    """

    def __init__(
        self,
        run_dir: RunDir,
        *,
        warn: Callable[[str], None] = lambda line: None,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._run_dir = run_dir
        self._path = run_dir.lock_path
        self._me = Holder.this_process()
        self._warn = warn
        self._now = now
        self._handle = -1
        self._folder = -1
        self._beaten_s = now()
        self._looked_s = self._beaten_s
        self._holds_run = False

    def __enter__(self) -> RunLock:
        """Raises RunDirError if another run holds the directory."""
        with writing(self._path):
            self._lock()
            try:
                self._folder = os.open(self._path.parent, os.O_RDONLY | os.O_DIRECTORY)
            except OSError:
                self._close()
                raise
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(OSError):
            if _read(self._handle) == self._me:
                os.ftruncate(self._handle, 0)
        self._close()
        with contextlib.suppress(OSError):
            os.close(self._folder)

    def beat(self) -> None:
        """Marks the file as fresh, for commands on other hosts, and checks that the run directory is still there.

        May be called at any time: it acts once a second at most. Raises `whereabouts.GoneError`.
        """
        now_s = self._now()
        if now_s - self._looked_s >= _LOOK_EVERY_S:
            self._looked_s = now_s
            with contextlib.suppress(OSError):
                if not self._has_file():
                    self._check_folder()
        if now_s - self._beaten_s >= _BEAT_EVERY_S:
            self._beaten_s = now_s
            with contextlib.suppress(OSError):
                os.utime(self._handle)

    def refresh(self) -> None:
        """Checks once a round that the lock is still this run's; takes a deleted one again.

        Raises RunDirError if another run has taken it (somebody deleted the file) or if no regular file has its name;
        `whereabouts.GoneError` if the run directory is gone.
        """
        try:
            if not self._has_file():
                self._check_folder()
                self._close()
                self._lock()
            elif (holder := _read(self._handle)) not in (self._me, None):
                raise _in_use(self._path, holder)
            os.utime(self._handle)
        except (NotPlainError, LinkedError) as error:
            raise RunDirError(str(self._path), f"cannot be taken again: {reason(error)}") from None
        except OSError:  # the next file that the run writes reports a failing file system
            pass

    def _check_folder(self) -> None:
        """Raises `whereabouts.GoneError`."""
        folder = self._run_dir.path
        if (error := whereabouts.gone(folder, self._folder)) is not None:
            raise error
        if self._holds_run and not self._run_dir.holds_run():
            raise whereabouts.emptied(folder)

    def _has_file(self) -> bool:
        """Returns whether `.lock` is still the file that this run has locked."""
        if self._handle < 0:
            return False
        try:
            found = os.lstat(self._path)
        except MISSING:
            return False
        self._holds_run = self._holds_run or self._run_dir.config_path.exists()
        return os.path.samestat(found, os.fstat(self._handle))

    def _lock(self) -> None:
        self._handle = open_in_place(self._path, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            self._take()
        except BaseException:
            self._close()
            raise

    def _take(self) -> None:
        holder = _read(self._handle)
        try:
            fcntl.flock(self._handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise _in_use(self._path, holder) from None
        except OSError:  # a file system without locks
            silent_s = time.time() - os.fstat(self._handle).st_mtime
            if holder not in (None, self._me) and _may_live(holder, silent_s, STALE_AFTER_S):
                raise _in_use(self._path, holder, f" (if that run is gone, delete {self._path})") from None
        if holder is not None and not holder.is_local:
            self._warn(f"taking over from a run that is gone (pid {holder.pid} on {holder.host!r})")
        os.pwrite(self._handle, json.dumps(asdict(self._me)).encode().ljust(_LONGEST_NOTE_BYTES), 0)

    def _close(self) -> None:
        handle, self._handle = self._handle, -1
        with contextlib.suppress(OSError):
            os.close(handle)


def seen(run_dir: RunDir, patience_s: float) -> tuple[Holder, bool] | None:
    """Returns the process that the lock names and whether it lives, as far as a command that only looks can know.

    A process on another host counts as alive for `patience_s` after its last heartbeat. None if the lock names nobody.
    Raises RunDirError if the file cannot be read.
    """
    try:
        with reading(run_dir.lock_path), open_to_read(run_dir.lock_path) as file:
            holder = _read(file.fileno())
            silent_s = time.time() - os.fstat(file.fileno()).st_mtime
    except MISSING:
        return None
    return None if holder is None else (holder, _may_live(holder, silent_s, patience_s))


def _may_live(holder: Holder, silent_s: float, patience_s: float) -> bool:
    return holder.runs_here() if holder.is_local else silent_s <= patience_s


def _in_use(path: Path, holder: Holder | None, advice: str = "") -> RunDirError:
    who = f"pid {holder.pid} on {holder.host}" if holder else "another process"
    return RunDirError(str(path.parent), f"is in use by {who}; wait for it or take another --run-dir{advice}")


def _read(handle: int) -> Holder | None:
    """Returns the holder that the note names; None for an empty, torn or foreign note."""
    try:
        holder = Holder(**json.loads(os.pread(handle, _LONGEST_NOTE_BYTES, 0)))
    except (ValueError, TypeError, RecursionError):
        return None
    is_holder = isinstance(holder.host, str) and type(holder.pid) is int and isinstance(holder.started_s, float)
    return holder if is_holder and holder.pid > 0 else None
