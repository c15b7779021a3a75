"""The ranks that one launcher has started on this host, out of /proc: here a shell is the launcher."""

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest

from fedmpi.mpi.neighbours import Neighbours

JOB = {"PMIX_NAMESPACE": "job@1", "OMPI_COMM_WORLD_RANK": "0"}
MINE = {**JOB, "OMPI_COMM_WORLD_SIZE": "3", "OMPI_COMM_WORLD_LOCAL_SIZE": "3"}
SCRIPT = """
for rank in 0 1 2; do PMIX_NAMESPACE=job@1 OMPI_COMM_WORLD_RANK=$rank sleep 600 & echo $!; done
PMIX_NAMESPACE=other OMPI_COMM_WORLD_RANK=7 sleep 600 & echo $!
read end"""


@pytest.fixture
def launcher() -> Iterator[tuple[Neighbours, list[int]]]:
    """A launcher of three ranks and of one of another job, and their process numbers. It does not wait for its dead."""
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen(["sh", "-c", SCRIPT], **pipes) as process:
        pids = [int(process.stdout.readline()) for _ in range(4)]
        try:
            yield Neighbours(process.pid, "job@1", 0, 3, 3), pids
        finally:
            for pid in pids:
                with contextlib.suppress(ProcessLookupError):  # the shell may wait for its dead after all
                    os.kill(pid, signal.SIGKILL)


def comes(is_so: Callable[[], bool]) -> bool:
    deadline = time.monotonic() + 600
    while not is_so() and time.monotonic() < deadline:
        time.sleep(0.01)
    return is_so()


def test_a_rank_that_dies_is_lost(launcher: tuple[Neighbours, list[int]]) -> None:
    neighbours, pids = launcher
    all_three = dict(enumerate(pids[:3]))
    assert comes(lambda: neighbours.alive() == all_three)
    assert neighbours.lost(all_three) == set()
    os.kill(pids[1], signal.SIGSTOP)
    assert neighbours.alive() == all_three
    os.kill(pids[1], signal.SIGKILL)  # its parent never waits for it: it stays a zombie
    assert comes(lambda: neighbours.alive() == {0: pids[0], 2: pids[2]})
    assert neighbours.lost({0, 2}) == {1}
    assert replace(neighbours, size=5).lost({0, 2}) == set(), "the others are on other hosts"


def test_what_cannot_be_seen_is_not_lost(launcher: tuple[Neighbours, list[int]]) -> None:
    neighbours, pids = launcher
    assert comes(lambda: neighbours.alive() == dict(enumerate(pids[:3])))
    assert replace(neighbours, job="another").alive() is None
    assert replace(neighbours, launcher=2**22 + 1).alive() is None
    os.kill(pids[0], signal.SIGKILL)
    assert comes(lambda: neighbours.alive() is None), "not even this one: whatever is seen is not this job"


def test_the_launcher_is_the_first_that_is_not_of_the_job() -> None:
    found = Neighbours.of_this_process(MINE)
    assert found == Neighbours(os.getppid(), "job@1", 0, 3, 3)


@pytest.mark.parametrize(
    "other", [{"PMIX_NAMESPACE": ""}, {"OMPI_COMM_WORLD_RANK": "x"}, {"OMPI_COMM_WORLD_LOCAL_SIZE": ""}]
)
def test_another_launcher_has_started_it(other: dict[str, str]) -> None:
    assert Neighbours.of_this_process({**MINE, **other}) is None
