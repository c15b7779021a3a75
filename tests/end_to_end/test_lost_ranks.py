"""Ranks die while the job runs: under ULFM the others continue to the same bits; without, all ends at once.

`test_kills.py` loses them in each stage, `tests/nightly/kill.py` at random moments, as often as one likes.
"""

import re
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
from fast import fast
from launched import TOPK, ULFM, Start, descendants, ends_in_time, has_rounds, kill, last_start
from small_runs import finished, undisturbed

from fedmpi.report.records import read_records
from fedmpi.store.run_dir import RunDir

METHOD = (*TOPK, "output.checkpoint_every=2")
ENDLESS = (*METHOD, "rounds=100000")


@pytest.mark.slow
def test_a_signal_after_a_loss_still_saves(start: Start, continues: Callable[..., str], run_dir: Path) -> None:
    """Exit code 75 of a job that has lost ranks: MPI_Finalize and plain exit codes do not work any more. The record of
    the round that was disturbed has the loss; each record has what each rank that is left was busy for.
    """
    launched = start(4, *ENDLESS, run_dir=run_dir, options=ULFM)
    assert launched.wait_until(has_rounds(run_dir, 2)), launched.err
    kill(launched, 2)
    assert launched.wait_until(lambda: any("losses" in record for record in read_records(RunDir(run_dir))))
    launched.process.send_signal(signal.SIGUSR1)
    assert launched.wait() == 75, launched.err
    done = len(finished(run_dir).records)
    assert f" {done} of 100000: SIGUSR1; all is saved\n" in launched.out
    assert f"to continue: mpirun --with-ft ulfm -n 4 python -m fedmpi.main --run-dir {run_dir} --resume" in launched.out
    first, *_, last = records = read_records(RunDir(run_dir))
    assert set(first["busy_s"]) == {"0", "1", "2", "3"} and set(last["busy_s"]) == {"0", "1", "3"}
    (disturbed,) = [record for record in records if "losses" in record]
    assert [(loss["rank"], loss["round"]) for loss in disturbed["losses"]] == [(2, disturbed["round"])]
    continues(run_dir, *METHOD)


@pytest.mark.parametrize(
    ("victims", "every", "code"),
    fast(of=[((1, 2), 1000, 75), ((0,), 2, 75), ((0,), 1000, 1)], slow=[((1, 2), 1000, 75), ((0,), 2, 75)]),
)
def test_too_few_are_left(
    start: Start, continues: Callable[..., str], run_dir: Path, victims: tuple[int, ...], every: int, code: int
) -> None:
    """With rank 0 goes what is not saved: the job is to continue only where this start has saved a round."""
    words, ranks = (*TOPK, f"output.checkpoint_every={every}"), 2 + len(victims)
    launched = start(ranks, *words, "rounds=100000", "mpi.min_ranks=3", run_dir=run_dir, options=ULFM)
    assert launched.wait_until(has_rounds(run_dir, 4)), launched.err
    kill(launched, *victims)
    assert launched.wait() == code, launched.err
    assert re.search(rf"^lost .*rank {victims[-1]} .*: 2 of {ranks} ", launched.out, re.MULTILINE), launched.out
    command = f"mpirun --with-ft ulfm -n {ranks} python -m fedmpi.main --run-dir {run_dir} --resume"
    assert f"to continue: {command}" in launched.err
    losses = last_start(run_dir)["losses"]
    assert [loss["rank"] for loss in losses] == [*victims]
    assert all(loss["recovery_s"] > 0 and loss["round"] >= 4 for loss in losses)
    assert ("stopped" in last_start(run_dir)) == (code == 75)
    if code == 75:
        assert "mpi.min_ranks is 3\n" in launched.err
        assert re.search(r"\d+ of 100000: .*mpi.min_ranks is 3", launched.out)
        assert "resuming after round" in continues(run_dir, *words, "mpi.min_ranks=1")


def hangs(how: str) -> str:
    """Rank 1 hangs in its first client of round 3."""
    return f"""
from fedmpi.rounds import client
before(client, "local_work", lambda _, client: {how} if rank == 1 and client.task.round_number == 3 else None)"""


@pytest.mark.slow
def test_a_rank_that_hangs_is_excluded(start: Start, run_dir: Path, tmp_path: Path) -> None:
    """Its own watchdog ends it, and the others continue. By its clock alone the limit is soon over."""
    words, patch = (*METHOD, "rounds=5"), hangs("(hours_go_by(), time.sleep(1000))")
    launched = start(3, *words, "mpi.round_timeout_s=600", run_dir=run_dir, patch=patch, options=ULFM)
    assert launched.wait() == 0, launched.err
    head = r"fedmpi: hung on rank 1 on \S+, round 3, client \d, stage local_training\n  cause: "
    assert re.search(head, launched.err), launched.err
    assert "mpi.round_timeout_s is 600; this rank ends itself" in launched.err
    (loss,) = last_start(run_dir)["losses"]
    assert (loss["rank"], loss["round"]) == (1, 3)
    assert finished(run_dir) == undisturbed(tmp_path, *words)


