"""The clients of a round, and the learning rate they train with."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence
from itertools import accumulate
from typing import TYPE_CHECKING

from numpy.random import Generator

if TYPE_CHECKING:
    from fedmpi.config.schema import Train


def sample_cohort(eligible: Sequence[Sequence[int]], size: int, generator: Generator) -> list[int]:
    """Returns `size` distinct clients out of these ranges, uniformly, sorted; all of them if there are fewer.

    Costs O(size) memory, not O(clients): a million registered clients are as cheap as twenty.
    """
    count = sum(map(len, eligible))
    positions = sorted(_distinct(count, min(size, count), generator))
    return [_client_at(eligible, position) for position in positions]


def _client_at(ranges: Sequence[Sequence[int]], position: int) -> int:
    """Returns the client at this position of the ranges, joined."""
    for clients in ranges:
        if position < len(clients):
            return clients[position]
        position -= len(clients)
    raise IndexError(position)


def eligible_clients(blocks: Sequence[int], tiers: Collection[int] | None) -> list[range]:
    """Returns the range of clients of each of these fixed tiers (None: all); `blocks` has the sizes of all tiers."""
    ends = list(accumulate(blocks))
    chosen = range(len(blocks)) if tiers is None else sorted(tiers)
    return [range(ends[tier] - blocks[tier], ends[tier]) for tier in chosen]


def sample_among(count: int, can_take_part: Callable[[int], bool], size: int, generator: Generator) -> list[int]:
    """Draws `size` of the clients that can take part, uniformly, or all if there are fewer. Returns them sorted.

    Asks clients in random order until `size` can: O(size / their share) of them.
    """
    asked: dict[int, bool] = {}
    num_chosen = 0
    while num_chosen < size and len(asked) < count:
        client = int(generator.integers(count))
        if client not in asked:
            asked[client] = can_take_part(client)
            num_chosen += asked[client]
    return sorted(client for client, is_chosen in asked.items() if is_chosen)


def _distinct(count: int, size: int, generator: Generator) -> set[int]:
    """Draws a uniform set of `size` out of `count` by Floyd's algorithm (Bentley and Floyd, CACM 30(9), 1987)."""
    chosen: set[int] = set()
    for last in range(count - size, count):
        candidate = int(generator.integers(last + 1))
        chosen.add(last if candidate in chosen else candidate)
    return chosen


def learning_rate(train: Train, round_number: int, num_rounds: int) -> float:
    """Returns the rate of round t, counted from 1: the schedule advances after each round."""
    schedule = train.schedule
    if schedule.name == "cosine":
        share = (1 + math.cos(math.pi * (round_number - 1) / num_rounds)) / 2
        return 1e-4 + (train.lr - 1e-4) * share  # where PriSM's code ends, too
    return train.lr * schedule.factor ** sum(milestone <= round_number - 1 for milestone in schedule.milestones)
