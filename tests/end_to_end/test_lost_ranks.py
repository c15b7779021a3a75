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
    assert f"to continue: mpirun -n 4 python -m fedmpi.main --run-dir {run_dir} --resume" in launched.out
    first, *_, last = records = read_records(RunDir(run_dir))
    assert set(first["busy_s"]) == {"0", "1", "2", "3"} and set(last["busy_s"]) == {"0", "1", "3"}
    (disturbed,) = [record for record in records if "losses" in record]
    assert [(loss["rank"], loss["round"]) for loss in disturbed["losses"]] == [(2, disturbed["round"])]
    continues(run_dir, *METHOD)


@pytest.mark.slow
def test_too_few_are_left(start: Start, continues: Callable[..., str], run_dir: Path) -> None:
    launched = start(4, *ENDLESS, "mpi.min_ranks=3", "output.checkpoint_every=1000", run_dir=run_dir, options=ULFM)
    assert launched.wait_until(has_rounds(run_dir, 4)), launched.err
    kill(launched, 1, 2)
    assert launched.wait() == 75, launched.err
    assert "mpi.min_ranks is 3\n" in launched.err
    assert f"to continue: mpirun -n 4 python -m fedmpi.main --run-dir {run_dir} --resume" in launched.err
    assert re.search(r"\d+ of 100000: .*mpi.min_ranks is 3", launched.out)
    assert [loss["rank"] for loss in last_start(run_dir)["losses"]] == [1, 2]
    assert "resuming after round" in continues(run_dir, *METHOD, "mpi.min_ranks=1")


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
