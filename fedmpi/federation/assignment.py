"""Who simulates whom: clients to workers, longest job first.

Every rank computes the same plan, so nothing of it is ever sent. A client's cost is the
multiply-accumulates of its training (steps x batch x MACs of its tier), not its samples: a
full-rank client may cost twice a low-rank one. Greedy longest-processing-time assignment is within
4/3 of the best makespan (Graham, SIAM J. Appl. Math. 17(2), 1969), where no client waits for rank 0.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from itertools import zip_longest


@dataclass(frozen=True)
class Task:
    """A client's work in one phase of one round; `place` is its position in the sorted cohort of `cohort_size`."""

    client: int
    tier: int
    round_number: int
    phase: str
    num_examples: int
    cost: float
    place: int = 0
    cohort_size: int = 1
    share: float = 1.0
    """Share of the round's local work that the client does (`clients.work`)."""
    arrives: bool = True
    """Whether its upload reaches the server (`clients.dropout`, `devices.deadline_s`)."""
    is_late: bool = False
    """Whether it would miss the deadline of its phase: it is not trained (`devices.deadline_s`)."""

    @property
    def load(self) -> float:
        """Returns what the task costs the rank that simulates it: of a client whose upload is lost nothing is used."""
        return self.cost if self.arrives else 0.0


Wave = tuple[Task | None, ...]
"""The task of each rank, None where it has none."""


@dataclass(frozen=True)
class Assignment:
    """Tasks sorted by client, and those of each rank in order; `waves[j]` has the j-th task of every rank."""

    tasks: tuple[Task, ...]
    by_rank: tuple[tuple[Task, ...], ...]

    @property
    def waves(self) -> list[Wave]:
        return list(zip_longest(*self.by_rank))


def worker_ranks(size: int, *, server_trains: bool) -> range:
    """Returns the ranks that train clients: all but rank 0, unless it is alone or `mpi.server_trains` is set."""
    return range(0 if server_trains or size == 1 else 1, size)


def assign(
    tasks: Sequence[Task], workers: Sequence[int], size: int, late_nets: Collection[int] = (), late_cost: float = 0.0
) -> Assignment:
    """Assigns each task, longest first, to the worker that then ends first (ties: lowest rank, lowest client).

    A worker begins with tasks of other tiers than `late_nets`. Tasks of these tiers wait for what rank 0 computes
    meanwhile, at a cost of `late_cost`.
    """
    early = dict.fromkeys(workers, 0.0)
    late = dict.fromkeys(workers, 0.0)

    def end_with(task: Task, rank: int) -> float:
        if task.tier in late_nets:
            return max(early[rank], late_cost) + late[rank] + task.load
        return max(early[rank] + task.load, late_cost if late[rank] else 0.0) + late[rank]

    own: list[list[Task]] = [[] for _ in range(size)]
    for task in sorted(tasks, key=lambda task: (-task.load, task.client)):
        rank = min(workers, key=lambda worker: (end_with(task, worker), worker))
        own[rank].append(task)
        load = late if task.tier in late_nets else early
        load[rank] += task.load
    by_rank = tuple(tuple(sorted(of_rank, key=lambda task: task.tier in late_nets)) for of_rank in own)
    return Assignment(tuple(sorted(tasks, key=lambda task: task.client)), by_rank)
