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

from fedmpi.clock import Traffic

_MARGIN_S = 10.0
SUSPENDED_AFTER_S = 3.0
"""A watchdog looks every second. If this much time has passed since its last look, the process was suspended (Slurm
suspends all ranks of a job), so all limits begin anew."""


def patience_s(limit_s: float, times: int = 2) -> float:
    """How long a rank may wait for others that each have `limit_s` for a round: they may begin one after the other."""
    return times * limit_s + _MARGIN_S if limit_s > 0 else math.inf


class Watch:
    """Calls `give_up(why, is_own)`, once: when this rank has worked for longer than it may (`is_own`), or has waited
    for others for longer within one call, as it may where the call cannot be interrupted. Within the block a thread
    looks every second; it begins with the first limit. Time is what `traffic.now` says.
    """

    def __init__(self, traffic: Traffic, give_up: Callable[[str, bool], None]) -> None:
        self._traffic, self._give_up = traffic, give_up
        # One value, so that the thread sees what belongs together: since when, what was no work then, both limits.
        self._part = 0.0, 0.0, math.inf, math.inf
        self._looked_s = self._awake_since_s = -math.inf
        self._thread: threading.Thread | None = None
        self._is_on = False

    def __enter__(self) -> Watch:
        self._is_on = True
        return self

    def __exit__(self, *error: object) -> None:
        self._is_on = False

    def begin(self, limit_s: float, others_s: float) -> None:
        """A part of the run that may take this rank `limit_s` (0: as long as it likes) beside what it waits, which may
        be a little more than `others_s` at a time: `Comm` gives up by itself where it can."""
        not_working_s = self._traffic.not_working_s()
        self._part = self._traffic.now(), not_working_s, limit_s or math.inf, others_s + _MARGIN_S
        if self._is_on and self._thread is None and limit_s > 0:
            self._thread = threading.Thread(target=self._watch, name="watch", daemon=True)
            self._thread.start()

    def _watch(self) -> None:
        while self._is_on and not self.look():
            time.sleep(min(1.0, self._part[2] / 10))

    def look(self) -> bool:
        """Whether a limit is over; then it has called `give_up`."""
        began_s, not_working_s, limit_s, others_s = self._part
        now_s = self._traffic.now()
        if now_s - self._looked_s > SUSPENDED_AFTER_S:
            self._awake_since_s = now_s
        self._looked_s, awake_s = now_s, now_s - self._awake_since_s
        busy_s = min(now_s - began_s - (self._traffic.not_working_s() - not_working_s), awake_s)
        waits_s = min(self._traffic.waits_for_s(), awake_s)
        if busy_s > limit_s:
            self._give_up(f"{busy_s:.0f} s of its own, with {limit_s:g} s for its share", True)
        elif waits_s > others_s:
            self._give_up(f"{waits_s:.0f} s in one call of MPI", False)
        return busy_s > limit_s or waits_s > others_s


def end_at_once(text: str, *, is_death: bool) -> NoReturn:
    """Writes `text` and where the main thread is, and ends this process: by SIGKILL, so that to the launcher a rank
    died and others may continue, or else with exit code 1. (Of a job that outlives its ranks, mpirun would take the
    death of the last one for the end of the job, and 0 for its code.)
    """
    frame = sys._current_frames().get(threading.main_thread().ident or 0)
    places = traceback.extract_stack(frame)[-4:] if frame else []
    lines = [text, *(f"  at {place.filename}:{place.lineno} in {place.name}" for place in places)]
    os.write(2, ("\n".join(lines) + "\n").encode(errors="replace"))
    if is_death:
        os.kill(os.getpid(), signal.SIGKILL)
    os._exit(1)
