"""How a process ends on SIGINT (Ctrl-C) or SIGTERM: at once, by that signal, after it has printed how to continue.

Open MPI's mpirun forwards nothing that its ranks print from then on, so a run prints at its start how to continue.
"""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

ENDING = (signal.SIGTERM, signal.SIGINT)


def end_silently() -> None:
    """Lets SIGINT and SIGTERM end this process; Python would print a traceback for SIGINT."""
    for number in ENDING:
        signal.signal(number, signal.SIG_DFL)


@contextmanager
def ending_with(words: Callable[[int], str]) -> Iterator[None]:
    """Prints `words(number of the signal)` before SIGINT or SIGTERM ends this process within the block."""

    def end(number: int, frame: FrameType | None) -> None:
        # An exception raised here would be lost if the signal interrupts a destructor.
        with contextlib.suppress(Exception):
            start = "\n" if os.isatty(2) else ""  # a terminal has a ^C in the line it is at
            os.write(2, f"{start}{words(number)}\n".encode(errors="replace"))
        end_silently()
        os.kill(os.getpid(), number)  # to a launcher, an exit code would be no death

    for number in ENDING:
        signal.signal(number, end)
    try:
        yield
    finally:
        end_silently()
