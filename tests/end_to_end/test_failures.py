"""Contract 7 and section 9: a failure on any rank ends all of them and says where; a signal loses nothing saved."""

import re
import shlex
import shutil
import signal
import time
from pathlib import Path

import pytest
from fast import fast
from launched import ENDLESS, ENDS_WITHIN_S, Start, all_end, block, descendants, ends_in_time, has_rounds, launch
from small_runs import finished

from fedmpi.report.records import read_records
from fedmpi.store import checkpoint
from fedmpi.store.run_dir import RunDir


@pytest.mark.slow
def test_a_worker_that_fails_ends_all(start: Start, tmp_path: Path) -> None:
    """A learning rate of 1e12 makes every client diverge in round 1."""
    fails = ("train.lr=1e12", "train.on_divergence=fail", "method.name=fedavg")
    launched = start(3, *fails, "--run-dir", str(tmp_path / "run"))
    code = ends_in_time(launched, lambda: "fedmpi: failed" in launched.err)
    assert code not in (0, 2)
    # Both workers train a client that diverges: one of them fails, or both before the abort reaches the second.
    head = r"fedmpi: failed on rank [12] on \S+, round 1, client \d, stage local_training\n"
    assert re.search(head + "  cause: DivergenceError: training diverged", launched.err), launched.err
    assert "Traceback" not in launched.err


# Rank 2 fails in round 3, once rank 0 has saved round 2; the others are fine.
ONE_RANK_FAILS = """
import os, sys, time
from fedmpi import train_round
from fedmpi.mpi.launch import launched_as
simulate = train_round.simulate_client

def simulate_or_fail(setup, task, published):
    if launched_as()[0] == 2 and task.round_number == 3:
        while not os.path.exists(f"{{sys.argv[-1]}}/checkpoints/round-000002.h5"):
            time.sleep(0.01)
        with setup.clock.stage("local_training", task.round_number, task.client):
            raise {error}
    return simulate(setup, task, published)

train_round.simulate_client = simulate_or_fail
from fedmpi.main import main
sys.exit(main(sys.argv[1:]))
"""


ERRORS = ("MemoryError('no memory left')", "ValueError('two\\nlines')")


@pytest.mark.parametrize("error", fast(ERRORS[1], of=ERRORS))
def test_one_rank_of_three_fails_alone(start: Start, tmp_path: Path, error: str) -> None:
    """One block, from that rank, with everything in it; what was saved stays and can be resumed."""
    run_dir = tmp_path / "run"
    launched = start(3, *ENDLESS, "--run-dir", str(run_dir), program=("-c", ONE_RANK_FAILS.format(error=error)))
    code = ends_in_time(launched, lambda: "fedmpi: failed" in launched.err)
    assert code not in (0, 2)
    found = block(launched.err)
    assert re.match(r"fedmpi: failed on rank 2 on \S+, round 3, client \d, stage local_training\n", found), found
    assert f"cause: {error.split('(')[0]}: " in found and "in simulate_or_fail" in found
    assert f"to go on: mpirun -n 3 python -m fedmpi.main --run-dir {run_dir} --resume" in launched.err
    assert len(finished(run_dir).records) == 2


def put_a_file_in_place_of(directory: Path, elsewhere: Path) -> None:
    """The run may make the directory anew between the two steps, at its next save: then both again."""
    elsewhere.mkdir()
    for attempt in range(100):
        directory.rename(elsewhere / str(attempt))
        try:
            directory.write_text("in the way")
            return
        except IsADirectoryError:
            continue
    pytest.fail(f"{directory} came back {attempt + 1} times")


@pytest.mark.parametrize("harm", fast("blocked", of=("removed", "blocked")))
def test_rank_0_that_cannot_save_ends_all(start: Start, tmp_path: Path, harm: str) -> None:
    """The run directory is removed under the run, or a file stands where checkpoints should go."""
    run_dir = tmp_path / "run"
    launched = start(3, *ENDLESS, "--run-dir", str(run_dir))
    assert launched.wait_until(has_rounds(run_dir, 2)), launched.err
    if harm == "removed":
        run_dir.rename(tmp_path / "elsewhere")
    else:
        put_a_file_in_place_of(RunDir(run_dir).checkpoints_dir, tmp_path / "elsewhere")
    code = ends_in_time(launched, lambda: "fedmpi: failed" in launched.err)
    assert code not in (0, 2)
    assert re.match(r"fedmpi: failed on rank 0 on \S+, round \d+, stage saving\n", block(launched.err))
    assert "cause: RunDirError: " in launched.err and str(run_dir) in launched.err


SIGNALS = ((1, signal.SIGINT), (3, signal.SIGTERM), (3, signal.SIGINT))


