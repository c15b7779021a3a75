"""What was drawn does not depend on ranks, nor on their losses: `fedmpi.draws` of a run that has lost one."""

from collections.abc import Callable
from pathlib import Path

import pytest
from launched import ULFM, Launched, has_rounds, kill
from small_runs import run_all, small_config

from fedmpi.draws import Draws
from fedmpi.mpi.serial import SerialComm
from fedmpi.store import manifest
from fedmpi.store.run_dir import RunDir

WORDS = ("method.name=prism", "evaluation.every=10", "output.progress=plain")


@pytest.mark.slow
def test_draws_after_a_loss(start: Callable[..., Launched], tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    launched = start(4, *WORDS, "rounds=30", "--run-dir", str(run_dir), options=ULFM)
    assert launched.wait_until(has_rounds(run_dir, 2)), launched.err
    kill(launched, 2)
    assert launched.wait() == 0, launched.err
    assert [loss["rank"] for loss in manifest.read_starts(RunDir(run_dir))[-1]["losses"]] == [2]
    run_all(small_config(*WORDS, "rounds=30"), SerialComm(), tmp_path / "alone")
    ours, theirs = Draws(run_dir), Draws(tmp_path / "alone")
    assert ours.rounds == theirs.rounds == list(range(1, 31))
    assert all(ours.of_round(number) == theirs.of_round(number) for number in ours.rounds)
