"""Who simulates whom: clients to workers, longest job first.

Every rank computes the same plan, so nothing of it is ever sent. A client's cost is the
multiply-accumulates of its training (steps x batch x MACs of its tier), not its samples: a
full-rank client may cost twice a low-rank one. Greedy longest-processing-time assignment is within
4/3 of the best makespan (Graham, SIAM J. Appl. Math. 17(2), 1969).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

PART_BYTES = 128 * 2**20
"""A wave of uploads of more bytes travels in parts: rank 0 would else need more memory than any of many workers."""


@dataclass(frozen=True)
class Task:
    """One client's work in one phase of one round; `place` is its position in the sorted cohort of `cohort_size`."""

    client: int
    tier: int
    round_number: int
    phase: str
    num_examples: int
    cost: float
    place: int = 0
    cohort_size: int = 1


@dataclass(frozen=True)
class Assignment:
    """Tasks of each rank, longest first; `waves[j]` has the j-th task of every rank (None where it has none)."""

    tasks: tuple[Task, ...]
    by_rank: tuple[tuple[Task, ...], ...]

    @property
    def waves(self) -> list[tuple[Task | None, ...]]:
        longest = max(map(len, self.by_rank), default=0)
        return [tuple(own[j] if j < len(own) else None for own in self.by_rank) for j in range(longest)]


def parts_of(wave: Sequence[Task | None], num_bytes: Sequence[int], most_bytes: int) -> list[tuple[Task | None, ...]]:
    """The wave in parts of neighbouring ranks with at most so many bytes in all, or with one task; in a part the other
    ranks have None. One part at least.
    """
    part_of, part, left_bytes = [], 0, most_bytes
    for count in num_bytes:
        if count > left_bytes and left_bytes < most_bytes:
            part, left_bytes = part + 1, most_bytes
        part_of.append(part)
        left_bytes -= count
    return [
        tuple(task if of == number else None for task, of in zip(wave, part_of, strict=True))
        for number in range(part + 1)
    ]


def worker_ranks(size: int, *, server_trains: bool) -> range:
    """The ranks that train clients: all but rank 0, unless it is alone or asked to."""
    return range(0 if server_trains or size == 1 else 1, size)


def assign(tasks: Sequence[Task], workers: Sequence[int], size: int) -> Assignment:
    """Assigns each task, longest first, to the worker with the least work so far (ties: lowest rank, lowest client)."""
    load = dict.fromkeys(workers, 0.0)
    own: list[list[Task]] = [[] for _ in range(size)]
    for task in sorted(tasks, key=lambda task: (-task.cost, task.client)):
        rank = min(load, key=lambda worker: (load[worker], worker))
        own[rank].append(task)
        load[rank] += task.cost
    return Assignment(tuple(sorted(tasks, key=lambda task: task.client)), tuple(map(tuple, own)))