@pytest.mark.slow
def test_a_rank_that_is_stopped_ends_all(start: Start, run_dir: Path) -> None:
    """Its own watchdog is stopped, too, so the ranks that wait for it give up."""
    launched = start(3, *ENDLESS, "mpi.round_timeout_s=3", run_dir=run_dir, patch=hangs("stop()"))
    assert ends_in_time(launched, has_rounds(run_dir, 2)) not in (0, 2, 75), launched.err
    assert "fedmpi: gave up on rank " in launched.err, launched.err
    assert "--resume" in launched.out


# Where a rank may die, as the modules and names of what it then comes to.
PLACES = {
    "loading": ("fedmpi.running.start", "check_model"),
    "preparing": ("fedmpi.running.start", "_trainers"),
    "training": ("fedmpi.train_round", "simulate_client"),
}


def dies(who: int, where: str) -> str:
    module, name = PLACES[where]
    return f"""
if rank == {who}:
    import importlib
    before(importlib.import_module("{module}"), "{name}", lambda *arguments: die())"""


STARTING = [("loading", 0), ("loading", 1), ("preparing", 0)]


@pytest.mark.slow
@pytest.mark.parametrize(("where", "who"), fast(("preparing", 0), of=STARTING, slow=()))
def test_ranks_lost_while_starting(start: Start, run_dir: Path, tmp_path: Path, where: str, who: int) -> None:
    launched = start(3, *METHOD, "rounds=3", run_dir=run_dir, patch=dies(who, where), options=ULFM)
    assert launched.wait() == 0, launched.err
    assert f"lost rank {who} on " in launched.out
    (loss,) = last_start(run_dir)["losses"]
    assert (loss["rank"], loss["round"]) == (who, 1)
    assert finished(run_dir) == undisturbed(tmp_path, *METHOD, "rounds=3")


AT_START = {
    "dies before MPI": "if rank == 0: die()",
    "stops before MPI": "if rank == 1: stop()",
    "dies when MPI has started": """
from fedmpi.mpi import comm
if rank == 1: before(comm, "_places", lambda: die())""",
    "stops when MPI has started": """
from fedmpi.mpi import comm
if rank == 1: before(comm, "_places", lambda: stop())""",
}


@pytest.mark.parametrize("case", fast(of=AT_START, slow=[*AT_START][:1]))
def test_a_rank_that_does_not_come_through_the_start(start: Start, run_dir: Path, case: str) -> None:
    """Under ULFM the others print where they wait at the end of their patience, or MPI sees it; all end."""
    patch = AT_START[case]
    launched = start(3, *METHOD, "mpi.startup_timeout_s=12", run_dir=run_dir, patch=patch, options=ULFM)
    assert ends_in_time(launched, lambda: len(descendants(launched.process.pid)) > 3) not in (0, 2, 75), launched.err
    assert not run_dir.exists()
    if case == "dies when MPI has started":
        assert "a rank died while the job started" in launched.err
    else:
        assert "Timeout (0:00:12)!" in launched.err and "in all_ranks" in launched.err


# How a job ends that has lost ranks: the loss is on record, what was saved stays, and the exit code tells whether to
# start again.


@pytest.mark.slow
def test_a_job_that_is_too_small_does_not_start(start: Start, run_dir: Path) -> None:
    launched = start(2, *TOPK, "mpi.min_ranks=3", run_dir=run_dir)
    assert launched.wait() == 2
    assert launched.err.count("mpi.min_ranks: is 3, ") == 1
    assert not (run_dir).exists()


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
@pytest.mark.parametrize("is_saved", [True, False])
def test_the_server_dies_when_the_rounds_are_over(start: Start, run_dir: Path, is_saved: bool) -> None:
    """Too few are left for another round: the run is finished where all but the report is saved; else it cannot train
    the last rounds again."""
    name, every = ("close_run", 1) if is_saved else ("round_done", 1000)
    patch = f"""
before(server.Server, "{name}", lambda self, number=4, *rest: die() if rank == 0 and number == 4 else None)"""
    words = ("rounds=4", f"output.checkpoint_every={every}", "mpi.min_ranks=3")
    launched = start(3, *TOPK, *words, run_dir=run_dir, patch=patch, options=ULFM)
    assert launched.wait() == (0 if is_saved else 1), launched.err
    assert (run_dir / "report" / "summary.json").exists() == is_saved
    assert "lost rank 0 on" in launched.out and launched.out.count("round 1/4") == 1
    assert ("mpi.min_ranks is 3\n" in launched.err) == (not is_saved)
    assert "stopped" not in last_start(run_dir)
