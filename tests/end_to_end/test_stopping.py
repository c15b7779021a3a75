"""A run that is asked to stop, or has no time for another round: saved, exit code 75, and the same bits after all."""

import signal
from collections.abc import Callable
from pathlib import Path

import pytest
from fast import fast
from launched import TOPK, RunMain, Start, has_rounds, last_start, rejoined
from small_runs import SMALL, finished, undisturbed

from fedmpi.report.records import read_records
from fedmpi.store.run_dir import RunDir

METHOD = (*TOPK, "output.checkpoint_every=1000")
"""No checkpoint comes before the last round by itself."""


@pytest.mark.parametrize(("ranks", "signals"), fast((1, 1), of=[(1, 1), (3, 2)]))
def test_a_signal_stops_after_the_round(
    start: Start, continues: Callable[..., str], run_dir: Path, ranks: int, signals: int
) -> None:
    """Sent to mpirun, which passes it on to all ranks; the second changes nothing."""
    launched = start(ranks, *METHOD, "rounds=100000", run_dir=run_dir)
    assert launched.wait_until(has_rounds(run_dir, 2)), launched.err
    for _ in range(signals):
        launched.process.send_signal(signal.SIGUSR1)
    assert launched.wait() == 75, launched.err
    done = len(read_records(RunDir(run_dir)))
    assert f" {done} of 100000: SIGUSR1; all is saved\n" in launched.out
    assert launched.err.count("fedmpi: SIGUSR1: ") == 1
    assert not any(word in launched.err for word in ("stopped by", "failed", "prterun")), launched.err
    assert not (RunDir(run_dir).report_dir / "summary.json").exists()
    stopped = last_start(run_dir)["stopped"]
    assert (stopped["round"], stopped["why"]) == (done, "SIGUSR1")
    assert f"resuming after round {done}\n" in continues(run_dir, *METHOD)


@pytest.mark.slow
def test_a_start_makes_at_least_one_round(run_main: RunMain, tmp_path: Path) -> None:
    """Even when its time is over: put back into a queue again and again, the run still comes to its end."""
    run_dir, words = tmp_path / "run", (*METHOD, "mpi.time_limit_s=0.001")
    ends = ((75, f"nothing to continue in {run_dir}: a new run begins"), (75, " for another round"), (0, "round 3/3"))
    for number, (code, said) in enumerate(ends, 1):
        found, out, errors = run_main(*SMALL, *words, "--run-dir", str(run_dir), "--resume")
        assert found == code and said in rejoined(out), errors
        assert len(finished(run_dir).records) == number
    assert finished(run_dir) == undisturbed(tmp_path, *METHOD)
