"""A loss of ranks at every call that could tell of one: the round is trained again, to the same bits."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import method_cases
import pytest
from fast import fast
from small_runs import small_setup

from fedmpi.errors import RankLossError
from fedmpi.mpi.communicator import SerialComm
from fedmpi.rounds.exchange import Gather
from fedmpi.rounds.state import Setup
from fedmpi.running import resuming
from fedmpi.store.hdf5 import digest_of
from fedmpi.train_round import train_round

NUM_ROUNDS = 2
CASES = {
    f"{case}, {exchange}": (*method_cases.CASES[case], f"mpi.exchange={exchange}")
    for case in ("fedhm", "fedhm-low-only", "topk", "lgfedavg", "fdnnc", "scaffold", "hermes")
    for exchange in ("gather", "reduce")
}
"""Without and with client memories, with factors that all ranks compute, with personal tests, with several phases."""


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
        return partial(self._call, value) if name.startswith("start_") else value  # waiting may fail, too

    return call


for _name in "bcast start_bcast bcast_object reduce_sum allreduce_sum start_send allgather_object agree".split():
    setattr(LossyComm, _name, _lossy(_name))


def rounds(setup: Setup, comm: LossyComm) -> list[Any]:
    """Trains the rounds, each again after a loss; returns what comes of them."""
    setup = replace(setup, comm=comm)
    state, published, number = resuming.initial_state(setup, None), None, 1
    results: list[Any] = []
    while number <= NUM_ROUNDS:
        try:
            new_state, new_published, result = train_round(setup, number, state, published)
            comm.agree()
        except RankLossError:
            published = None
            continue
        state, published, number = new_state, new_published, number + 1
        scores = result.client_scores.accuracy.tolist() if result.client_scores else None
        told = [(report.client, report.status, report.loss, report.memory_digest) for report in result.reports]
        results += [told, result.scores, scores, digest_of(state.params), dict(state.memories)]
    return results


SLOW = (("fedhm, gather", 1), ("hermes, reduce", 1))
FAST = (("fedhm, gather", 9), ("fedhm-low-only, gather", 9), ("lgfedavg, reduce", 9), ("topk, gather", 9))
ALL = (*FAST, *((case, 1) for case in CASES))


@pytest.mark.parametrize(("case", "every"), fast(of=ALL, slow=(*FAST, *SLOW)))
def test_a_loss_at_every_call(tmp_path: Path, case: str, every: int) -> None:
    """At each of them, or, quicker, at some that are `every` calls apart."""
    setup = small_setup(tmp_path, *CASES[case], "evaluation.every=1", "data.num_train=80", "data.num_test=16")
    quiet = LossyComm()
    expected = rounds(setup, quiet)
    assert quiet.num_calls >= 10
    for number in range(every // 2, quiet.num_calls, every):
        for after in (False, True):
            assert rounds(setup, LossyComm(number, after)) == expected, f"another result after a loss at call {number}"


@pytest.mark.slow
def test_a_loss_while_two_uploads_are_under_way(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on several ranks, where rank 0 receives one upload while it adds another."""
    one = property(lambda gather: 1, lambda gather, most: None)
    monkeypatch.setattr(Gather, "_most_under_way", one, raising=False)
    test_a_loss_at_every_call(tmp_path, "fedhm, gather", 5)
