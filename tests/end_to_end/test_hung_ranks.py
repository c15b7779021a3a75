"""Ranks that are stopped where nothing else would end the job: while others recover, at the end, in MPI's own end.

Stopped processes do not even end themselves. The limits of the slow tests are short: `mpi.round_timeout_s` for a rank's
own work, twice that and a margin for waiting, and `mpi.startup_timeout_s` in addition where no round is open.
"""

from collections.abc import Sequence
from pathlib import Path

import pytest
from fast import fast
from launched import TOPK, ULFM, Launched, Start, ends_in_time
from small_runs import finished

LIMITS = ("mpi.round_timeout_s=3", "mpi.startup_timeout_s=8")
RANK_1_DIES = """
before(train_round, "simulate_client", lambda s, task, _: die() if rank == 1 and task.round_number == 3 else None)"""


def ends(launched: Launched) -> int:
    """The exit code; nothing is left a moment later."""
    return ends_in_time(launched, lambda: "round 1/" in launched.out)


@pytest.mark.slow
def test_a_rank_that_is_stopped_while_others_recover(start: Start, run_dir: Path) -> None:
    """It has noticed the loss, and does not come to shrink: a call that nothing can interrupt. The others do not end
    themselves one by one, which would leave the one that hangs. By rank 0's clock the limit is over once it hangs.
    """
    pid = run_dir.parent / "stops"
    patch = f"""
from pathlib import Path
from fedmpi.mpi.comm import Comm
{RANK_1_DIES}
def is_stopped(pid):
    return Path(f"/proc/{{pid}}/stat").read_text().rpartition(")")[2].split()[0] == "T"
class Shrinks:
    def __init__(self, mpi):
        self.mpi = mpi
    def __getattr__(self, name):
        return getattr(self.mpi, name)
    def Shrink(self):
        if rank == 2:
            Path("{pid}").symlink_to(str(os.getpid()))
            stop()
        while not (os.path.lexists("{pid}") and is_stopped(os.readlink("{pid}"))):
            time.sleep(0.01)
        hours_go_by()
        return self.mpi.Shrink()
before(Comm, "recover", lambda comm: setattr(comm, "_mpi", Shrinks(comm._mpi)))"""
    words = (*TOPK, "mpi.round_timeout_s=600", "rounds=5")
    launched = start(3, *words, run_dir=run_dir, patch=patch, options=ULFM)
    assert ends(launched) == 1, launched.err
    assert " gave up on " in launched.err and " waited for other ranks " in launched.err, launched.err
    assert "ends itself" not in launched.err
    assert f"to continue: mpirun --with-ft ulfm -n 3 python -m fedmpi.main --run-dir {run_dir} --resume" in launched.err
    assert len(finished(run_dir).records) == 2


@pytest.mark.parametrize(("rank", "options"), fast(of=[(0, ()), (1, ()), (1, ULFM)], slow=[(1, ULFM)]))
def test_a_rank_that_is_stopped_when_the_rounds_are_over(
    start: Start, run_dir: Path, rank: int, options: Sequence[str]
) -> None:
    """The others wait for it no longer than for one that writes the report."""
    patch = f'if rank == {rank}: before(experiment, "end_together", lambda *arguments: stop())'
    launched = start(3, *TOPK, *LIMITS, "rounds=3", run_dir=run_dir, patch=patch, options=options)
    assert ends(launched) == 1, launched.err
    assert "fedmpi: gave up on rank " in launched.err
    assert len(finished(run_dir).records) == 3 and (run_dir / "report" / "summary.json").exists()


PLACES = ('comm.Comm, "_meet_and_end_mpi"', 'comm.MPI, "Finalize"')


@pytest.mark.parametrize("place", fast(of=PLACES, slow=()))
def test_a_rank_that_is_stopped_in_mpi_s_own_end(start: Start, run_dir: Path, place: str) -> None:
    """Without ULFM. The others print where they wait."""
    patch = f"""
from fedmpi.mpi import comm
if rank == 1: before({place}, lambda *arguments: stop())"""
    launched = start(3, *TOPK, *LIMITS, "mpi.time_limit_s=0.001", run_dir=run_dir, patch=patch)
    assert ends(launched) == 1, launched.err
    assert "Timeout (0:00:21)!" in launched.err and "in _meet_and_end_mpi" in launched.err
    assert "all is saved" in launched.out and "fedmpi: failed" not in launched.err


@pytest.mark.nightly
def test_a_report_that_hangs(start: Start, run_dir: Path) -> None:
    """As on a file system that does not answer: rank 0 ends itself, and the job with it."""
    patch = 'before(server.Server, "close_run", lambda self: time.sleep(1000))'
    launched = start(3, *TOPK, *LIMITS, "rounds=3", run_dir=run_dir, patch=patch)
    assert ends(launched) not in (0, 2, 75), launched.err
    assert " hung on rank 0 " in launched.err and len(finished(run_dir).records) == 3
