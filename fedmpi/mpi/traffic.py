"""How long a rank waits for others and moves data, and how many bytes the ranks of a job receive."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager


class Traffic:
    """How long this rank waited for others and moved data, in all, and (on rank 0) what the job's ranks received."""

    def __init__(self) -> None:
        self.idle_s = 0.0
        self.communication_s = 0.0
        self.wire_bytes = 0
        # Seconds that were no work of this rank, and since when it has done none now: one value, so that a thread
        # that looks sees both of the same moment.
        self._not_working: tuple[float, float | None] = 0.0, None

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """What happens within is waiting for other ranks."""
        with self._counted() as seconds:
            yield
        self.idle_s += seconds()

    @contextmanager
    def moving(self) -> Iterator[None]:
        """What happens within moves data: other ranks take part in it."""
        with self._counted() as seconds:
            yield
        self.communication_s += seconds()

    @contextmanager
    def _counted(self) -> Iterator[Callable[[], float]]:
        before, started = self._not_working[0], time.perf_counter()
        taken = 0.0
        self._not_working = before, started
        try:
            yield lambda: taken
        finally:
            taken = time.perf_counter() - started
            self._not_working = before + taken, None

    def not_working_s(self) -> float:
        """Seconds so far of waiting for others and of moving data, those under way included; for any thread."""
        seconds, since = self._not_working
        return seconds if since is None else seconds + time.perf_counter() - since

    def waits_for_s(self) -> float:
        """How long this rank has been waiting or moving data now; 0 if it works. For any thread."""
        since = self._not_working[1]
        return 0.0 if since is None else time.perf_counter() - since

    def take_bytes(self) -> int:
        """Bytes since the last call."""
        taken, self.wire_bytes = self.wire_bytes, 0
        return taken
