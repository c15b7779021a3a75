"""Contract 7 and section 9: a failure on any rank ends all of them and says where; a signal loses nothing saved."""

import os
import re
import signal
from collections.abc import Sequence
from pathlib import Path

import pytest
from fast import fast
from launched import ENDLESS, ULFM, Launched, RunMain, Start, block, ends_in_time, failed_on, has_rounds
from small_runs import SMALL, finished

from fedmpi.store import checkpoint
from fedmpi.store.lock import RunLock
from fedmpi.store.run_dir import RunDir

# The last rank fails in round 3, once rank 0 has saved round 2; the others are fine.
ONE_RANK_FAILS = """
def fails(setup, task, published):
    if rank == {rank} and task.round_number == 3:
        while not os.path.exists(f"{{sys.argv[-1]}}/checkpoints/round-000002.h5"):
            time.sleep(0.01)
        with setup.clock.stage("local_training", task.round_number, task.client):
            raise {error}
before(train_round, "simulate_client", fails)"""
ERRORS = ((2, "ValueError('two\\nlines')", ()), (3, "MemoryError('no memory left')", ULFM), (3, "SystemExit(7)", ()))
"""The last as by `sys.exit` in a user's net."""


@pytest.mark.parametrize(("ranks", "error", "options"), fast(ERRORS[0], of=ERRORS))
def test_one_rank_fails_alone(start: Start, run_dir: Path, ranks: int, error: str, options: Sequence[str]) -> None:
    """One block, from that rank, with everything in it; what was saved stays and can be resumed. Under ULFM, too: it is
    not taken for a dead rank, because the error would come again on the next rank that trains this client."""
    patch = ONE_RANK_FAILS.format(rank=ranks - 1, error=error)
    launched = start(ranks, *ENDLESS, run_dir=run_dir, patch=patch, options=options)
    code = ends_in_time(launched, lambda: "fedmpi: failed" in launched.err)
    assert code not in (0, 2)
    found = block(launched.err)
    head = failed_on(ranks - 1, r"round 3, client \d, stage local_training\n")
    assert re.match(head, found) and f"cause: {error.split('(')[0]}: " in found and "in fails" in found, found
    assert "Traceback" not in launched.err
    mpirun = " ".join(["mpirun", *options])
    advice = f"to continue: {mpirun} -n {ranks} python -m fedmpi.main --run-dir {run_dir} --resume"
    assert advice in launched.err and len(finished(run_dir).records) == 2


def goes_on_as_it_says(launched: Launched, run_main: RunMain, run_dir: Path) -> None:
    """The newest checkpoint loads, and the printed command continues there."""
    snapshot = checkpoint.load_newest_intact(RunDir(run_dir), pytest.fail)
    assert snapshot is not None and snapshot.round >= 2
    words = launched.advice()
    again = words[words.index("fedmpi.main") + 1 :]
    code, out, errors = run_main(*again, f"rounds={snapshot.round + 2}")
    assert code == 0 and f"resuming after round {snapshot.round}" in out, errors
    assert len(finished(run_dir).records) == snapshot.round + 2


SET_UP_FAILS = """
def fails(*arguments):
    raise RuntimeError("no room on the device")
before(start, "prepare", fails)"""


def test_what_fails_while_a_failed_run_starts_again_is_said(start: Start, run_main: RunMain, run_dir: Path) -> None:
    """The note of the earlier failure is gone by then. A start on a run that another process has leaves none."""
    assert run_main(*SMALL, "rounds=1", "--run-dir", str(run_dir))[0] == 0
    note = run_dir / ".failed"
    note.write_text("failed\nan earlier failure\nto continue: earlier")
    again = (*SMALL, "rounds=3", "--resume")
    launched = start(1, *again, run_dir=run_dir, patch=SET_UP_FAILS)
    assert ends_in_time(launched, lambda: True) == 1
    assert "no room on the device" in launched.err and "to continue: " in launched.err
    assert "no room on the device" in note.read_text()
    note.unlink()
    with RunLock(RunDir(run_dir)):
        launched = start(1, *again, run_dir=run_dir, patch=SET_UP_FAILS)
        assert ends_in_time(launched, lambda: True) == 2
    assert "is in use" in launched.err and not note.exists()


SIGNALS = ((1, signal.SIGINT), (2, signal.SIGTERM), (3, signal.SIGINT))


@pytest.mark.slow
@pytest.mark.parametrize(("ranks", "number"), fast(SIGNALS[1], of=SIGNALS, slow=()))
def test_a_signal_loses_nothing_saved(
    start: Start, run_main: RunMain, run_dir: Path, ranks: int, number: signal.Signals
) -> None:
    """It ends the whole job with an error, at any moment, and the command to resume is printed."""
    launched = start(ranks, *ENDLESS, run_dir=run_dir)
    assert launched.wait_until(has_rounds(run_dir, 3)), launched.err
    launched.process.send_signal(number)
    assert ends_in_time(launched, lambda: True) != 0
    assert "Traceback" not in launched.err
    goes_on_as_it_says(launched, run_main, run_dir)


IN_A_DESTRUCTOR = """
class Dying:
    def __del__(self):
        os.kill(os.getpid(), signal.SIGTERM)
        sum(range(1000))
before(train_round, "simulate_client", lambda setup, task, _: Dying() if task.round_number == 3 else None)"""


@pytest.mark.slow
def test_a_signal_in_a_destructor(start: Start, run_main: RunMain, run_dir: Path) -> None:
    """Python ignores exceptions there, so a handler must not rely on one."""
    launched = start(1, *ENDLESS, run_dir=run_dir, patch=IN_A_DESTRUCTOR)
    assert launched.wait() == -signal.SIGTERM
    goes_on_as_it_says(launched, run_main, run_dir)


def test_two_runs_do_not_share_a_directory(run_main: RunMain, run_dir: Path) -> None:
    """The second is refused in one line; `unit/test_output_lock.py` has locks of other processes, alive and dead."""
    run_dir.mkdir()
    with RunLock(RunDir(run_dir)):
        code, _, errors = run_main(*SMALL, "--run-dir", str(run_dir), "--resume")
    assert code == 2 and f"by pid {os.getpid()} on" in errors and "Traceback" not in errors
    assert not RunDir(run_dir).holds_run()
