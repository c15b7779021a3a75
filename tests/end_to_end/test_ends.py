"""How the ranks of a job end: soon, with all that they had to say and do; mpirun adds no line and has their code."""

import signal
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from fast import fast
from launched import TOPK, ULFM, RunMain, Start, has_rounds, last_start, rejoined
from small_runs import SMALL, finished, undisturbed

from fedmpi.check.bits import difference
from fedmpi.report.records import read_records
from fedmpi.store.run_dir import RunDir

# Python takes the modules apart last of all, `mark` among them; with torch that is a second of work for each rank.
MARKS = """
import atexit
class Mark:
    def __del__(self):
        os.write(2, b"taken apart\\n")
mark = Mark()
atexit.register(lambda: sys.stdout.write("registered for the end\\n"))"""
STOPS = ("mpi.time_limit_s=0.001",)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "words", "code"),
    fast(((), (), 0), of=[((), (), 0), (ULFM, (), 0), ((), STOPS, 75), (ULFM, STOPS, 75)], slow=[(ULFM, STOPS, 75)]),
)
def test_ranks_do_what_is_registered_and_are_gone(
    start: Start, options: Sequence[str], words: Sequence[str], code: int
) -> None:
    """Each rank flushes its output, and the exit code stays."""
    launched = start(2, "rounds=2", *words, patch=MARKS, options=options)
    assert launched.wait() == code, launched.err
    assert launched.out.count("registered for the end") == 2
    assert "taken apart" not in launched.err


SCRIPT = """
import sys
import fedmpi
from fedmpi.config.load import load

run = fedmpi.run(load(None, sys.argv[2:]), sys.argv[1])
sys.stdout.write(f"read {[score.last.accuracy for score in run.scores.values()]}\\n")
"""


@pytest.mark.slow
def test_a_program_under_mpirun(start: Start, tmp_path: Path) -> None:
    """A user's own, started from a shell: it makes a run, reads it on every rank, and ends."""
    (tmp_path / "program.py").write_text(SCRIPT)
    words = ("method.name=fedavg", "rounds=2")
    launched = start(3, str(tmp_path / "run"), *SMALL, *words, program=[str(tmp_path / "program.py")], small=False)
    assert launched.wait() == 0, launched.err
    read = [line for line in launched.out.splitlines() if line.startswith("read ")]
    assert len(read) == 3 and len({*read}) == 1
    assert difference(finished(tmp_path / "run"), undisturbed(tmp_path, *words)) == ""


@pytest.mark.slow
def test_a_mistake_that_ranks_find_together_is_the_only_line(start: Start, tmp_path: Path) -> None:
    """After MPI has started."""
    (tmp_path / "file").touch()
    launched = start(2, "--run-dir", str(tmp_path / "file"), "output.progress=off")
    assert launched.wait() == 2
    assert str(tmp_path / "file") in launched.err and launched.err.count("\n") == 1


@pytest.mark.slow
def test_a_divergence_is_all_that_is_printed(start: Start) -> None:
    """Both workers diverge; one rank prints it."""
    launched = start(3, "train.lr=1e12", "method.name=fedavg")
    assert launched.wait() == 1
    assert launched.err.count("fedmpi: failed on rank ") == 1 and "abort" not in launched.err.lower()


# A run that is asked to stop, or has no time for another round: saved, exit code 75, and the same bits after all.

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