@pytest.mark.parametrize(("ranks", "number"), fast(SIGNALS[0], SIGNALS[1], of=SIGNALS))
def test_a_signal_loses_nothing_saved(start: Start, tmp_path: Path, ranks: int, number: signal.Signals) -> None:
    """It ends the whole job with an error, and the newest checkpoint loads."""
    run_dir = tmp_path / "run"
    launched = start(ranks, *ENDLESS, "--run-dir", str(run_dir))
    assert launched.wait_until(has_rounds(run_dir, 3)), launched.err
    family = descendants(launched.process.pid)
    launched.process.send_signal(number)
    assert launched.wait() != 0
    assert all_end(family, time.monotonic() + ENDS_WITHIN_S), "processes are left"
    snapshot = checkpoint.load_newest_intact(RunDir(run_dir), pytest.fail)
    assert snapshot is not None and snapshot.round >= 2
    assert "Traceback" not in launched.err


# A signal that arrives while a destructor runs: Python ignores exceptions there, so a handler must not rely on one.
SIGNAL_IN_A_DESTRUCTOR = """
import os, signal, sys
from fedmpi import train_round
simulate = train_round.simulate_client

class Dying:
    def __del__(self):
        os.kill(os.getpid(), signal.SIGTERM)
        sum(range(1000))

def simulate_then_die(setup, task, published):
    if task.round_number == 3:
        Dying()
    return simulate(setup, task, published)

train_round.simulate_client = simulate_then_die
from fedmpi.main import main
sys.exit(main(sys.argv[1:]))
"""


@pytest.mark.parametrize("ranks", fast(1, of=(1, 3)))
def test_the_command_to_resume_is_printed(start: Start, tmp_path: Path, ranks: int) -> None:
    """At the latest when a signal ends the run, at any moment; and it is one that goes on from there."""
    run_dir = tmp_path / "run"
    program = {"program": ("-c", SIGNAL_IN_A_DESTRUCTOR)} if ranks == 1 else {}
    launched = start(ranks, *ENDLESS, "--run-dir", str(run_dir), **program)
    assert launched.wait_until(has_rounds(run_dir, 2)), launched.err
    if ranks > 1:
        launched.process.send_signal(signal.SIGINT)
    assert launched.wait() != 0
    printed = re.search(r"to go on[^:\n]*: (.*)", launched.out + launched.err)
    assert printed is not None, f"no command to resume\n{launched.out}\n{launched.err}"
    snapshot = checkpoint.load_newest_intact(RunDir(run_dir), pytest.fail)
    assert snapshot is not None
    again = launch(tmp_path, [*shlex.split(printed[1]), f"rounds={snapshot.round + 2}"])
    assert again.wait() == 0, again.err
    assert f"resuming after round {snapshot.round}" in again.out
    assert len(finished(run_dir).records) == snapshot.round + 2


def test_mistakes_in_a_config_are_said_once(start: Start, tmp_path: Path) -> None:
    """On three ranks: one rank's lines, all problems, no traceback, exit code 2, within 20 s, no run directory."""
    wrong = ("train.lr=fast", "method.rank_ration=0.5", "clients.per_round=400")
    launched = start(3, *wrong, "--run-dir", str(tmp_path / "run"))
    begun = time.monotonic()
    assert launched.wait() == 2
    assert time.monotonic() - begun < 20
    assert launched.err.startswith("command line: 2 problems\n") or launched.err.startswith(
        "command line: 3 problems\n"
    )
    for words in ("train.lr", "'fast'", "method.rank_ration", "Did you mean 'rank_ratio'?"):
        assert launched.err.count(words) == 1, launched.err
    assert "Traceback" not in launched.err + launched.out and not (tmp_path / "run").exists()


@pytest.mark.slow
def test_an_occupied_run_dir_is_said_once(start: Start, tmp_path: Path) -> None:
    """On three ranks, after MPI has started: one line, exit code 2, and nothing there is touched."""
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "config.yaml").write_text("seed: 1\n")
    launched = start(3, "--run-dir", str(tmp_path / "run"))
    assert launched.wait() == 2
    lines = [line for line in launched.err.splitlines() if "already holds a run" in line]
    assert len(lines) == 1 and lines[0].startswith(f"{tmp_path / 'run'}: "), launched.err
    assert "Traceback" not in launched.err and launched.out == ""
    assert [path.name for path in (tmp_path / "run").iterdir()] == ["config.yaml"]


def test_two_runs_do_not_share_a_directory(start: Start, tmp_path: Path) -> None:
    """The second is refused in one line while the first goes on; after a SIGKILL of the first it takes over."""
    run_dir = tmp_path / "run"
    first = start(1, *ENDLESS, "--run-dir", str(run_dir))
    assert first.wait_until(has_rounds(run_dir, 2)), first.err
    second = start(1, *ENDLESS, "--run-dir", str(run_dir), "--resume")
    assert second.wait() == 2
    assert f"{run_dir}: is in use by pid {first.process.pid} on" in second.err and "Traceback" not in second.err
    assert first.process.poll() is None
    first.kill()
    done = len(read_records(RunDir(run_dir)))
    third = start(1, *ENDLESS, f"rounds={done + 2}", "--run-dir", str(run_dir), "--resume")
    assert third.wait() == 0, third.err
    assert "taking over from a run that is gone" in third.out + third.err
    shutil.rmtree(run_dir)
