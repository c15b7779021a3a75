"""A run that is asked to stop, or has no time for another round: saved, exit code 75, and the same bits after all."""

import json
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
from fast import fast
from launched import Start
from small_runs import finished, undisturbed

from fedmpi.report.records import read_records
from fedmpi.store.run_dir import RunDir

# No checkpoint comes before the last round by itself.
METHOD = ("method.name=topk", "evaluation.every=5", "output.checkpoint_every=1000", "output.progress=plain")


def has_rounds(run_dir: Path, count: int) -> Callable[[], bool]:
    return lambda: len(read_records(RunDir(run_dir))) >= count


def goes_on_to_the_same_bits(start: Start, run_dir: Path, tmp_path: Path, ranks: int) -> None:
    done = len(finished(run_dir).records)
    rounds = f"rounds={done + 3}"
    again = start(ranks, *METHOD, rounds, "mpi.time_limit_s=0", "--run-dir", str(run_dir), "--resume")
    assert again.wait() == 0, again.err
    assert f"resuming after round {done}\n" in again.out
    assert finished(run_dir) == undisturbed(tmp_path, *METHOD, rounds)


@pytest.mark.parametrize(("ranks", "signals"), fast((1, 1), of=[(1, 1), (3, 2)]))
def test_a_signal_stops_after_the_round(start: Start, tmp_path: Path, ranks: int, signals: int) -> None:
    """Sent to mpirun, which passes it on to all ranks; the second changes nothing."""
    run_dir = tmp_path / "run"
    launched = start(ranks, *METHOD, "rounds=100000", "--run-dir", str(run_dir))
    assert launched.wait_until(has_rounds(run_dir, 2)), launched.err
    for _ in range(signals):
        launched.process.send_signal(signal.SIGUSR1)
    assert launched.wait() == 75, launched.err
    done = len(read_records(RunDir(run_dir)))
    assert f"stopped after round {done} of 100000: SIGUSR1; all is saved\n" in launched.out
    assert launched.err.count("fedmpi: SIGUSR1: the run stops after this round") == 1
    assert "stopped by" not in launched.err and "failed" not in launched.err, launched.err
    assert not (RunDir(run_dir).report_dir / "summary.json").exists()
    stopped = json.loads(RunDir(run_dir).manifest_path.read_text())["starts"][-1]["stopped"]
    assert (stopped["round"], stopped["why"]) == (done, "SIGUSR1")
    goes_on_to_the_same_bits(start, run_dir, tmp_path, 4 - ranks)


@pytest.mark.slow
def test_no_round_begins_that_would_not_end_in_time(start: Start, tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    limits = ("mpi.time_limit_s=8", "mpi.spare_time_s=1")
    launched = start(2, *METHOD, *limits, "rounds=100000", "--run-dir", str(run_dir))
    assert launched.wait() == 75, launched.err
    assert "the time that is left would not be enough for another round" in launched.out
    goes_on_to_the_same_bits(start, run_dir, tmp_path, 2)


def test_a_start_makes_at_least_one_round(start: Start, tmp_path: Path) -> None:
    """Even when its time is over: put back into a queue again and again, the run still comes to its end."""
    run_dir = tmp_path / "run"
    for number in (1, 2):
        launched = start(1, *METHOD, "mpi.time_limit_s=0.001", "--run-dir", str(run_dir), "--resume")
        assert launched.wait() == 75, launched.err
        assert len(finished(run_dir).records) == number
    assert start(1, *METHOD, "mpi.time_limit_s=0.001", "--run-dir", str(run_dir), "--resume").wait() == 0
