"""A rank's watchdog counts its own work only; a limit to the start of MPI ends the process with a word."""

import math
import signal
import subprocess
import sys
import threading

import pytest
from hand_clock import HandClock

from fedmpi.clock import Traffic
from fedmpi.mpi.watch import Watch, patience_s


class Watched:
    """A watchdog that looks every second of a clock that tests move, and when it gave up."""

    def __init__(self) -> None:
        self.time = HandClock()
        self.traffic = Traffic(self.time)
        self.given_up: list[bool] = []
        self.watch = Watch(self.traffic, lambda why, is_own: self.given_up.append(is_own))
        self.begin = self.watch.begin
        self.watch.look()

    def gives_up_within(self, seconds: int) -> bool:
        for _ in range(seconds):
            self.time.now_s += 1.0
            if self.watch.look():
                return True
        return False


@pytest.fixture
def watched() -> Watched:
    return Watched()


def test_waiting_is_not_work(watched: Watched) -> None:
    """Seen from within a wait, too."""
    watched.begin(3.0, math.inf)
    with watched.traffic.counted("idle"):
        assert not watched.gives_up_within(6)
    assert not watched.gives_up_within(3)
    assert watched.gives_up_within(1) and watched.given_up == [True]


def test_a_wait_has_a_limit(watched: Watched) -> None:
    """Each wait has the whole limit."""
    watched.begin(3.0, 15.0)
    for _ in range(2):
        with watched.traffic.counted("communication"):
            assert not watched.gives_up_within(15)
    with watched.traffic.counted("communication"):
        assert watched.gives_up_within(16) and watched.given_up == [False]


def test_each_round_has_the_whole_limit(watched: Watched) -> None:
    for _ in range(4):
        watched.begin(5.0, math.inf)
        assert not watched.gives_up_within(4)


def test_a_later_round_may_have_a_longer_limit(watched: Watched) -> None:
    """As after a loss of ranks."""
    watched.begin(2.0, math.inf)
    watched.begin(60.0, math.inf)
    assert not watched.gives_up_within(60)
    watched.begin(1.0, math.inf)
    assert watched.gives_up_within(2)


def test_a_process_that_was_stopped_begins_anew(watched: Watched) -> None:
    """As when Slurm suspends a job: what went by then counts for nobody. From then on the limit counts as before."""
    watched.begin(5.0, math.inf)
    watched.time.now_s += 100.0
    assert not watched.gives_up_within(6)
    assert watched.gives_up_within(1)


def test_a_thread_looks_while_the_block_runs() -> None:
    """And only if there is a limit."""
    before, given_up = threading.active_count(), threading.Event()
    with Watch(Traffic(), lambda why, is_own: given_up.set()) as watch:
        watch.begin(0.0, math.inf)
        assert threading.active_count() == before
        watch.begin(1e-3, math.inf)
        assert given_up.wait(60)
    assert patience_s(0.0) == math.inf and patience_s(5.0) > 10.0


SLOW_START = """
import sys, time
from fedmpi.mpi.starting import at_most
with at_most(float(sys.argv[1]), "too slow"):
    time.sleep(float(sys.argv[2]))
print("started")
"""


@pytest.mark.parametrize(("limit_s", "takes_s"), [(0.3, 600.0), (300.0, 0.1)])
def test_a_start_has_a_limit(limit_s: float, takes_s: float) -> None:
    words = [sys.executable, "-c", SLOW_START, str(limit_s), str(takes_s)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=300)
    is_too_slow = takes_s > limit_s
    assert (done.returncode, done.stdout) == ((-signal.SIGKILL, "") if is_too_slow else (0, "started\n"))
    assert done.stderr == ("too slow\n" if is_too_slow else "")
