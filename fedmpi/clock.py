"""Where a rank's time goes, and where it was when something broke.

Stages are named as in PriSM's Table 3 (sub-model creation, local training, aggregation, SVD), plus
communication, evaluation, saving and idle (waiting for other ranks).
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal, Protocol, get_args

from fedmpi.errors import RankLossError, RoundError, where

Stage = Literal[
    "submodel_creation", "local_training", "aggregation", "svd", "communication", "evaluation", "saving", "idle"
]
STAGES: tuple[Stage, ...] = get_args(Stage)


class Waiting(Protocol):
    """The running totals that a communicator keeps."""

    idle_s: float
    communication_s: float


class Timer:
    """`seconds` is there once the stage has ended."""

    seconds = 0.0


class Clock:
    """Seconds spent in each stage since the last `take`; what `waiting` counts within a stage is taken out of it."""

    def __init__(self, waiting: Waiting) -> None:
        self._waiting = waiting
        self._seconds: dict[str, float] = dict.fromkeys(STAGES, 0.0)
        self._begun = time.perf_counter()
        self._here: tuple[str, int | None, int | None] = ("start", None, None)

    @contextmanager
    def stage(self, stage: Stage, round_number: int | None = None, client: int | None = None) -> Iterator[Timer]:
        """Counts the time within (stages must not nest); an exception leaves as a `RoundError` that says where."""
        started = time.perf_counter()
        idle, communication = self._waiting.idle_s, self._waiting.communication_s
        timer = Timer()
        self._here = stage, round_number, client
        try:
            yield timer
        except (RoundError, RankLossError):
            raise
        except Exception as error:
            raise RoundError(stage, round_number=round_number, client=client) from error
        finally:
            idle, communication = self._waiting.idle_s - idle, self._waiting.communication_s - communication
            timer.seconds = time.perf_counter() - started - idle - communication
            self._seconds[stage] += timer.seconds
            self._seconds["idle"] += idle
            self._seconds["communication"] += communication

    def where(self) -> str:
        """The stage that was entered last, in words; may be called by another thread."""
        return where(*self._here)

    def take(self) -> dict[str, float]:
        """Seconds by stage and in all (`wall`) since the last call, and starts anew."""
        now = time.perf_counter()
        taken = {**self._seconds, "wall": now - self._begun}
        self._seconds, self._begun = dict.fromkeys(STAGES, 0.0), now
        return taken
