"""A rank's own watchdog: it ends a rank that does not get through its part of a round.

Waiting for others is not counted, so a hung rank ends itself and no other. One whose threads are
all stopped cannot; then those that wait give up (`patience_s`).
"""

from __future__ import annotations

import math
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable
from typing import NoReturn

from fedmpi.mpi.serial import Traffic

_MARGIN_S = 10.0


def patience_s(limit_s: float) -> float:
    """How long a rank may wait for others that each have `limit_s` for a round: they may begin one after the other."""
    return 2 * limit_s + _MARGIN_S if limit_s > 0 else math.inf


class Watch:
    """Calls `give_up(why)`, once, when this rank has worked on a round for longer than it may.

    What it waits within a collective that cannot be interrupted has a limit, too (`patience_s`).
    """

    def __init__(self, traffic: Traffic, give_up: Callable[[str], None]) -> None:
        self._traffic, self._give_up = traffic, give_up
        self._limit_s = 0.0
        self._begun = math.inf, 0.0

    def round_begins(self, limit_s: float) -> None:
        """A round, or what is left of one, that may take this rank `limit_s` (0: as long as it likes)."""
        is_first = self._begun[0] == math.inf
        self._begun = time.perf_counter(), self._traffic.not_working_s()
        self._limit_s = limit_s
        if is_first and self._limit_s > 0:
            threading.Thread(target=self._watch, name="watch", daemon=True).start()

    def __enter__(self) -> Watch:
        return self

    def __exit__(self, *error: object) -> None:
        self._limit_s = math.inf  # nothing more to watch

    def busy_s(self) -> float:
        """Seconds of this round in which this rank neither waited for others nor moved data with them."""
        begun, not_working_s = self._begun
        return time.perf_counter() - begun - (self._traffic.not_working_s() - not_working_s)

    def _watch(self) -> None:
        pause_s = min(1.0, self._limit_s / 10)
        while not (why := self._what_is_wrong()):
            time.sleep(pause_s)
            if self._limit_s == math.inf:
                return
        self._give_up(why)

    def _what_is_wrong(self) -> str:
        if (busy_s := self.busy_s()) > self._limit_s:
            return f"{busy_s:.0f} s of its own in this round, with {self._limit_s:g} s for its share"
        # `Comm` gives up by itself a little earlier where it can.
        waits_s = self._traffic.waits_for_s()
        return f"{waits_s:.0f} s in one call of MPI" if waits_s > patience_s(self._limit_s) + _MARGIN_S else ""


def end_at_once(text: str, *, alone: bool = False) -> NoReturn:
    """Writes `text` and where the main thread is, and ends this process by SIGKILL: to the launcher, a rank died.

    The last rank of a job that outlives its ranks (`alone`) ends with exit code 1: mpirun would take its death for
    the end of the job, and 0 for its code.
    """
    frame = sys._current_frames().get(threading.main_thread().ident or 0)
    places = traceback.extract_stack(frame)[-4:] if frame else []
    lines = [text, *(f"  at {place.filename}:{place.lineno} in {place.name}" for place in places)]
    os.write(2, ("\n".join(lines) + "\n").encode(errors="replace"))
    if not alone:
        os.kill(os.getpid(), signal.SIGKILL)
    os._exit(1)
