"""The engine's bits are those of a round in plain steps (`plain_round.py`), for every method."""

from __future__ import annotations

from pathlib import Path

import pytest
from method_cases import CASES
from plain_round import plain_round
from small_runs import one_round, small_setup

from fedmpi.rounds.state import ServerState
from fedmpi.store.stored import digest_of


@pytest.mark.parametrize("case", CASES)
def test_two_rounds(tmp_path: Path, case: str) -> None:
    setup = small_setup(tmp_path, *CASES[case], "evaluation.every=3")
    plain = engine = ServerState(setup.method.initial_state())
    for number in (1, 2):
        plain = plain_round(setup, number, plain)
        engine = one_round(setup, number, engine)[0]
        assert digest_of(plain.params) == digest_of(engine.params) and plain.memories == engine.memories
