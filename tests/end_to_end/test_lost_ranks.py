"""Ranks die while the job runs: under ULFM the others go on to the same bits; without, all ends at once, and is saved.

`tests/torture/kill_ranks.py` does the same at random moments, as often as one likes.
"""

from __future__ import annotations

import json
import re
import signal
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from launched import ULFM, Launched, all_end, descendants, has_rounds, kill
from patched import patched
from small_runs import finished, run_all, small_config
from torture.attacks import Job, Kill, quiet, run

from fedmpi.mpi.serial import SerialComm
from fedmpi.report.records import read_records
from fedmpi.store import manifest
from fedmpi.store.run_dir import RunDir

Start = Callable[..., Launched]

METHOD = ("method.name=topk", "evaluation.every=5", "output.checkpoint_every=2", "output.progress=plain")
ENDLESS = (*METHOD, "rounds=100000")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of the quiet runs, which several jobs compare themselves with."""
    return tmp_path_factory.mktemp("killed")


# All in all: workers and rank 0, in each stage, one after the other and at once, down to the last rank.
JOBS = (
    Job("fedhm", 5, (
        Kill(4, 1, "communication", 0.0), Kill(2, 3, "local_training", 0.003), Kill(0, 4, "svd", 0.001),
    )),
    Job("topk", 4, (
        Kill(3, 2, "evaluation", 0.001), Kill(0, 4, "saving", 0.002), Kill(1, 5, "local_training", 0.01),
    )),
    Job("hermes", 4, (
        Kill(1, 3, "local_training", 0.0), Kill(2, 3, "local_training", 0.0), Kill(0, 3, "aggregation", 0.0),
    )),
    Job("fedavg-reduce", 4, (
        Kill(3, 2, "aggregation", 0.0), Kill(0, 6, "evaluation", 0.001), Kill(2, 7, "communication", 0.001),
    )),
)  # fmt: skip


@pytest.mark.parametrize("job", JOBS, ids=lambda job: job.case)
def test_the_others_go_on_to_the_same_bits(job: Job, folder: Path, tmp_path: Path) -> None:
    """Twelve kills in all."""
    outcome = run(job, tmp_path, 0, quiet(job.case, folder))
    log = (tmp_path / "job-0.log").read_text(errors="replace")
    assert outcome.killed == job.kills, f"not all were killed\n{log}"
    assert not outcome.problem, f"{outcome.problem}\n{log}"
    assert {loss["rank"] for loss in outcome.losses} == {kill.rank for kill in job.kills}, log
    assert all(0 < loss["recovery_s"] < 60 and loss["host"] for loss in outcome.losses)


def test_a_signal_after_a_loss_still_saves(start: Start, tmp_path: Path) -> None:
    """Exit code 75 of a job that has lost ranks: MPI_Finalize and plain exit codes do not work any more."""
    run_dir = tmp_path / "run"
    launched = start(4, *ENDLESS, "--run-dir", str(run_dir), options=ULFM)
    assert launched.wait_until(has_rounds(run_dir, 2)), launched.err
    kill(launched, 2)
    assert launched.wait_until(lambda: "lost rank 2" in launched.out), launched.err
    launched.process.send_signal(signal.SIGUSR1)
    assert launched.wait() == 75, launched.err
    done = len(finished(run_dir).records)
    assert f"stopped after round {done} of 100000: SIGUSR1; all is saved\n" in launched.out
    assert f"to go on: mpirun -n 4 python -m fedmpi.main --run-dir {run_dir} --resume" in launched.out
    again = start(2, *METHOD, f"rounds={done + 2}", "--run-dir", str(run_dir), "--resume")
    assert again.wait() == 0, again.err
    run_all(small_config(*METHOD, f"rounds={done + 2}"), SerialComm(), tmp_path / "undisturbed")
    assert finished(run_dir) == finished(tmp_path / "undisturbed")


@pytest.mark.parametrize("victims", [(1, 2), (0, 1)], ids=["workers", "with rank 0"])
def test_too_few_are_left(start: Start, tmp_path: Path, victims: Sequence[int]) -> None:
    run_dir = tmp_path / "run"
    options = ("mpi.min_ranks=3", "output.checkpoint_every=1000") if 0 not in victims else ("mpi.min_ranks=3",)
    launched = start(4, *ENDLESS, *options, "--run-dir", str(run_dir), options=ULFM)
    assert launched.wait_until(has_rounds(run_dir, 4)), launched.err
    kill(launched, *victims)
    assert launched.wait() == 75, launched.err
    assert "fedmpi: stopped: 2 ranks are left, mpi.min_ranks is 3\n" in launched.err
    assert f"to go on: mpirun -n 4 python -m fedmpi.main --run-dir {run_dir} --resume" in launched.err
    if 0 not in victims:
        assert re.search(r"stopped after round \d+ of 100000: 2 ranks are left, mpi.min_ranks is 3", launched.out)
        lost = [loss["rank"] for loss in manifest.read_starts(RunDir(run_dir))[-1]["losses"]]
        assert lost == list(victims)
    more = (f"rounds={len(read_records(RunDir(run_dir))) + 2}", "mpi.min_ranks=1")
    again = start(2, *METHOD, *more, "--run-dir", str(run_dir), "--resume")
    assert again.wait() == 0, again.err
    assert "resuming after round" in again.out


def test_too_few_before_a_round_is_done(start: Start, tmp_path: Path) -> None:
    """Exit code 1, not 75: a job that gets nowhere must not be requeued again and again."""
    words = (*ENDLESS, "mpi.min_ranks=3", "--run-dir", str(tmp_path / "run"))
    launched = start(3, *words, program=("-c", EARLY, "training", "2"), options=ULFM)
    assert launched.wait() == 1, launched.err
    assert "fedmpi: stopped: 2 ranks are left, mpi.min_ranks is 3\n" in launched.err
    assert "lost rank 2 on" in launched.out and "all is saved" not in launched.out


def test_a_rank_that_hangs_is_excluded(start: Start, tmp_path: Path) -> None:
    """Rank 1 sleeps in a client of round 3: its own watchdog ends it, and the others go on."""
    run_dir = tmp_path / "run"
    options = ("rounds=5", "mpi.round_timeout_s=4", "--run-dir", str(run_dir))
    launched = start(3, *METHOD, *options, program=("-c", HANGS, "sleep"), options=ULFM)
    assert launched.wait() == 0, launched.err
    head = r"fedmpi: hung on rank 1 on \S+, round 3, client \d, stage local_training\n  cause: "
    assert re.search(head, launched.err), launched.err
    assert "mpi.round_timeout_s is 4; this rank ends itself" in launched.err and "time.sleep" not in launched.out
    (loss,) = manifest.read_starts(RunDir(run_dir))[-1]["losses"]
    assert (loss["rank"], loss["round"]) == (1, 3)
    run_all(small_config(*METHOD, "rounds=5"), SerialComm(), tmp_path / "undisturbed")
    assert finished(run_dir) == finished(tmp_path / "undisturbed")


@pytest.mark.parametrize("options", [(), ULFM], ids=["plain", "ulfm"])
def test_a_rank_that_is_stopped_ends_all(start: Start, tmp_path: Path, options: Sequence[str]) -> None:
    """Its own watchdog is stopped, too, so those that wait for it give up."""
    run_dir = tmp_path / "run"
    words = (*ENDLESS, "mpi.round_timeout_s=3", "--run-dir", str(run_dir))
    launched = start(3, *words, program=("-c", HANGS, "stop"), options=options)
    started = time.monotonic()
    assert launched.wait_until(has_rounds(run_dir, 2)), launched.err
    family = descendants(launched.process.pid)
    assert launched.wait() not in (0, 2, 75), launched.err
    assert time.monotonic() - started < 60
    assert re.search(r"cause: TimeoutError: waited for other ranks for more than 16 s", launched.err), launched.err
    assert all_end(family, time.monotonic() + 10), "a rank was left behind"
    assert "--resume" in launched.out


def test_a_hang_without_ulfm_ends_all(start: Start, tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    launched = start(3, *ENDLESS, "mpi.round_timeout_s=3", "--run-dir", str(run_dir), program=("-c", HANGS, "sleep"))
    assert launched.wait() not in (0, 2, 75), launched.err
    assert "fedmpi: hung on rank 1" in launched.err
    assert len(read_records(RunDir(run_dir))) == 2


# Each client that a rank begins to train is a line. In round 2 rank 2 dies when it has begun its third, or, while the
# others get on, slowly in its first.
COUNTS = """
import os, signal, sys, time
from fedmpi import train_round
from fedmpi.mpi.launch import launched_as
rank, log, begun = launched_as()[0], os.open(sys.argv[1], os.O_WRONLY | os.O_APPEND | os.O_CREAT), []
simulate = train_round.simulate_client

