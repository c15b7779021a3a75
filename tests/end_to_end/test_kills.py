"""A run killed by SIGKILL at any moment, that of saving included, resumes to the same bits."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from launched import Launched
from small_runs import Finished, finished, run_all, small_config

from fedmpi.mpi.serial import SerialComm
from fedmpi.report.records import read_records
from fedmpi.store.run_dir import RunDir

Start = Callable[..., Launched]

ROUNDS = 24
METHODS = {
    "fedavg": ("method.name=fedavg", "method.weighting=samples", "partition.name=class_dirichlet"),
    "fedhm": ("method.name=fedhm", "clients.tier_assignment=dynamic", "partition.name=class_dirichlet"),
    # Clients of these two have a memory.
    "hermes": ("method.name=hermes", "method.accuracy_threshold=0.2", "method.intersection=all"),
    "topk": ("method.name=topk", "partition.name=class_dirichlet"),
}


def overrides(method: str, rounds: int = ROUNDS) -> tuple[str, ...]:
    schedule = (f"rounds={rounds}", "evaluation.every=5", "train.schedule.milestones=[10]")
    return (*METHODS[method], *schedule, "output.progress=plain")


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Finished]:
    """What the run comes to in one go, in this process."""
    known: dict[tuple[str, ...], Finished] = {}

    def run(method: str, rounds: int = ROUNDS) -> Finished:
        words = overrides(method, rounds)
        if words not in known:
            folder = tmp_path_factory.mktemp("undisturbed")
            run_all(small_config(*words), SerialComm(), folder)
            known[words] = finished(folder)
        return known[words]

    return run


def last_round(run_dir: Path) -> int:
    return max((record["round"] for record in read_records(RunDir(run_dir))), default=0)


@pytest.mark.parametrize(
    ("method", "seed", "ranks"),
    [("fedavg", 1, (2, 3)), ("fedhm", 2, (3, 2)), ("hermes", 3, (3, 2)), ("topk", 4, (2, 3))],
)
def test_kills_at_random_moments(
    start: Start, undisturbed: Callable[..., Finished], tmp_path: Path, method: str, seed: int, ranks: tuple[int, ...]
) -> None:
    """Each start is killed some rounds on, up to 0.1 s (a round, or more) after that round is recorded; the last is not.

    Checkpoints are made every second round, so what lies between them is done again. Ranks change between starts.
    However late the kills come, there are rounds left for the last start.
    """
    moments = random.Random(seed)
    run_dir = tmp_path / "run"
    for number_of_ranks in ranks:
        words = overrides(method, rounds=100_000)
        launched = start(number_of_ranks, *words, "output.checkpoint_every=2", *resume(run_dir))
        until = last_round(run_dir) + moments.randint(2, 9)
        assert launched.wait_until(lambda until=until: last_round(run_dir) >= until), launched.err
        time.sleep(moments.uniform(0, 0.1))
        launched.kill()
    rounds = max(ROUNDS, last_round(run_dir) + 2)
    last = start(2, *overrides(method, rounds), "output.checkpoint_every=2", *resume(run_dir))
    assert last.wait() == 0, last.err
    assert "resuming after round" in last.out
    assert finished(run_dir) == undisturbed(method, rounds)


def resume(run_dir: Path) -> tuple[str, ...]:
    return ("--run-dir", str(run_dir), *(["--resume"] if run_dir.exists() else []))


# Rank 0 ends itself by SIGKILL in the middle of saving round KILL_AT, the first time it comes there.
KILLED_WHILE_SAVING = """
import os, signal, sys
from pathlib import Path
from fedmpi.disk import plain as plain_files
moment, marker = sys.argv[1], Path(sys.argv[2])
replace, fsync = os.replace, os.fsync

def die():
    if not marker.exists():
        marker.touch()
        os.kill(os.getpid(), signal.SIGKILL)

class Os:
    def __getattr__(self, name):
        return getattr(os, name)
    def replace(self, source, target, **folders):
        is_it = Path(target).name == "round-000005.h5"
        if is_it and moment == "half written":
            half = f"/proc/self/fd/{folders['src_dir_fd']}/{source}"
            os.truncate(half, os.path.getsize(half) // 2)
        if is_it and moment != "renamed":
            die()
        replace(source, target, **folders)
        if is_it:
            die()

plain_files.os = Os()
from fedmpi.main import main
sys.exit(main(sys.argv[3:]))
"""


@pytest.mark.parametrize(
    ("method", "moment", "ranks"),
    [("fedavg", "half written", 2), ("fedhm", "written", 1), ("fedhm", "renamed", 2), ("topk", "renamed", 2)],
)
def test_kills_while_saving(
    start: Start, undisturbed: Callable[..., Finished], tmp_path: Path, method: str, moment: str, ranks: int
) -> None:
    """Killed with half of a temporary file, with a whole one, and between the rename and what follows it."""
    run_dir, marker = tmp_path / "run", tmp_path / "was killed"
    program = ("-c", KILLED_WHILE_SAVING, moment, str(marker))
    first = start(ranks, *overrides(method), "--run-dir", str(run_dir), program=program)
    assert first.wait() != 0 and marker.exists(), first.err
    assert last_round(run_dir) == 5
    second = start(ranks, *overrides(method), "--run-dir", str(run_dir), "--resume", program=program)
    assert second.wait() == 0, second.err
    assert f"resuming after round {5 if moment == 'renamed' else 4}" in second.out
    assert not list(run_dir.rglob("*.tmp")), "a temporary file was left"
    assert finished(run_dir) == undisturbed(method)
