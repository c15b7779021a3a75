"""When a run stops before its last round: what a rank wishes, by signal and by the clock."""

import os
import signal

import pytest
from golden_file import Told
from hand_clock import HandClock

from fedmpi.running import stopping
from fedmpi.running.stopping import GO_ON, OUT_OF_TIME, SIGNALLED, Stopping, seconds_left


@pytest.fixture
def clock() -> HandClock:
    return HandClock()


@pytest.mark.parametrize(
    ("limit_s", "environment", "left_s"),
    [
        (0.0, {}, None),
        (90.0, {}, 90.0),
        (90.0, {"SLURM_JOB_END_TIME": "2000"}, 90.0),
        (5000.0, {"SLURM_JOB_END_TIME": "2000"}, 1000.0),
        (0.0, {"SLURM_JOB_END_TIME": "900"}, -100.0),
        (0.0, {"SLURM_JOB_END_TIME": "UNLIMITED"}, None),
    ],
)
def test_the_end(limit_s: float, environment: dict[str, str], left_s: float | None) -> None:
    assert seconds_left(limit_s, environment, now_s=1000.0) == left_s


def test_a_round_begins_only_if_it_ends_in_time(clock: HandClock, told: Told) -> None:
    """60 s less 10 s to spare: the end is at 150. A round of 8 s is given 12: the last one begins at 138."""
    wishes, endless = Stopping(60.0, 10.0, now=clock), Stopping(now=clock)
    assert wishes.vote(8.0) == GO_ON
    clock.now_s = 138.0
    assert wishes.vote(8.0) == GO_ON
    clock.now_s = 138.1
    assert wishes.vote(8.0) == OUT_OF_TIME and endless.vote(1e6) == GO_ON
    assert wishes.why(GO_ON) == ""
    told(wishes.why(OUT_OF_TIME))


def test_the_longest_of_the_last_rounds_counts(clock: HandClock) -> None:
    """One of 20 s (30 s are left over from 150 - 120) is remembered for four more rounds, or for `every`."""
    for every, remembered in ((1, 5), (9, 9)):
        clock.now_s = 100.0
        wishes = Stopping(60.0, 10.0, every, now=clock)
        assert wishes.vote(20.0) == GO_ON
        clock.now_s = 120.5
        assert [wishes.vote(1.0) for _ in range(remembered)] == [OUT_OF_TIME] * (remembered - 1) + [GO_ON]


def test_a_signal_is_heard_once_and_goes_before_the_clock(clock: HandClock, told: Told) -> None:
    """The highest wish of all ranks is done, and the reason that it names is said."""
    said: list[str] = []
    wishes = Stopping(0.0, now=clock)
    wishes.listen(said.append)
    assert wishes.vote(1.0) == OUT_OF_TIME
    for _ in range(2):
        os.kill(os.getpid(), signal.SIGUSR1)
    assert wishes.vote(1.0) == wishes.vote(1.0) == SIGNALLED > OUT_OF_TIME > GO_ON
    told("\n".join(said))
    assert wishes.why(SIGNALLED) == "SIGUSR1"


def test_a_signal_before_anybody_listens_counts() -> None:
    stopping.notice_early()
    os.kill(os.getpid(), stopping.SIGNAL)
    said: list[str] = []
    wishes = Stopping()
    wishes.listen(said.append)
    assert len(said) == 1 and wishes.vote(1.0) == SIGNALLED
    later = Stopping()
    later.listen(said.append)
    assert later.vote(1.0) == GO_ON, "it was for one run"
