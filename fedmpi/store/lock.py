"""One run at a time on a run directory.

The kernel's record lock on `.lock` decides where the file system has one: it ends with its process, on whatever node.
What the file says (host, pid, start of the process, job) decides where it has none, and tells the second run whom it
met: of several that start there at once, the last one to write its name stays, and the others find that name when they
look again. A lock is stale when its process is gone or its pid has been given to another one (same host), when it
belongs to an earlier life of the same batch job, or when it was not refreshed for long (another host). The file stays;
an empty one is free.
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

from fedmpi.disk.plain import LinkedError, NotPlainError, open_in_place, open_to_read
from fedmpi.errors import RunDirError, one_line, reason
from fedmpi.store import whereabouts
from fedmpi.store.files import MISSING, reading, writing
from fedmpi.store.run_dir import RunDir

# Far above a heartbeat a round, far below the patience of a user whose node has died.
STALE_AFTER_S = 600.0
_BEAT_EVERY_S = 10.0
_LOOK_EVERY_S = 1.0
# Without the kernel's lock: far above the time from reading who is there to writing one's own name.
_SETTLE_S = 1.0
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
    """Holds a run directory while the block runs, and notices when it is gone.

    >>> with RunLock(run_dir, job=os.environ.get("SLURM_JOB_ID", "")) as lock:
    ...     lock.refresh()  # once a round
    """

    def __init__(
        self,
        run_dir: RunDir,
        *,
        job: str = "",
        warn: Callable[[str], None] = lambda line: None,
        now: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._run_dir, self._path = run_dir, run_dir.lock_path
        self._me = Holder.this_process(job)
        self._warn, self._now, self._sleep = warn, now, sleep
        self._handle = self._folder = -1
        self._beaten_s = self._looked_s = now()
        self._holds_run = False

    def __enter__(self) -> RunLock:
        """Raises RunDirError if another run holds the directory."""
        with writing(self._path):
            self._open()
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
        """A heartbeat, for runs on other hosts that ask, and a look whether the run directory is still there.

        May be called at any time: it does something once a second at most. Raises `whereabouts.GoneError`.
        """
        now_s = self._now()
        if now_s - self._looked_s >= _LOOK_EVERY_S:
            self._looked_s = now_s
            with contextlib.suppress(OSError):
                if not self._is_the_file():
                    self._check_folder()
        if now_s - self._beaten_s >= _BEAT_EVERY_S:
            self._beaten_s = now_s
            with contextlib.suppress(OSError):
                os.utime(self._handle)

    def refresh(self) -> None:
        """Once a round: a heartbeat, and a look whether the lock is still ours; one that was deleted is taken again.

        Raises RunDirError if another run has it by now (the file was deleted, or this run was taken to be gone), or if
        something else than a file has its name; `whereabouts.GoneError` if the run directory is gone.
        """
        try:
            if not self._is_the_file():
                self._check_folder()
                self._close()
                self._open(again=True)
            elif (holder := _read(self._handle)) not in (self._me, None):
                raise RunDirError(*_refusal(self._path, holder, is_certain=True))
            os.utime(self._handle)
        except (NotPlainError, LinkedError) as error:
            raise RunDirError(str(self._path), f"cannot be taken again: {reason(error)}") from None
        except OSError:  # a file system that fails is for those to tell who write files
            pass

    def _check_folder(self) -> None:
        """Raises `whereabouts.GoneError`."""
        folder = self._run_dir.path
        if (error := whereabouts.gone(folder, self._folder)) is not None:
            raise error
        if self._holds_run and not self._run_dir.holds_run():
            raise whereabouts.emptied(folder)

    def _is_the_file(self) -> bool:
        """Compared without opening it: to close it again would give up the kernel's lock."""
        if self._handle < 0:
            return False
        try:
            ours, found = os.fstat(self._handle), os.lstat(self._path)
        except (FileNotFoundError, NotADirectoryError):
            return False
        self._holds_run = self._holds_run or self._run_dir.config_path.exists()
        return (found.st_dev, found.st_ino) == (ours.st_dev, ours.st_ino)

    def _open(self, *, again: bool = False) -> None:
        self._handle = open_in_place(self._path, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            self._take(again)
        except BaseException:
            self._close()
            raise

    def _close(self) -> None:
        handle, self._handle = self._handle, -1
        with contextlib.suppress(OSError):
            os.close(handle)

    def _take(self, again: bool) -> None:
        is_locked = _lock(self._handle)
        holder = _read(self._handle)
        silent_s = time.time() - os.fstat(self._handle).st_mtime
        holder = None if again and holder == self._me else holder
        if is_locked is False or (holder is not None and not holder.is_gone(self._me, silent_s)):
            raise RunDirError(*_refusal(self._path, holder, is_certain=is_locked is False))
        # On one host a kernel's lock leaves no doubt, so an ordinary resume has nothing to say.
        if holder is not None and (is_locked is None or holder.host != self._me.host):
            self._warn(one_line(f"taking over from a run that is gone (pid {holder.pid} on {holder.host})"))
        _write(self._handle, self._me)
        if is_locked is None:
            self._sleep(_SETTLE_S)
            if (winner := _read(self._handle)) != self._me:
                raise RunDirError(*_refusal(self._path, winner, is_certain=False))


def seen(run_dir: RunDir, patience_s: float) -> tuple[Holder, bool] | None:
    """The process that the lock names, and whether it lives, as far as a command that only looks can tell.

    On another host it is believed to live for `patience_s` after its last round. None if the lock names nobody. Raises
    RunDirError if it cannot be read.
    """
    try:
        with reading(run_dir.lock_path), open_to_read(run_dir.lock_path) as file:
            holder, silent_s = _read(file.fileno()), time.time() - os.fstat(file.fileno()).st_mtime
    except MISSING:
        return None
    if holder is None:
        return None
    me = Holder.this_process("")
    return holder, not holder.is_gone(me, silent_s) if holder.host == me.host else silent_s <= patience_s


def _refusal(path: Path, holder: Holder | None, is_certain: bool) -> tuple[str, str]:
    who = f"pid {holder.pid} on {holder.host}" if holder else "another process"
    doubt = "" if is_certain else f" (if that run is gone, delete {path})"
    return str(path.parent), f"is in use by {who}; wait for it or take another --run-dir{doubt}"


def _lock(handle: int) -> bool | None:
    """True if the kernel's lock is ours, False if another process has it, None if the file system has no locks."""
    try:
        fcntl.lockf(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (BlockingIOError, PermissionError):
        return False
    except OSError:
        return None
    return True


def _read(handle: int) -> Holder | None:
    """Who the file says holds it; None for an empty or torn note, or anything that is none."""
    try:
        holder = Holder(**json.loads(os.pread(handle, _LONGEST_NOTE_BYTES, 0)))
    except (ValueError, TypeError, RecursionError):
        return None
    is_text = all(isinstance(text, str) for text in (holder.host, holder.start, holder.job))
    return holder if is_text and type(holder.pid) is int and holder.pid > 0 else None


def _write(handle: int, holder: Holder) -> None:
    """One write of one size, by every process: of two at the same time, one is there whole."""
    os.pwrite(handle, json.dumps(asdict(holder)).encode().ljust(_LONGEST_NOTE_BYTES), 0)


def _is_alive(pid: int) -> bool:
    """Not of a process that has ended and whose parent has not asked yet, as for seconds after the end of an mpirun."""
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        return True
    return _stat_of(pid)[:1] != ["Z"]


def _start_of(pid: int) -> str:
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot}:{_stat_of(pid)[19]}"
    except (OSError, IndexError):
        return ""


def _stat_of(pid: int) -> list[str]:
    """What /proc says of a process, from its state on; nothing where it does not tell."""
    with contextlib.suppress(OSError):
        # The name in parentheses may hold anything.
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return []