def counted(setup, task, published):
    begun.append(task.round_number)
    os.write(log, f"{rank} {task.round_number} {task.client}\\n".encode())
    if rank == 2 and begun.count(2) == int(sys.argv[2]):
        time.sleep(2 if sys.argv[2] == "1" else 0)
        os.kill(os.getpid(), signal.SIGKILL)
    return simulate(setup, task, published)

train_round.simulate_client = counted
from fedmpi.main import main
sys.exit(main(sys.argv[3:]))
"""


@pytest.mark.parametrize(("exchange", "dies_in"), [("gather", 3), ("gather", 1), ("reduce", 3)])
def test_only_clients_of_the_dead_are_trained_again(start: Start, tmp_path: Path, exchange: str, dies_in: int) -> None:
    words = (*METHOD, "clients.count=24", "clients.per_round=24", "rounds=3", f"mpi.exchange={exchange}")
    log, run_dir = tmp_path / "begun", tmp_path / "run"
    launched = start(4, *words, "--run-dir", str(run_dir), program=("-c", COUNTS, str(log), str(dies_in)), options=ULFM)
    assert launched.wait() == 0, launched.err
    begun = [tuple(map(int, line.split())) for line in log.read_text().splitlines()]
    times: dict[tuple[int, int], list[int]] = {}
    for rank, number, client in begun:
        times.setdefault((number, client), []).append(rank)
    again = {what: ranks for what, ranks in times.items() if len(ranks) > 1}
    assert len(times) == 72 and len(begun) == 72 + len(again)
    assert again and all(number == 2 and ranks[0] == 2 and 2 not in ranks[1:] for (number, _), ranks in again.items())
    # Sums that a worker has added up die with it; uploads that have arrived do not.
    assert len(again) == 3 if exchange == "reduce" else 1 <= len(again) <= dies_in
    run_all(small_config(*words), SerialComm(), tmp_path / "undisturbed")
    assert finished(run_dir) == finished(tmp_path / "undisturbed")


# Rank 1 hangs in its first client of round 3.
HANGS = """
import os, signal, sys, time
from fedmpi.rounds import client as simulate
from fedmpi import train_round
from fedmpi.mpi.launch import launched_as
local_work = simulate.local_work

