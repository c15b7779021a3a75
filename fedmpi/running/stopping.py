"""Stopping before the last round: a signal asks for it, or the job's time would not last for another round. SIGINT
(Ctrl-C) and SIGTERM end a process at once, after it has printed how to continue.

At the end of a round all ranks learn every rank's vote, so a signal that reaches one rank before another leaves nobody
behind. A start always makes one round, so that a job which is put back into the queue makes progress.
"""

import contextlib
import math
import os
import signal
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from types import FrameType
from typing import Any

from fedmpi.mpi.launch import whole_number

SIGNAL = signal.SIGUSR1

_early_signals: list[int] = []
"""The signal, if it came before the run listened."""

GO_ON = 0
OUT_OF_TIME = 1
SIGNALLED = 2
OVER = 3
"""The votes of a rank; all ranks follow the highest one. Rank 0 alone knows when a run is over (`stop`)."""
_PATIENCE = 1.5
"""A round is given so much longer than the longest of the last ones took."""
_NUM_RECENT = 5
ENDING = (signal.SIGTERM, signal.SIGINT)


def notice_early() -> None:
    """Keeps the signal for `Stopping.listen`: from here on it does not end the process, and others do so silently."""
    signal.signal(SIGNAL, lambda number, frame: _early_signals.append(number))
    end_silently()


def seconds_left(limit_s: float, environment: Mapping[str, str], now_s: float) -> float | None:
    """Returns the seconds until this start of the run must have ended, by `limit_s` (0: none) or by Slurm, whichever
    comes first; None without end."""
    end = whole_number(environment, "SLURM_JOB_END_TIME")
    limits_s = ([limit_s] if limit_s > 0 else []) + ([end - now_s] if end is not None else [])
    return min(limits_s, default=None)


class Stopping:
    """One rank's vote after each round. `left_s` are the seconds until the end (None: no end); of them `spare_s` stay
    free for saving; `every` is after how many rounds a long one comes (one that is evaluated, or saved)."""

    def __init__(
        self,
        left_s: float | None = None,
        spare_s: float = 0.0,
        every: int = 1,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._now = now
        self._end_s = math.inf if left_s is None else now() + left_s - spare_s
        self._over_s = max(0, round(-(left_s or 0)))
        """By how much the end had passed at the start: then it is the end of another job."""
        self._recent_s: deque[float] = deque(maxlen=max(_NUM_RECENT, every))
        self._is_signalled = False

    def listen(self, say: Callable[[str], None]) -> None:
        """Takes the signal for a vote to stop from now on; calls `say` for the first one."""

        def on_signal(number: int, frame: Any) -> None:
            if not self._is_signalled:
                self._is_signalled = True
                say(f"fedmpi: {SIGNAL.name}: the run stops after this round")

        signal.signal(SIGNAL, on_signal)
        signal.siginterrupt(SIGNAL, False)  # what the libraries are reading or writing continues
        if _early_signals:
            on_signal(_early_signals.pop(), None)

    def vote(self, round_s: float) -> int:
        """Returns this rank's vote after a round that took `round_s`, the saving of the one before included."""
        self._recent_s.append(round_s)
        if self._is_signalled:
            return SIGNALLED
        return OUT_OF_TIME if self._end_s - self._now() < self._next_round_s() else GO_ON

    def why(self, vote: int) -> str:
        """Returns the vote that was agreed on, in words; '' for continuing."""
        if vote != OUT_OF_TIME:
            return SIGNAL.name if vote == SIGNALLED else ""
        if self._over_s:
            over = f"the job's time was over {timedelta(seconds=self._over_s)} h ago"
            return f"SLURM_JOB_END_TIME says that {over}; if that was another job, unset it"
        return f"the time that is left would not be enough for another round ({self._next_round_s():.0f} s)"

    def _next_round_s(self) -> float:
        return _PATIENCE * max(self._recent_s)


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
