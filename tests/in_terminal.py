"""A command in a pseudo terminal of its own, as a person runs it: what it shows, as it comes, and Ctrl-C."""

import contextlib
import fcntl
import os
import pty
import select
import struct
import subprocess
import termios
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from launched import LIMIT_S, environment, kill_all

from fedmpi.mpi.mpirun import files_in


class Terminal:
    """A command whose terminal this is, under way."""

    def __init__(self, folder: Path, words: Sequence[str], columns: int) -> None:
        self._ours, theirs = pty.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("4H", 25, columns, 0, 0))
        own = environment() | files_in(folder) | {"TERM": "xterm"}
        files = dict.fromkeys(("stdin", "stdout", "stderr"), theirs)
        take_it = {"start_new_session": True, "preexec_fn": lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0)}
        self.process = subprocess.Popen(words, env=own, cwd=folder, **files, **take_it)
        os.close(theirs)
        self.shown = b""
        self._began_s = time.monotonic()
        self._deadline = self._began_s + LIMIT_S
        self.stamps: list[tuple[float, str]] = []
        """Seconds since the start, and a line that was then shown whole."""

    def read_until(self, is_so: Callable[[bytes], bool]) -> bool:
        """Whether what is shown came to be so, before the last process closed the terminal."""
        while not is_so(self.shown):
            assert time.monotonic() < self._deadline, self.shown
            if select.select([self._ours], [], [], 1.0)[0]:
                try:
                    chunk = os.read(self._ours, 4096)
                except OSError:  # how Linux says that the last writer has closed
                    return is_so(self.shown)
                self.shown += chunk
                *whole, _ = self.shown.decode(errors="replace").split("\n")
                now_s = time.monotonic() - self._began_s
                self.stamps += [(now_s, line.rstrip("\r")) for line in whole[len(self.stamps) :]]
        return True

    def read_all(self) -> bytes:
        self.read_until(lambda shown: False)
        return self.shown

    def press_ctrl_c(self) -> None:
        os.write(self._ours, b"\x03")

    def close(self) -> None:
        kill_all(self.process)
        os.close(self._ours)


@contextlib.contextmanager
def terminal(folder: Path, words: Sequence[str], columns: int = 80) -> Iterator[Terminal]:
    """The command, which is ended with the block."""
    shown = Terminal(folder, words, columns)
    try:
        yield shown
    finally:
        shown.close()