def hang(setup, client):
    if launched_as()[0] == 1 and client.task.round_number == 3:
        os.kill(os.getpid(), signal.SIGSTOP) if sys.argv[1] == "stop" else time.sleep(1000)
    return local_work(setup, client)

simulate.local_work = hang
from fedmpi.main import main
sys.exit(main(sys.argv[2:]))
"""


# A rank dies, or fails, before MPI starts; when the run directory is there; or with an error of Python's.
EARLY = """
import os, signal, sys
from fedmpi.run import start as startup
from fedmpi.mpi.launch import launched_as
where, who = sys.argv[1], int(sys.argv[2])
mine = launched_as()[0] == who

def die():
    os.kill(os.getpid(), signal.SIGKILL)

if mine and where == "before MPI":
    die()
if mine and where in ("loading", "preparing"):
    name = {"loading": "check_model", "preparing": "_trainers"}[where]
    setattr(startup, name, lambda *arguments: die())
if mine and where == "training":
    from fedmpi import train_round
    train_round.simulate_client = lambda *arguments: die()
if mine and where == "when MPI has started":
    from fedmpi.mpi import comm
    comm._places = lambda mpi: die()
if mine and where == "failing":
    from fedmpi import train_round
    train_round.simulate_client = lambda *arguments: [][0]
