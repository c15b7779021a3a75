"""How a rank ends on SIGINT (Ctrl-C) or SIGTERM, and what rank 0 says then.

On Ctrl-C, mpirun sends SIGTERM to all ranks, forwards nothing that they write from then on, and kills them a quarter of
a second later (Open MPI 5, tried). Rank 0 therefore speaks at once, from a thread of its own, because its main thread
may be in a long computation; and it writes to the stderr of mpirun itself.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import NoReturn

from fedmpi.mpi.launch import launched_as, stat_of

ENDING = (signal.SIGTERM, signal.SIGINT)
# The commands whose stderr is the user's. Daemons on other nodes have a stderr that nobody reads.
_LAUNCHERS = frozenset({"mpirun", "mpiexec", "prterun", "orterun", "mpiexec.hydra"})
_PATIENCE_S = 2.0
# The number of Linux's call, the same on all machines; Python has no function for it.
_PIDFD_GETFD = 438


class Interruption:
    """Within the block a signal ends this process at once, after it has said `words(number of the signal)`. The process
    ends by the signal itself, because to a launcher an exit code alone is no death.
    """

    def __init__(self, words: Callable[[int], str]) -> None:
        self._words = words
        self._has_spoken, self._speaks = threading.Event(), threading.Lock()

    def __enter__(self) -> Interruption:
        reading, self._writing = os.pipe()
        os.set_blocking(self._writing, False)  # as `set_wakeup_fd` wants it
        self._wakeup_before = signal.set_wakeup_fd(self._writing, warn_on_full_buffer=False)
        threading.Thread(target=self._listen, args=(reading,), daemon=True).start()
        for number in ENDING:
            signal.signal(number, self._end)
        return self

    def __exit__(self, *error: object) -> None:
        for number in ENDING:
            signal.signal(number, signal.SIG_DFL)
        signal.set_wakeup_fd(self._wakeup_before)
        os.close(self._writing)  # ends the thread

    def _listen(self, reading: int) -> None:
        while numbers := os.read(reading, 1):
            if numbers[0] in ENDING:
                self._speak(numbers[0])
        os.close(reading)

    def _end(self, number: int, frame: FrameType | None) -> NoReturn:
        """Ends the process here: an exception raised in a handler is lost if it interrupts a destructor."""
        self._speak(number)
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)
        os._exit(128 + number)

    def _speak(self, number: int) -> None:
        """Says the words once. A second caller waits for the first for a limited time, because a second signal may
        have interrupted the first one's handler.
        """
        if self._speaks.acquire(blocking=False):
            with contextlib.suppress(Exception):  # a process that cannot speak must end all the same
                last_words(self._words(number))
            self._has_spoken.set()
        else:
            self._has_spoken.wait(_PATIENCE_S)


def named(number: int) -> str:
    """The signal in words. A launcher passes both on as SIGTERM, so a rank cannot know which one it was."""
    if number == signal.SIGTERM and launched_as() is not None:
        return "Ctrl-C or SIGTERM"
    return "Ctrl-C" if number == signal.SIGINT else signal.Signals(number).name


def end_early() -> None:
    """While a command loads, which takes seconds, a signal ends it with a line of rank 0, and no traceback."""
    ending = Interruption(_too_early)
    for number in ENDING:
        signal.signal(number, ending._end)


def raise_on_ctrl_c() -> None:
    """Takes `end_early` back for a command that cleans up behind itself."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _too_early(number: int) -> str:
    rank, _ = launched_as() or (0, 1)
    line = f"fedmpi: stopped by {named(number)} before anything has begun;\n  the same command starts it"
    return "" if rank else line


def last_words(text: str) -> None:
    """Writes a line or more where the user reads it: to the stderr of mpirun, else to ours. An empty text is not said.
    Raises OSError.
    """
    if not text:
        return
    line = f"{text}\n".encode(errors="replace")
    launcher = _launcher()
    for opened in (_shared_stderr, _reopened_stderr) if launcher else ():
        with contextlib.suppress(OSError):  # of another user's process, a socket, a pipe that nobody reads
            with open(opened(launcher), "wb", buffering=0) as file:
                file.write(line)
            return
    os.write(2, b"\n" * os.isatty(2) + line)  # a terminal has a ^C, and perhaps a live line, in the line it is at


def _shared_stderr(pid: int) -> int:
    """A descriptor of what that process has as its stderr. A launcher that writes to a file, and not at its end, then
    writes behind our line and not over it, as MPICH's does. Raises OSError where the system does not allow it.
    """
    libc, process = ctypes.CDLL(None, use_errno=True), os.pidfd_open(pid)
    try:
        if (found := libc.syscall(_PIDFD_GETFD, process, 2, 0)) < 0:
            raise OSError(ctypes.get_errno(), "pidfd_getfd")
    finally:
        os.close(process)
    return int(found)


def _reopened_stderr(pid: int) -> int:
    """Another descriptor for the file. Raises OSError."""
    return os.open(f"/proc/{pid}/fd/2", os.O_WRONLY | os.O_APPEND | os.O_NOCTTY)


def _launcher() -> int:
    """The process number of the first ancestor that is a launcher; 0 where there is none, or /proc does not tell."""
    pid = os.getppid() if launched_as() is not None else 0
    with contextlib.suppress(OSError, ValueError, IndexError):
        while pid > 1:
            if Path(f"/proc/{pid}/comm").read_text().strip() in _LAUNCHERS:
                return pid
            pid = int(stat_of(pid)[1])
    return 0
