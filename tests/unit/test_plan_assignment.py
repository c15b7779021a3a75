"""Who simulates whom: every task once, longest first, near the best makespan, the same on every rank."""

import random
from collections.abc import Sequence
from fractions import Fraction
from itertools import product
from types import SimpleNamespace
from typing import cast

import pytest

from fedmpi.federation.assignment import Assignment, Task, assign, worker_ranks
from fedmpi.methods.protocol import Method
from fedmpi.rounds.exchange import choose


def tasks_of(costs: Sequence[float], tiers: Sequence[int] = ()) -> list[Task]:
    """Client i costs costs[i] and has the tier tiers[i], or 0."""
    pairs = enumerate(zip(costs, tiers or [0] * len(costs), strict=True))
    return [Task(client, tier, 1, "train", 10, float(cost)) for client, (cost, tier) in pairs]


def clients(assignment: Assignment) -> list[list[int]]:
    return [[task.client for task in own] for own in assignment.by_rank]


def makespan(assignment: Assignment) -> float:
    return max(sum(task.cost for task in own) for own in assignment.by_rank)


def test_rank_0_trains_alone_or_when_asked() -> None:
    workers = {(1, False): [0], (1, True): [0], (2, False): [1], (2, True): [0, 1], (5, False): [1, 2, 3, 4]}
    for (size, server_trains), expected in workers.items():
        assert list(worker_ranks(size, server_trains=server_trains)) == expected


def test_late_nets_come_last_on_each_rank() -> None:
    """Costs 5, 4, 2, 1 on ranks 1 and 2 are 5 + 1 and 4 + 2; clients 0 and 2 have tier 1, which is late."""
    tasks = tasks_of([5, 4, 2, 1], tiers=[1, 0, 1, 0])
    assert clients(assign(tasks, [1, 2], 3, late_nets={1})) == [[], [3, 0], [1, 2]]


def test_a_worker_that_waits_for_rank_0_gets_less() -> None:
    """Rank 0 takes 8, and all clients but the first need what it computes.

    Client 0 goes to rank 1 (10). Client 1 would end at 10 + 5 or 8 + 5: rank 2. Client 2: 10 + 4 or 13 + 4: rank 1.
    Client 3: 14 + 3 or 13 + 3: rank 2. Both end near 15; without the wait rank 2 would have had all but client 0.
    """
    tasks = tasks_of([10, 5, 4, 3], tiers=[0, 1, 1, 1])
    assert clients(assign(tasks, [1, 2], 3, late_nets={1}, late_cost=8)) == [[], [0, 2], [1, 3]]
    # Rank 1 could train the dense client while it waits, and rank 2 ends sooner.
    tasks = tasks_of([5, 4], tiers=[1, 0])
    assert clients(assign(tasks, [1, 2], 3, late_nets={1}, late_cost=8)) == [[], [0], [1]]


def test_longest_first_by_hand() -> None:
    """Costs 2, 3, 3, 2, 2 on ranks 1 and 2: 3 to each, then client 0 to rank 1, 3 to rank 2, and 4 to rank 1 (5 = 5).

    Makespan 7, while 3 + 3 and 2 + 2 + 2 would take 6: Graham's worst case for two workers, 4/3 - 1/6.
    """
    assignment = assign(tasks_of([2, 3, 3, 2, 2]), range(1, 3), 3)
    assert clients(assignment) == [[], [1, 0, 4], [2, 3]]
    assert makespan(assignment) == 7
    # Wave j has the j-th task of each rank; rank 0, the server, has none and rank 2 nothing left in the last.
    waves = [[None if task is None else task.client for task in wave] for wave in assignment.waves]
    assert waves == [[None, 1, 2], [None, 0, 3], [None, 4, None]]


@pytest.mark.parametrize(
    ("costs", "workers", "size", "expected"),
    [
        ([2, 2, 8, 2, 2], (0, 1), 2, [[2], [0, 1, 3, 4]]),  # one long client does not hold up the others
        ([1] * 7, (1, 2, 3), 4, [[], [0, 3, 6], [1, 4], [2, 5]]),  # ties go to the lowest client and rank
        ([1, 5], range(1, 5), 5, [[], [1], [0], [], []]),
        ([], range(1, 3), 3, [[], [], []]),
    ],
)
def test_who_gets_what(costs: list[float], workers: Sequence[int], size: int, expected: list[list[int]]) -> None:
    assignment = assign(tasks_of(costs), workers, size)
    assert clients(assignment) == expected and len(assignment.waves) == max(map(len, expected))


def random_rounds(num_rounds: int, most_tasks: int) -> list[tuple[list[Task], range, int]]:
    """(tasks, workers, size); few different costs, so that there are ties."""
    chance, rounds = random.Random(11), []
    for _ in range(num_rounds):
        size = chance.randint(1, 4)
        costs = [chance.choice([1, 2, 3, 5, 8, 13, 0.5]) for _ in range(chance.randint(1, most_tasks))]
        rounds.append((tasks_of(costs), worker_ranks(size, server_trains=chance.random() < 0.3), size))
    return rounds


@pytest.mark.parametrize(("tasks", "workers", "size"), random_rounds(30, 40))
def test_every_task_once_on_a_worker_in_waves(tasks: list[Task], workers: range, size: int) -> None:
    """Every rank computes the plan for itself: ties must fall the same way whatever order the cohort comes in."""
    assignment = assign(tasks, workers, size)
    assert list(assignment.tasks) == tasks and len(assignment.by_rank) == size
    assert sorted(c for own in clients(assignment) for c in own) == list(range(len(tasks)))
    assert not any(own for rank, own in enumerate(assignment.by_rank) if rank not in workers)
    for own in assignment.by_rank:
        assert [task.cost for task in own] == sorted((task.cost for task in own), reverse=True)
    in_waves = [[wave[rank].client for wave in assignment.waves if wave[rank]] for rank in range(size)]
    assert in_waves == clients(assignment)
    assert all(len(wave) == size and any(wave) for wave in assignment.waves)
    assert assign(random.Random(12).sample(tasks, len(tasks)), workers, size) == assignment


@pytest.mark.parametrize(("tasks", "workers", "size"), random_rounds(40, 7))
def test_within_four_thirds_of_the_best(tasks: list[Task], workers: range, size: int) -> None:
    """Graham 1969: longest first takes at most 4/3 - 1/(3m) of the best makespan of m workers, found by trying all."""
    best = min(
        max(sum(task.cost for task, rank in zip(tasks, ranks, strict=True) if rank == own) for own in workers)
        for ranks in product(workers, repeat=len(tasks))
    )
    limit = Fraction(4, 3) - Fraction(1, 3 * len(workers))
    assert best <= makespan(assign(tasks, workers, size)) <= limit * Fraction(best)


@pytest.mark.parametrize(
    ("clients", "size", "expected"),
    [(20, 1, "reduce"), (20, 2, "gather"), (20, 3, "reduce"), (16, 3, "reduce"), (15, 3, "gather"), (20, 5, "gather")],
)
def test_the_exchange_of_auto(clients: int, size: int, expected: str) -> None:
    """8 clients for each of at least two workers, or one rank alone."""
    method = cast(Method, SimpleNamespace(options=SimpleNamespace(aggregate="mean")))
    assignment = assign(tasks_of([1] * clients), worker_ranks(size, server_trains=False), size)
    assert choose("auto", method, assignment) == expected
    assert choose("gather", method, assignment) == "gather"
