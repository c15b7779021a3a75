"""How a job ends that has lost ranks: too few are left, the server dies while it saves.

Whatever happens, the loss is on record, what was saved stays, and the exit code tells whether to start again.
"""

import re
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
from fast import fast
from launched import TOPK, ULFM, Start, has_rounds, kill, last_start
from small_runs import finished, undisturbed


@pytest.mark.slow
def test_a_job_that_is_too_small_does_not_start(start: Start, run_dir: Path) -> None:
    launched = start(2, *TOPK, "mpi.min_ranks=3", run_dir=run_dir)
    assert launched.wait() == 2
    assert launched.err.count("mpi.min_ranks: is 3, ") == 1
    assert not (run_dir).exists()


@pytest.mark.parametrize(("every", "code"), fast(of=[(2, 75), (1000, 1)], slow=[(2, 75)]))
def test_too_few_without_the_server(start: Start, run_dir: Path, every: int, code: int) -> None:
    """With rank 0 goes what is not saved: the job is to continue only where this start has saved a round."""
    words = (*TOPK, f"output.checkpoint_every={every}", "rounds=100000", "mpi.min_ranks=3")
    launched = start(3, *words, run_dir=run_dir, options=ULFM)
    assert launched.wait_until(has_rounds(run_dir, 4)), launched.err
    kill(launched, 0)
    assert launched.wait() == code, launched.err
    assert re.search(r"^lost rank 0 .*: 2 of 3 ", launched.out, re.MULTILINE), launched.out
    assert f"to continue: mpirun -n 3 python -m fedmpi.main --run-dir {run_dir} --resume" in launched.err
    (loss,) = last_start(run_dir)["losses"]
    assert loss["rank"] == 0 and loss["recovery_s"] > 0 and loss["round"] >= 4
    assert ("stopped" in last_start(run_dir)) == (code == 75)


@pytest.mark.nightly
def test_too_few_after_a_takeover(start: Start, continues: Callable[..., str], run_dir: Path) -> None:
    """What was saved before rank 0 died counts, too: 75, even if the new server has not finished a round."""
    words = (*TOPK, "output.checkpoint_every=2")
    # Rank 0 dies in round 5; rank 2 when it trains in it again.
    patch = """
def trains(setup, task, published):
    if task.round_number == 5 and (rank == 2 and setup.comm.size == 2 or rank == 0):
        die()
before(train_round, "simulate_client", trains)"""
    more = ("rounds=100000", "mpi.min_ranks=2", "mpi.server_trains=true")
    launched = start(3, *words, *more, run_dir=run_dir, patch=patch, options=ULFM)
    assert launched.wait() == 75, launched.err
    assert "lost rank 0 on" in launched.out and "mpi.min_ranks is 2\n" in launched.err
    continues(run_dir, *words, "mpi.min_ranks=1")


@pytest.mark.slow
def test_the_server_dies_while_it_saves_the_end(start: Start, continues: Callable[..., str], run_dir: Path) -> None:
    """After the signal: rank 1 becomes the server and saves as well, and the job still ends with 75."""
    words = (*TOPK, "output.checkpoint_every=1000")
    patch = """
def done(self, number, state, result, times, stops):
    if stops and rank == 0:
        die()
before(server.Server, "round_done", done)"""
    launched = start(3, *words, "rounds=100000", run_dir=run_dir, patch=patch, options=ULFM)
    assert launched.wait_until(has_rounds(run_dir, 3)), launched.err
    launched.process.send_signal(signal.SIGUSR1)
    assert launched.wait() == 75, launched.err
    assert "lost rank 0 on" in launched.out and "SIGUSR1; all is saved" in launched.out, launched.out
    assert last_start(run_dir)["stopped"]["round"] == len(finished(run_dir).records)
    continues(run_dir, *words)


@pytest.mark.nightly
def test_the_lock_of_a_server_that_dies_at_the_start_is_waited_for(start: Start, run_dir: Path, tmp_path: Path) -> None:
    """As where it takes the driver a while to end a process with a GPU."""
    patch = """
tries = []
def lock(own):
    tries.append(own)
    if rank == 1 and len(tries) < 4:
        raise RunDirError(str(own._run_dir.path), "is in use")
before(folder.RunLock, "__enter__", lock)
if rank == 0: before(start, "_trainers", lambda *arguments: die())"""
    launched = start(3, *TOPK, "rounds=2", run_dir=run_dir, patch=patch, options=ULFM)
    assert launched.wait() == 0, launched.err
    assert finished(run_dir) == undisturbed(tmp_path, *TOPK, "rounds=2")


@pytest.mark.parametrize("end", fast(of=["report", "save"], slow=["save"]))
def test_the_end_may_take_longer_than_a_round(start: Start, run_dir: Path, end: str) -> None:
    """The report of a finished run; the save where too few are left, by a server that had worked on the round."""
    name, words, code = {
        "report": ("close_run", ("rounds=3",), 0),
        "save": ("stop_early", ("rounds=100000", "mpi.min_ranks=3", "output.checkpoint_every=1000"), 75),
    }[end]
    patch = f"""
losses._MARGIN_S = 1.0  # others are waited for for 7 s
before(server.Server, "{name}", lambda *arguments: time.sleep(10))
if {end == "save"} and rank == 2:
    before(train_round, "simulate_client", lambda setup, task, _: die() if task.round_number == 3 else None)"""
    launched = start(3, *TOPK, *words, "mpi.round_timeout_s=3", run_dir=run_dir, patch=patch, options=ULFM)
    assert launched.wait() == code, launched.err
    assert len(finished(run_dir).records) == (3 if end == "report" else 2)


@pytest.mark.nightly
def test_a_finished_run_needs_no_ranks_for_its_report(start: Start, run_dir: Path) -> None:
    """Rank 0 dies when all but the report is saved, and too few are left for another round."""
    patch = 'before(server.Server, "close_run", lambda self: die() if rank == 0 else None)'
    launched = start(3, *TOPK, "rounds=3", "mpi.min_ranks=3", run_dir=run_dir, patch=patch, options=ULFM)
    assert launched.wait() == 0, launched.err
    assert (run_dir / "report" / "summary.json").exists() and "lost rank 0 on" in launched.out
    assert "stopped" not in last_start(run_dir)
