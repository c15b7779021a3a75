"""The clients of a round, and the learning rate they train with."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Sequence
from functools import partial
from itertools import accumulate, islice
from typing import TYPE_CHECKING

from numpy.random import Generator

from fedmpi import seeds
from fedmpi.federation.tiers import tier_of

if TYPE_CHECKING:
    from fedmpi.config.schema import Train


def sample_cohort(eligible: Sequence[range], size: int, *, seed: int, round_number: int, phase: str) -> list[int]:
    """`size` distinct clients out of these ranges, uniformly, sorted; all of them if there are fewer.

    Costs O(size) memory, not O(clients): a million registered clients are as cheap as twenty.
    """
    count = sum(map(len, eligible))
    drawn = sorted(_distinct(count, min(size, count), seeds.numpy_generator(f"cohort:{phase}", seed, round_number)))
    return [_at(eligible, place) for place in drawn]


def _at(ranges: Sequence[range], place: int) -> int:
    """What is at this place of all ranges, one after the other."""
    for numbers in ranges:
        if place < len(numbers):
            return numbers[place]
        place -= len(numbers)
    raise IndexError(place)


def eligible_clients(blocks: Sequence[int], tiers: Collection[int] | None) -> list[range]:
    """The clients of these fixed tiers (None: all); a tier is a range of clients, `blocks` has their lengths."""
    ends = list(accumulate(blocks))
    asked = range(len(blocks)) if tiers is None else sorted(tiers)
    return [range(ends[tier] - blocks[tier], ends[tier]) for tier in asked]


def sample_drawn_tiers(
    blocks: Sequence[int], tiers: Collection[int], size: int, *, seed: int, round_number: int, phase: str
) -> list[int]:
    """Draws as `sample_cohort` does, among the clients that draw one of these tiers in this round.

    Clients are asked in random order until enough have drawn one: O(size / share of these tiers) of them, not all.
    """
    count = sum(blocks)
    if not any(blocks[tier] for tier in tiers):
        return []
    order = _random_order(count, seeds.numpy_generator(f"cohort:{phase}", seed, round_number))
    draw = partial(tier_of, blocks=blocks, dynamic=True, seed=seed, round_number=round_number)
    return sorted(islice((client for client in order if draw(client) in tiers), size))


def _random_order(count: int, generator: Generator) -> Iterator[int]:
    """0 .. count - 1 in uniformly random order: Fisher and Yates's shuffle that keeps only what it has moved."""
    moved: dict[int, int] = {}
    for last in range(count - 1, -1, -1):
        place = int(generator.integers(last + 1))
        chosen = moved.get(place, place)
        moved[place] = moved.pop(last, last)
        yield chosen


def _distinct(count: int, size: int, generator: Generator) -> set[int]:
    """Floyd's algorithm (Bentley and Floyd, CACM 30(9), 1987): a uniform set of `size` out of `count`."""
    chosen: set[int] = set()
    for last in range(count - size, count):
        candidate = int(generator.integers(last + 1))
        chosen.add(last if candidate in chosen else candidate)
    return chosen


def learning_rate(train: Train, round_number: int, num_rounds: int) -> float:
    """The rate of round t, counted from 1: the schedule advances after each round."""
    schedule = train.schedule
    if schedule.name == "cosine":
        share = (1 + math.cos(math.pi * (round_number - 1) / num_rounds)) / 2
        return schedule.final_lr + (train.lr - schedule.final_lr) * share
    return train.lr * schedule.factor ** sum(milestone <= round_number - 1 for milestone in schedule.milestones)
