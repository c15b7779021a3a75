"""The clients of a round, and the learning rate they train with."""

from __future__ import annotations

import math
from collections.abc import Sequence

from fedmpi import seeds
from fedmpi.config.schema import CosineSchedule, Train


def sample_cohort(eligible: int | Sequence[int], size: int, *, seed: int, round_number: int, phase: str) -> list[int]:
    """`size` distinct clients, uniformly, sorted; `eligible` is how many there are, or which.

    Costs O(size) memory, not O(clients): a million registered clients are as cheap as twenty.
    """
    count = eligible if isinstance(eligible, int) else len(eligible)
    drawn = sorted(_distinct(count, min(size, count), seeds.numpy_generator(f"cohort:{phase}", seed, round_number)))
    return drawn if isinstance(eligible, int) else [eligible[place] for place in drawn]


def _distinct(count: int, size: int, generator: object) -> list[int]:
    """Floyd's algorithm (Bentley and Floyd, CACM 30(9), 1987): a uniform set of `size` out of `count`."""
    chosen: set[int] = set()
    for last in range(count - size, count):
        candidate = int(generator.integers(last + 1))  # type: ignore[attr-defined]
        chosen.add(last if candidate in chosen else candidate)
    return list(chosen)


def learning_rate(train: Train, round_number: int, num_rounds: int) -> float:
    """The rate of round t, counted from 1: the schedule advances after each round."""
    schedule = train.schedule
    if isinstance(schedule, CosineSchedule):
        share = (1 + math.cos(math.pi * (round_number - 1) / num_rounds)) / 2
        return schedule.final_lr + (train.lr - schedule.final_lr) * share
    return train.lr * schedule.factor ** sum(milestone <= round_number - 1 for milestone in schedule.milestones)
