"""Moments of a run at which ranks are attacked or fail: where a stage of a round begins."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from types import SimpleNamespace
from unittest import mock

from fedmpi.clock import Clock, Stage

SERVER_STAGES: tuple[Stage, ...] = ("communication", "aggregation", "svd", "evaluation", "saving")
WORKER_STAGES: tuple[Stage, ...] = ("communication", "local_training", "submodel_creation", "aggregation", "evaluation")


def at_stages(act: Callable[[str, int | None], object]) -> AbstractContextManager[object]:
    """Within it, `act(stage, round)` is called in every stage that this process enters, as soon as it does."""
    enter = Clock.stage

    @contextmanager
    def stage(
        clock: Clock, stage: Stage, round_number: int | None = None, client: int | None = None
    ) -> Iterator[SimpleNamespace]:
        with enter(clock, stage, round_number, client) as timer:
            act(stage, round_number)
            yield timer

    return mock.patch.object(Clock, "stage", stage)
