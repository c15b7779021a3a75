"""What was drawn does not depend on ranks, nor on their losses: `fedmpi.draws` of a run that has lost one."""

from pathlib import Path

import pytest
from launched import ULFM, Start, has_rounds, kill, last_start
from small_runs import run_all, small_config

from fedmpi.draws import Draws
from fedmpi.mpi.serial import SerialComm

WORDS = ("method.name=prism", "evaluation.every=10", "output.progress=plain", "rounds=30")


@pytest.mark.slow
def test_draws_after_a_loss(start: Start, run_dir: Path, tmp_path: Path) -> None:
    launched = start(3, *WORDS, run_dir=run_dir, options=ULFM)
    assert launched.wait_until(has_rounds(run_dir, 2)), launched.err
    kill(launched, 2)
    assert launched.wait() == 0, launched.err
    assert [loss["rank"] for loss in last_start(run_dir)["losses"]] == [2]
    run_all(small_config(*WORDS), SerialComm(), tmp_path / "alone")
    ours, theirs = Draws(run_dir), Draws(tmp_path / "alone")
    assert ours.rounds == theirs.rounds == list(range(1, 31))
    assert all(ours.of_round(number) == theirs.of_round(number) for number in ours.rounds)
