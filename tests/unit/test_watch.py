"""A rank's watchdog counts its own work only; a limit to the start of MPI ends the process with a word."""

import math
import subprocess
import sys
import threading
import time
from types import SimpleNamespace

import pytest

from fedmpi.mpi.traffic import Traffic
from fedmpi.mpi.watch import Watch, patience_s


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Its one number is the time, for the watchdog and for what it watches."""
    now_s = [100.0]
    time_s = SimpleNamespace(perf_counter=lambda: now_s[0], sleep=time.sleep)
    monkeypatch.setattr("fedmpi.mpi.watch.time", time_s)
    monkeypatch.setattr("fedmpi.mpi.traffic.time", time_s)
    return now_s


def pass_by(clock: list[float], seconds: float) -> None:
    """And the watchdogs here look about three times."""
    clock[0] += seconds
    time.sleep(0.15)


def next_second(clock: list[float], given_up: threading.Event) -> bool:
    """Whether the watchdog gave up; it may have looked once."""
    clock[0] += 1.0
    return given_up.wait(0.6)


def test_waiting_is_not_work(clock: list[float]) -> None:
    traffic, given_up = Traffic(), threading.Event()
    with Watch(traffic, lambda why, is_own: given_up.set()) as watch:
        watch.begin(0.3, math.inf)
        with traffic.waiting():
            pass_by(clock, 0.6)
            assert watch.busy_s() < 0.2  # seen from within a wait, too
        assert not given_up.is_set() and traffic.idle_s > 0.5
        pass_by(clock, 0.35)
        assert given_up.wait(30), "a third of a second of work went by unnoticed"


def test_each_round_has_the_whole_limit(clock: list[float]) -> None:
    given_up = threading.Event()
    with Watch(Traffic(), lambda why, is_own: given_up.set()) as watch:
        for _ in range(4):
            watch.begin(0.5, math.inf)
            pass_by(clock, 0.2)
    pass_by(clock, 0.6)
    assert not given_up.is_set(), "neither 4 rounds nor the time after them count together"


def test_a_later_round_may_have_a_longer_limit(clock: list[float]) -> None:
    """As after a loss of ranks."""
    given_up = threading.Event()
    with Watch(Traffic(), lambda why, is_own: given_up.set()) as watch:
        watch.begin(0.2, math.inf)
        watch.begin(60.0, math.inf)
        pass_by(clock, 0.6)
        assert not given_up.is_set()
        watch.begin(0.1, math.inf)
        pass_by(clock, 0.2)
        assert given_up.wait(30)


def test_a_process_that_was_stopped_begins_anew(clock: list[float]) -> None:
    """As when Slurm suspends a job: what went by then counts for nobody."""
    traffic, given_up = Traffic(), threading.Event()
    with Watch(traffic, lambda why, is_own: given_up.set()) as watch:
        watch.begin(5.0, math.inf)
        time.sleep(0.3)
        clock[0] += 100.0
        time.sleep(1.5)
        assert not given_up.is_set()
        assert any(next_second(clock, given_up) for _ in range(60)), "from then on the limit counts as before"


def test_without_a_limit_nobody_watches() -> None:
    before = threading.active_count()
    with Watch(Traffic(), lambda why, is_own: None) as watch:
        watch.begin(0.0, math.inf)
        assert threading.active_count() == before
    assert patience_s(0.0) == math.inf and patience_s(5.0) > 10.0


SLOW_START = """
import sys, time
from fedmpi.mpi.deadline import at_most
with at_most(float(sys.argv[1]), "it took too long"):
    time.sleep(float(sys.argv[2]))
print("started")
"""


@pytest.mark.parametrize(("limit_s", "takes_s", "code"), [(0.3, 60.0, 1), (30.0, 0.1, 0), (0.0, 0.3, 0)])
def test_a_start_has_a_limit(limit_s: float, takes_s: float, code: int) -> None:
    words = [sys.executable, "-c", SLOW_START, str(limit_s), str(takes_s)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=50)
    assert (done.returncode, done.stdout) == (code, "" if code else "started\n")
    assert done.stderr == ("it took too long\n" if code else "")
