"""What every method must keep, whatever it does: the checks of `fedmpi.check.contract`, on every case.

A method joins with a line in tests/method_cases.py. A case that is exempt from a property stands in a set there; what
it keeps instead is proved in its own test file.
"""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from fast import fast
from method_cases import BYTES_DIFFER, CASES, MOVES_WITHOUT_TRAINING
from plain_round import plain_round
from small_runs import one_round, small_setup

from fedmpi.check import contract
from fedmpi.check.contract import Trial
from fedmpi.methods.values import ClientLoad
from fedmpi.rounds.state import ServerState
from fedmpi.store.hdf5 import digest_of

METHODS = [case for case in CASES if "-" not in case]
"""One case of each method, for the fast run."""
CHECKED = [(check, case) for check in contract.CHECKS for case in CASES]
FAST = [(check, case) for check, case in CHECKED if case in ("fedavg", "fedhm", "hermes", "prism", "splitmix", "topk")]


@pytest.mark.parametrize(("check", "case"), fast(*FAST, of=CHECKED), ids=lambda part: getattr(part, "__name__", part))
def test_every_method_keeps_its_contract(case: str, check: Callable, trial_of: Callable[[str], Trial]) -> None:
    check(trial_of(case))


@pytest.mark.parametrize("case", fast(*METHODS, "fedavg-samples", of=CASES))
def test_a_round_has_the_bits_of_plain_steps(tmp_path: Path, case: str) -> None:
    setup = small_setup(tmp_path, *CASES[case], "evaluation.every=3")
    plain = engine = ServerState(setup.method.initial_state())
    for number in (1, 2):
        plain = plain_round(setup, number, plain)
        engine = one_round(setup, number, engine)[0]
        assert digest_of(plain.params) == digest_of(engine.params) and plain.memories == engine.memories


STILL = [case for case in CASES if case not in MOVES_WITHOUT_TRAINING]


@pytest.mark.parametrize("case", fast(*(case for case in STILL if case in METHODS), of=STILL))
@pytest.mark.usefixtures("without_training")
def test_without_training_nothing_moves(case: str, tmp_path: Path) -> None:
    """What is left is the rounding of sums and of float32 (and of an SVD, where a method has one)."""
    setup = small_setup(tmp_path, *CASES[case])
    first = ServerState(setup.method.initial_state())
    state, _, _ = one_round(setup, 1, first)
    for name in setup.method.state_specs():
        before, after = first.params[name], state.params[name]
        torch.testing.assert_close(after, before, rtol=0, atol=1e-5 * max(1.0, float(before.abs().max())), msg=name)


@pytest.mark.parametrize("case", fast(*METHODS, of=CASES))
def test_protocol_bytes_are_four_per_parameter(case: str, trial_of: Callable[[str], Trial]) -> None:
    """Both ways, of the client's own net, in the plan and as counted; other formulas are in BYTES_DIFFER."""
    for phase in trial_of(case).phases:
        for task in phase.assignment.tasks:
            report, tier = phase.results[task.client][0], task.tier
            params = sum(parameter.numel() for parameter in phase.method.net(tier, empty=True).parameters())
            turn = phase.method.costs(ClientLoad(tier))
            planned, counted = (turn.down_bytes, turn.up_bytes), (report.down_bytes, report.up_bytes)
            assert (planned == counted == (4 * params, 4 * params)) or case in BYTES_DIFFER
            assert min(*planned, *counted) >= 0
