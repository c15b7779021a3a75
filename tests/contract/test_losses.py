"""A loss of ranks at every call that could tell of one: the round continues, trains nobody twice, to the same bits."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import method_cases
import pytest
from fast import fast
from small_runs import small_setup

from fedmpi import train_round
from fedmpi.errors import RankLossError
from fedmpi.federation.assignment import Task, assign
from fedmpi.mpi.communicator import Request
from fedmpi.mpi.serial import SerialComm
from fedmpi.rounds.recovering import OpenRound
from fedmpi.rounds.state import Setup
from fedmpi.running import resuming
from fedmpi.store.stored import digest_of

NUM_ROUNDS = 2
CASES = {
    f"{case}, {exchange}": (*method_cases.CASES[case], f"mpi.exchange={exchange}")
    for case in ("fedhm", "topk", "lgfedavg", "fdnnc", "scaffold", "hermes")
    for exchange in ("gather", "reduce")
} | {
    "fedhm, shared": (*method_cases.CASES["fedhm"], "mpi.factorization=shared"),
    "fedhm, audited": method_cases.CASES["fedhm-auto"],
}
"""Without and with client memories, with personal tests, with several phases."""


class LossyRequest:
    """Waiting for it may fail, too."""

    def __init__(self, comm: LossyComm, request: Request) -> None:
        self._comm, self._request = comm, request

    def wait(self) -> None:
        self._comm._call(self._request.wait)


class LossyComm(SerialComm):
    """One process, told of a loss at the `fails_at`-th call, before it has done its work or after."""

    recovers = True

    def __init__(self, fails_at: int = -1, after: bool = False) -> None:
        super().__init__()
        self.num_calls, self._fails_at, self._after = 0, fails_at, after

    def _call(self, call: Callable[..., Any], *arguments: Any) -> Any:
        fails = self.num_calls == self._fails_at
        self.num_calls += 1
        if fails and not self._after:
            raise RankLossError
        value = call(*arguments)
        if fails:
            raise RankLossError
        return value


def _lossy(name: str) -> Callable[..., Any]:
    def call(self: LossyComm, *arguments: Any) -> Any:
        value = self._call(getattr(super(LossyComm, self), name), *arguments)
        return LossyRequest(self, value) if name.startswith("start_") else value

    return call


CALLS = tuple(
    """
    bcast reduce_sum allreduce_sum start_gather start_barrier gather_rows allgather_rows allgather_text
    wait_for_all agree
""".split()
)
for _name in CALLS:
    setattr(LossyComm, _name, _lossy(_name))


def rounds(setup: Setup, comm: LossyComm) -> tuple[list[Any], list[tuple[int, str, int]]]:
    """What comes of the rounds, and the clients (with round and phase) in the order in which they were trained."""
    setup = replace(setup, comm=comm)
    opened = OpenRound(1, resuming.initial_state(setup, None))
    trained, results = [], []
    simulate = train_round.simulate_client

    def counted(setup: Setup, task: Task, published: Any) -> Any:
        trained.append((task.round_number, task.phase, task.client))
        return simulate(setup, task, published)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(train_round, "simulate_client", counted)
        while opened.number <= NUM_ROUNDS:
            try:
                result = train_round.train_round(setup, opened)
                comm.agree()
            except RankLossError:
                opened.has_lost_ranks = True
                continue
            scores = result.client_scores.correct.tolist() if hasattr(result.client_scores, "correct") else None
            told = [(report.client, report.status, report.loss, report.memory_digest) for report in result.reports]
            results += [told, result.scores, scores, digest_of(opened.state.params), dict(opened.state.memories)]
            opened = OpenRound(opened.number + 1, opened.state, opened.published)
    return results, trained


SLOW = (("fedhm, gather", 1), ("hermes, reduce", 1), ("fedhm, shared", 1))
FAST = (("fedhm, gather", 9), ("lgfedavg, reduce", 9), ("topk, gather", 9))
ALL = (*FAST, *((case, 1) for case in CASES))


@pytest.mark.parametrize(("case", "every"), fast(*FAST, of=ALL, slow=SLOW))
def test_a_loss_at_every_call(tmp_path: Path, case: str, every: int) -> None:
    """At each of them, or, quicker, at some that are `every` calls apart."""
    setup = small_setup(tmp_path, *CASES[case], "evaluation.every=1", "data.num_train=80", "data.num_test=16")
    quiet = LossyComm()
    expected, trained = rounds(setup, quiet)
    assert quiet.num_calls >= 10 and len(set(trained)) == len(trained)
    for number in range(every // 2, quiet.num_calls, every):
        for after in (False, True):
            told, again = rounds(setup, LossyComm(number, after))
            assert told == expected, f"another result after a loss at call {number}"
            assert again == trained, f"a loss at call {number} cost a client"


def test_a_loss_while_two_parts_are_under_way(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on several ranks, where rank 0 receives one part while it adds another."""
    monkeypatch.setattr("fedmpi.rounds.receiving.is_ahead", lambda num_ranks, num_parts: num_parts > 1)
    test_a_loss_at_every_call(tmp_path, "fedhm, gather", 5)


def test_results_at_hand_come_first_and_cost_nothing() -> None:
    """Costs 5, 4, 3, 2, 1; client 4's result lies on rank 2, client 1's on rank 1: 5, 3 and 2 are dealt as if anew."""
    tasks = [Task(cost, 0, 1, "", 10, float(cost)) for cost in (5, 4, 3, 2, 1)]
    planned = assign(tasks, range(1, 3), 3, {4: 2, 1: 1})
    assert [[task.client for task in own] for own in planned.by_rank] == [[], [1, 5], [4, 3, 2]]
    assert [task.client for task in planned.tasks] == [1, 2, 3, 4, 5]
    anew = assign(tasks, range(1, 3), 3)
    assert [[task.client for task in own] for own in anew.by_rank] == [[], [5, 2, 1], [4, 3]]
