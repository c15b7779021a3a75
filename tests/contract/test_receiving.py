"""Under `gather` rank 0 receives the next part while it adds one, and a worker holds what rank 0 has not added."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cache

import pytest
import torch
from small_runs import small_setup
from torch import Tensor

from fedmpi.federation.assignment import Assignment, assign
from fedmpi.mpi.serial import SerialComm
from fedmpi.rounds import exchange, receiving
from fedmpi.rounds.client import simulate_client
from fedmpi.rounds.exchange import ClientResult, OpenPhase, open_exchange
from fedmpi.rounds.publish import publish
from fedmpi.rounds.state import ServerState, open_phase, plan_phase

WORDS = ("method.name=fedhm", "method.rank_ratio=[1,0.5]", "clients.per_round=7", "rounds=1")


@dataclass
class Board:
    """What the ranks of a job in one process have sent, and what rank 0 did, in order."""

    sent: dict[tuple[int, int], Tensor] = field(default_factory=dict)
    done: list[str] = field(default_factory=list)


@dataclass
class Wait:
    """A request that is done by calling this."""

    wait: Callable[[], None]


class Rank(SerialComm):
    """One of several ranks on a board; its messages arrive when rank 0 waits for them, and no sooner."""

    def __init__(self, board: Board, rank: int, size: int) -> None:
        super().__init__()
        self.board, self.rank, self.size, self.is_root = board, rank, size, rank == 0
        self.num_gathers = 0

    def start_gather(self, send: Tensor, num_bytes: list[int], receive: Tensor) -> Wait:
        number, self.num_gathers = self.num_gathers, self.num_gathers + 1
        self.board.sent[number, self.rank] = send[: num_bytes[self.rank]].clone()
        if not self.is_root:
            return Wait(lambda: None)
        self.board.done.append("receive")
        target = receive[: sum(num_bytes)].fill_(255)  # bytes of no upload

        @cache  # a request that is done stays so
        def arrive() -> None:
            self.board.done.append("wait")
            target.copy_(torch.cat([self.board.sent[number, rank] for rank in range(self.size)]))

        return Wait(arrive)


@pytest.fixture(scope="module")
def phase(tmp_path_factory: pytest.TempPathFactory) -> tuple[OpenPhase, dict[int, ClientResult], ServerState]:
    """The first phase of a run on one rank, what each client sends in it, and the state before."""
    setup = small_setup(tmp_path_factory.mktemp("receiving"), *WORDS)
    state = ServerState(setup.method.initial_state())
    planned = plan_phase(setup, 1, setup.method.phases(1)[0])
    published = publish(setup, state, 1, 0)
    results = {}
    for task in planned.tasks:
        report, upload = simulate_client(setup, task, published)
        results[task.client] = report, None if upload is None else {name: v.clone() for name, v in upload.items()}
    return open_phase(setup, planned, published), results, state


def on_ranks(phase: OpenPhase, size: int) -> Assignment:
    return assign(phase.assignment.tasks, range(1, size), size)


@pytest.mark.parametrize("part_bytes", [receiving.PART_BYTES, 1], ids=["waves", "parts"])
@pytest.mark.parametrize("size", [2, 3, 5])
def test_the_next_part_is_under_way_while_one_is_added(
    phase: tuple[OpenPhase, dict[int, ClientResult], ServerState],
    size: int,
    part_bytes: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """To the bits of one rank. The last part has none after it."""
    opened, results, state = phase
    alone = open_exchange("gather", opened)
    for (task,) in opened.assignment.waves:
        alone.post(task, results[task.client])
    expected = alone.finish(state.params)
    board, planned = Board(), on_ranks(opened, size)
    monkeypatch.setattr(receiving, "PART_BYTES", part_bytes)
    add = exchange._Sums.add
    monkeypatch.setattr(exchange._Sums, "add", lambda *given: (board.done.append("add"), add(*given)))
    for rank in (*range(1, size), 0):  # rank 0 last: what it waits for was sent
        own = open_exchange("gather", replace(opened, comm=Rank(board, rank, size), assignment=planned))
        num_posted = 0
        for wave in planned.waves:
            task = wave[rank]
            own.post(task, results[task.client] if task else None)
            num_posted += sum(task is not None for task in wave)
            if rank == 0:
                assert num_posted - own.num_awaited() == board.done.count("add")
        found = own.finish(state.params)
    assert found.reports == expected.reports
    assert all(torch.equal(found.means[name], value) for name, value in expected.means.items())
    num_parts = board.done.count("receive")
    assert num_parts == len(planned.waves) if part_bytes > 1 else num_parts >= len(planned.tasks)
    under_way = num_received = 0
    for what in board.done:
        under_way += (what == "receive") - (what == "wait")
        num_received += what == "wait"
        if what == "add":
            assert under_way == (num_received < num_parts)
