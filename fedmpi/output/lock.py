"""One run at a time on a run directory.

The kernel's record lock on `.lock` decides where the file system has one: it ends with its
process, on whatever node. What the file says (host, pid, start of the process, job) decides where
it has none, and tells the second run whom it met. A lock is stale when its process is gone or its
pid has been given to another one (same host), when it belongs to an earlier life of the same batch
job, or when nobody has refreshed it for long (another host). The file stays; an empty one is free.
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
from types import TracebackType

from fedmpi.errors import RunDirError
from fedmpi.output.files import writing
from fedmpi.output.run_dir import RunDir

# Far above a heartbeat a round, far below the patience of somebody whose node has died.
STALE_AFTER_S = 600.0
_LONGEST_NOTE_BYTES = 4096


@dataclass(frozen=True)
class Holder:
    """A process that holds a run directory."""

    host: str
    pid: int
    start: str
    """Names the process among all that ever had its pid: boot and clock tick of its start; "" if unknown."""
    job: str
    """The batch job it belongs to, "" for none."""

    @classmethod
    def this_process(cls, job: str) -> Holder:
        return cls(socket.gethostname(), os.getpid(), _start_of(os.getpid()), job)

    def is_gone(self, me: Holder, silent_s: float) -> bool:
        """Whether this holder no longer runs, as far as `me` can tell after `silent_s` without a heartbeat."""
        if self.host == me.host:
            return not _is_alive(self.pid) or (bool(self.start) and self.start != _start_of(self.pid))
        same_job = bool(self.job) and self.job == me.job
        return same_job or silent_s > STALE_AFTER_S


class RunLock:
    """Holds a run directory while the block runs.

    >>> with RunLock(run_dir, job=os.environ.get("SLURM_JOB_ID", "")) as lock:
    ...     lock.refresh()  # once a round
    """

    def __init__(self, run_dir: RunDir, *, job: str = "", warn: Callable[[str], None] = lambda line: None) -> None:
        self._path = run_dir.lock_path
        self._me = Holder.this_process(job)
        self._warn = warn
        self._handle = -1

    def __enter__(self) -> RunLock:
        """Raises RunDirError if another run holds the directory."""
        with writing(self._path):
            self._handle = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            self._take()
        except BaseException:
            os.close(self._handle)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with contextlib.suppress(OSError):
            os.ftruncate(self._handle, 0)
        os.close(self._handle)

    def refresh(self) -> None:
        """A heartbeat, for runs on other hosts that ask."""
        with contextlib.suppress(OSError):
            os.utime(self._handle)

    def _take(self) -> None:
        is_locked_by_other = not _lock(self._handle)
        holder = _read(self._handle)
        silent_s = time.time() - os.fstat(self._handle).st_mtime
        if is_locked_by_other or (holder is not None and not holder.is_gone(self._me, silent_s)):
            raise RunDirError(*_refusal(self._path, holder, is_locked_by_other))
        if holder is not None:
            self._warn(f"taking over from a run that is gone (pid {holder.pid} on {holder.host})")
        with writing(self._path):
            os.ftruncate(self._handle, 0)
            os.pwrite(self._handle, json.dumps(asdict(self._me)).encode(), 0)


def seen(run_dir: RunDir, patience_s: float) -> tuple[Holder, bool] | None:
    """For who only looks: the process that the lock names, and whether it lives as far as can be told from here.

    On another host it is believed to for `patience_s` after its last round. None if the lock names nobody.
    """
    try:
        handle = os.open(run_dir.lock_path, os.O_RDONLY)
    except OSError:
        return None
    try:
        holder, silent_s = _read(handle), time.time() - os.fstat(handle).st_mtime
    finally:
        os.close(handle)
    if holder is None:
        return None
    me = Holder.this_process("")
    return holder, not holder.is_gone(me, silent_s) if holder.host == me.host else silent_s <= patience_s


def _refusal(path: Path, holder: Holder | None, is_certain: bool) -> tuple[str, str]:
    who = f"pid {holder.pid} on {holder.host}" if holder else "another process"
    doubt = "" if is_certain else f" (if that run is gone, delete {path})"
    return str(path.parent), f"is in use by {who}; wait for it or take another --run-dir{doubt}"


def _lock(handle: int) -> bool:
    """False if another process has the lock; True if it is ours, or the file system has no locks."""
    try:
        fcntl.lockf(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (BlockingIOError, PermissionError):
        return False
    except OSError:
        return True
    return True


def _read(handle: int) -> Holder | None:
    """Who the file says holds it; None for an empty or torn note."""
    try:
        return Holder(**json.loads(os.pread(handle, _LONGEST_NOTE_BYTES, 0)))
    except (ValueError, TypeError):
        return None


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        return True
    return True


def _start_of(pid: int) -> str:
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        # The name in parentheses may hold anything; field 22 counts from the last closing one.
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return f"{boot}:{fields[19]}"
    except (OSError, IndexError):
        return ""