from fedmpi.main import main
sys.exit(main(sys.argv[3:]))
"""


@pytest.mark.parametrize(
    ("where", "who"),
    [("when MPI has started", 0), ("when MPI has started", 1), ("loading", 0), ("loading", 1), ("preparing", 0)],
)
def test_ranks_lost_while_starting(start: Start, tmp_path: Path, where: str, who: int) -> None:
    run_dir = tmp_path / "run"
    words = (*METHOD, "rounds=3", "--run-dir", str(run_dir))
    launched = start(3, *words, program=("-c", EARLY, where, str(who)), options=ULFM)
    assert launched.wait() == 0, launched.err
    assert f"lost rank {who} on " in launched.out
    (loss,) = manifest.read_starts(RunDir(run_dir))[-1]["losses"]
    assert (loss["rank"], loss["round"]) == (who, 1)
    run_all(small_config(*METHOD, "rounds=3"), SerialComm(), tmp_path / "undisturbed")
    assert finished(run_dir) == finished(tmp_path / "undisturbed")


@pytest.mark.parametrize("options", [(), ULFM], ids=["plain", "ulfm"])
@pytest.mark.parametrize("who", [0, 1])
def test_a_rank_dies_before_mpi_starts(start: Start, tmp_path: Path, options: Sequence[str], who: int) -> None:
    """The others do not wait for `mpi.startup_timeout_s`, which is longer than this test."""
    program = ("-c", EARLY, "before MPI", str(who))
    launched = start(3, *METHOD, "--run-dir", str(tmp_path / "run"), program=program, options=options)
    family = all_ranks_of(launched, 3)
    assert launched.wait() not in (0, 2, 75)
    assert all_end(family, time.monotonic() + 10), "processes are left"
    if options:
        assert launched.err.count("fedmpi: ") == launched.err.count(f"fedmpi: lost rank {who} on ") == 1, launched.err
    assert not (tmp_path / "run").exists()


HANGS_AT_START = """
from contextlib import contextmanager
from fedmpi.mpi import serial

@contextmanager
def at_most(*arguments):
    if WHERE == "before MPI":
        stop()
    yield stop  # it is called when MPI has started

if rank == 1:
    serial.at_most = at_most"""


@pytest.mark.parametrize("where", ["before MPI", "when MPI has started"])
def test_a_rank_hangs_before_ranks_have_met(start: Start, tmp_path: Path, where: str) -> None:
    """One of the others says so at the end of their patience, and all end."""
    patch = HANGS_AT_START.replace("WHERE", repr(where))
    words = (*METHOD, "mpi.startup_timeout_s=12", "--run-dir", str(tmp_path / "run"))
    launched = start(3, *words, program=patched(patch), options=ULFM)
    family = all_ranks_of(launched, 3)
    assert launched.wait() not in (0, 2, 75), launched.err
    assert all_end(family, time.monotonic() + 10), "processes are left"
    assert launched.err.count("MPI did not start within 12 s") == 1, launched.err


def all_ranks_of(launched: Launched, count: int) -> list[int]:
    """mpirun and its ranks, as soon as all have been started."""
    family: list[int] = []

    def are_there() -> bool:
        family[:] = descendants(launched.process.pid)
        return len(family) > count

    assert launched.wait_until(are_there), launched.err
    return family


def test_an_error_of_python_ends_all_ranks(start: Start, tmp_path: Path) -> None:
    """Not taken for a dead rank: it would come again on the next rank that trains this client."""
    words = (*METHOD, "rounds=3", "--run-dir", str(tmp_path / "run"))
    launched = start(3, *words, program=("-c", EARLY, "failing", "2"), options=ULFM)
    assert launched.wait() == 1, launched.err
    assert re.search(r"fedmpi: failed on rank 2 on \S+\n  cause: IndexError", launched.err), launched.err
    assert "Traceback" not in launched.err


def test_a_mistake_under_ulfm_is_one_line(start: Start, tmp_path: Path) -> None:
    """Found before MPI starts, and by rank 0 when all ranks are there."""
    (tmp_path / "file").write_text("")
    for words in (("rounds=-1",), ("--run-dir", str(tmp_path / "file"))):
        launched = start(3, *METHOD, *words, options=ULFM)
        assert launched.wait() == 2
        lines = [line for line in launched.err.splitlines() if "rounds" in line or "is not a directory" in line]
        assert len(lines) == 1, launched.err


def test_losses_are_on_record(start: Start, tmp_path: Path) -> None:
    """In the record of the round that was disturbed; each record has what each rank that is left was busy for."""
    run_dir = tmp_path / "run"
    launched = start(3, *ENDLESS, "--run-dir", str(run_dir), options=ULFM)
    assert launched.wait_until(has_rounds(run_dir, 2)), launched.err
    kill(launched, 1)
    assert launched.wait_until(lambda: any("losses" in record for record in read_records(RunDir(run_dir))))
    launched.process.send_signal(signal.SIGUSR1)
    assert launched.wait() == 75
    first, *_, last = [json.loads(line) for line in RunDir(run_dir).records_path.read_text().splitlines()]
    assert set(first["busy_s"]) == {"0", "1", "2"} and set(last["busy_s"]) == {"0", "2"}
    (disturbed,) = [record for record in read_records(RunDir(run_dir)) if "losses" in record]
    (loss,) = disturbed["losses"]
    assert (loss["rank"], loss["round"]) == (1, disturbed["round"])
