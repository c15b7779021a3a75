"""The clients of a round, and the learning rate they train with."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from functools import partial
from itertools import accumulate, chain

from fedmpi import seeds
from fedmpi.config.schema import CosineSchedule, Train
from fedmpi.federation.tiers import tier_of


def sample_cohort(eligible: int | Sequence[int], size: int, *, seed: int, round_number: int, phase: str) -> list[int]:
    """`size` distinct clients, uniformly, sorted; `eligible` is how many there are, or which.

    Costs O(size) memory, not O(clients): a million registered clients are as cheap as twenty.
    """
    count = eligible if isinstance(eligible, int) else len(eligible)
    drawn = sorted(_distinct(count, min(size, count), seeds.numpy_generator(f"cohort:{phase}", seed, round_number)))
    return drawn if isinstance(eligible, int) else [eligible[place] for place in drawn]


def eligible_clients(
    blocks: Sequence[int], tiers: Collection[int] | None, *, dynamic: bool, seed: int, round_number: int
) -> int | Sequence[int]:
    """The clients of these tiers in this round (None: all), as `sample_cohort` takes them.

    With fixed tiers a tier is a range of clients, so one tier of a million costs nothing to name.
    """
    if tiers is None:
        return sum(blocks)
    if dynamic:
        draw = partial(tier_of, blocks=blocks, dynamic=True, seed=seed, round_number=round_number)
        return [client for client in range(sum(blocks)) if draw(client) in tiers]
    ends = list(accumulate(blocks))
    ranges = [range(ends[tier] - blocks[tier], ends[tier]) for tier in sorted(tiers)]
    return ranges[0] if len(ranges) == 1 else list(chain(*ranges))


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
