"""A rank's own watchdog: ends a rank that does not get through its part of a round, or waits too long for others.

Waiting for others is no work, so a hung rank ends itself and no other. One whose threads are all stopped cannot; then
those that wait end the job (`patience_s`).
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from fedmpi.clock import Traffic

_MARGIN_S = 10.0
SUSPENDED_AFTER_S = 3.0
"""The watchdog looks every second. If this much time has passed since its last look, the process was suspended (Slurm
suspends all ranks of a job), so all limits begin anew."""


def patience_s(limit_s: float, times: int = 2) -> float:
    """Returns how long a rank may wait for others that each have `limit_s`: they may begin one after the other."""
    return times * limit_s + _MARGIN_S if limit_s > 0 else math.inf


@dataclass(frozen=True)
class _Part:
    """A part of the run and its limits: one value, so that the watchdog sees what belongs together."""

    began_s: float
    not_working_s: float
    """Seconds without work before this part."""
    limit_s: float
    others_s: float


class Watch:
    """Calls `give_up(why, is_own)` once: when this rank has worked for longer than it may (`is_own`), or has waited for
    others for longer in one call. Within the block a thread looks every second; it begins with the first limit.
    """

    def __init__(self, traffic: Traffic, give_up: Callable[[str, bool], None]) -> None:
        self._traffic = traffic
        self._give_up = give_up
        self._part = _Part(0.0, 0.0, math.inf, math.inf)
        self._looked_s = -math.inf
        self._awake_since_s = -math.inf
        self._thread: threading.Thread | None = None
        self._is_on = False

    def __enter__(self) -> Watch:
        self._is_on = True
        return self

    def __exit__(self, *error: object) -> None:
        self._is_on = False

    def begin(self, limit_s: float, others_s: float) -> None:
        """Begins a part of the run that may take `limit_s` of this rank's work (0: any time) and `others_s` a wait."""
        self._part = _Part(self._traffic.now(), self._traffic.not_working_s(), limit_s or math.inf, others_s)
        if self._is_on and self._thread is None and limit_s > 0:
            self._thread = threading.Thread(target=self._watch, name="watch", daemon=True)
            self._thread.start()

    def _watch(self) -> None:
        while self._is_on and not self.look():
            time.sleep(min(1.0, self._part.limit_s / 10))

    def look(self) -> bool:
        """Returns True if a limit is over; then it has called `give_up`."""
        part = self._part
        now_s = self._traffic.now()
        if now_s - self._looked_s > SUSPENDED_AFTER_S:
            self._awake_since_s = now_s
        self._looked_s = now_s
        awake_s = now_s - self._awake_since_s
        not_working_s = self._traffic.not_working_s() - part.not_working_s
        busy_s = min(now_s - part.began_s - not_working_s, awake_s)
        waits_s = min(self._traffic.waits_for_s(), awake_s)
        if busy_s > part.limit_s:
            self._give_up(f"{busy_s:.0f} s of its own, with {part.limit_s:g} s for its share", True)
        elif waits_s > part.others_s:
            self._give_up(f"waited for other ranks for {waits_s:.0f} s", False)
        return busy_s > part.limit_s or waits_s > part.others_s
