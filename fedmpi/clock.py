"""Where a rank's time goes, and where it was when something broke. Stages are those of PriSM's Table 3 and ours."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Literal, get_args

from fedmpi.errors import RankLossError, RoundError, where

Stage = Literal[
    "submodel_creation", "local_training", "aggregation", "svd", "communication", "evaluation", "saving", "idle"
]
STAGES: tuple[Stage, ...] = get_args(Stage)


class Traffic:
    """Counts how long this rank waited for others and moved data and, on rank 0, what the job's ranks received."""

    def __init__(self, now: Callable[[], float] = time.perf_counter) -> None:
        self.now = now
        self.seconds = {"idle": 0.0, "communication": 0.0}
        self.wire_bytes = self.wire_messages = 0
        self._waits_since_s: float | None = None

    @contextmanager
    def counted(self, kind: Literal["idle", "communication"]) -> Iterator[None]:
        """Counts the time within as waiting for other ranks, or as moving data in which other ranks take part."""
        started_s = self.now()
        self._waits_since_s = started_s
        try:
            yield
        finally:
            # In this order: to a thread that looks in between, a wait must not seem to be work.
            self.seconds[kind] += self.now() - started_s
            self._waits_since_s = None

    def not_working_s(self) -> float:
        """Returns the seconds of waiting and of moving data, up to now; may be called by any thread."""
        return sum(self.seconds.values()) + self.waits_for_s()

    def waits_for_s(self) -> float:
        """Returns how long this rank has been waiting or moving data; 0 if it works. May be called by any thread."""
        since_s = self._waits_since_s
        return 0.0 if since_s is None else self.now() - since_s

    def moved(self, num_messages: int, num_bytes: int) -> None:
        """Counts a collective: a message for each rank but rank 0 that has a part in it, and their bytes."""
        self.wire_messages += num_messages
        self.wire_bytes += num_bytes

    def take_moved(self) -> dict[str, int]:
        """Returns the counts since the last call, as a record has them."""
        taken = {"wire_messages": self.wire_messages, "wire_bytes": self.wire_bytes}
        self.wire_messages = self.wire_bytes = 0
        return taken


class Clock:
    """Seconds spent in each stage since the last `take`; what `traffic` counts within a stage is taken out of it."""

    def __init__(self, traffic: Traffic) -> None:
        self._traffic = traffic
        self._seconds: dict[str, float] = dict.fromkeys(STAGES, 0.0)
        self._begun = traffic.now()
        self.where = where("start")
        """The stage that was entered last, in words; may be read by another thread."""

    @contextmanager
    def stage(self, stage: Stage, round_number: int | None = None, client: int | None = None) -> Iterator[None]:
        """Counts the time within (stages must not nest); an exception leaves as a `RoundError` that says where."""
        started = self._traffic.now()
        before = {**self._traffic.seconds}
        here = where(stage, round_number, client)
        self.where = here
        try:
            yield
        except (RoundError, RankLossError):
            raise
        except (Exception, SystemExit) as error:  # a user's own code may call sys.exit
            raise RoundError(here) from error
        finally:
            elsewhere_s = {name: seconds - before[name] for name, seconds in self._traffic.seconds.items()}
            own_s = self._traffic.now() - started - sum(elsewhere_s.values())
            for name, seconds in ((stage, own_s), *elsewhere_s.items()):
                self._seconds[name] += seconds

    def take(self) -> dict[str, float]:
        """Returns the seconds by stage and in all (`wall`) since the last call."""
        now = self._traffic.now()
        taken = {**self._seconds, "wall": now - self._begun}
        self._seconds = dict.fromkeys(STAGES, 0.0)
        self._begun = now
        return taken
