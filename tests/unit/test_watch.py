"""A rank's watchdog counts its own work only; a limit to the start of MPI ends the process with a word."""

import threading
from types import SimpleNamespace

import pytest
from hand_clock import HandClock

from fedmpi.clock import Traffic
from fedmpi.running.losses import Limits


class Watched(Limits):
    """Limits that look every second of a clock that tests move, and what was given up."""

    def __init__(self) -> None:
        self.time = HandClock()
        self.given_up: list[bool] = []
        self.settings = SimpleNamespace(round_timeout_s=3.0, startup_timeout_s=0.0, server_trains=True)
        comm = SimpleNamespace(traffic=Traffic(self.time), size=2, started_size=2)
        super().__init__(self.settings, comm, SimpleNamespace())
        self.poll()

    def _give_up(self, why: str, *, is_own: bool) -> None:
        self.given_up.append(is_own)

    def gives_up_within(self, seconds: int) -> bool:
        for _ in range(seconds):
            self.time.now_s += 1.0
            if self.poll():
                return True
        return False


@pytest.fixture
def watched() -> Watched:
    return Watched()


def test_waiting_is_not_work(watched: Watched) -> None:
    """Seen from within a wait, too."""
    watched.of_a_round()
    with watched._comm.traffic.counted("idle"):
        assert not watched.gives_up_within(6)
    assert not watched.gives_up_within(3)
    assert watched.gives_up_within(1) and watched.given_up == [True]


def test_a_wait_has_a_limit(watched: Watched) -> None:
    """Twice that of a round, and ten seconds; each wait has the whole limit."""
    watched.of_a_round()
    for _ in range(2):
        with watched._comm.traffic.counted("communication"):
            assert not watched.gives_up_within(16)
    with watched._comm.traffic.counted("communication"):
        assert watched.gives_up_within(17) and watched.given_up == [False]


def test_each_round_has_the_whole_limit(watched: Watched) -> None:
    for _ in range(4):
        watched.of_a_round()
        assert not watched.gives_up_within(3)


def test_ranks_that_are_left_have_more_time(watched: Watched) -> None:
    """One of two workers does the work of both; without limits while it sets up anew."""
    watched.of_a_round()
    watched.of_more_than_a_round()
    assert not watched.gives_up_within(60)
    watched._comm.size = 1
    watched.of_a_round()
    assert not watched.gives_up_within(6)
    assert watched.gives_up_within(1)


def test_a_process_that_was_stopped_begins_anew(watched: Watched) -> None:
    """As when Slurm suspends a job: what went by then counts for nobody. From then on the limit counts as before."""
    watched.of_a_round()
    watched.time.now_s += 100.0
    assert not watched.gives_up_within(4)
    assert watched.gives_up_within(1)


def test_a_thread_looks_while_the_block_runs() -> None:
    """And only if there is a limit."""
    before = threading.active_count()
    for limit_s in (0.0, 1e-3):
        limits = Watched()
        limits.settings.round_timeout_s = limit_s
        with limits:
            assert threading.active_count() == before + (limit_s > 0)
