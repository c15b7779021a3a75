"""When a run stops before its last round: what a rank wishes, by signal and by the clock."""

import json
import os
import signal
from pathlib import Path
from types import SimpleNamespace

import pytest
from golden_file import Told
from hand_clock import HandClock
from small_runs import run_all, small_config

from fedmpi.experiment import run
from fedmpi.mpi.communicator import SerialComm
from fedmpi.report.records import read_records, round_seconds
from fedmpi.running import stopping
from fedmpi.running.folder import RunRequest
from fedmpi.running.limits import Limits
from fedmpi.running.stopping import GO_ON, OUT_OF_TIME, SIGNALLED, Stopping, seconds_left
from fedmpi.store.run_dir import RunDir


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
    assert wishes.stop_vote(8.0) == GO_ON
    clock.now_s = 138.0
    assert wishes.stop_vote(8.0) == GO_ON
    clock.now_s = 138.1
    assert wishes.stop_vote(8.0) == OUT_OF_TIME and endless.stop_vote(1e6) == GO_ON
    assert wishes.why(GO_ON) == ""
    told(wishes.why(OUT_OF_TIME))


def test_the_longest_of_the_last_rounds_counts(clock: HandClock) -> None:
    """One of 20 s (30 s are left over from 150 - 120) is remembered for four more rounds, or for `every`."""
    for every, remembered in ((1, 5), (9, 9)):
        clock.now_s = 100.0
        wishes = Stopping(60.0, 10.0, every, now=clock)
        assert wishes.stop_vote(20.0) == GO_ON
        clock.now_s = 120.5
        assert [wishes.stop_vote(1.0) for _ in range(remembered)] == [OUT_OF_TIME] * (remembered - 1) + [GO_ON]


@pytest.mark.parametrize(
    ("left_s", "earlier_s", "given_s"),
    [
        (50.0, [1.0, 30.0, 1.0], 45.0),  # more than the 40 s that are left after 10: it may be the long one
        (40.0, [1.0, 27.0, 2.0], 3.0),  # no such start could make that of 27 s, which is given 40.5 s
    ],
)
def test_long_rounds_of_an_earlier_start_count(
    clock: HandClock, left_s: float, earlier_s: list[float], given_s: float
) -> None:
    """But for one longer than a start, as where a job was suspended: else every start would make one round."""
    wishes = Stopping(left_s, 0.0, every=10, now=clock)
    wishes.remember(earlier_s)
    clock.now_s += 10.0
    assert wishes.stop_vote(1.0) == (OUT_OF_TIME if given_s > 40.0 else GO_ON) and wishes.next_round_s == given_s
    wishes.remember([200.0])  # a start's own rounds count more
    assert wishes.next_round_s == given_s


def test_rounds_of_as_many_ranks_tell_of_the_next_ones() -> None:
    busy_s = {"0": 1.0, "1": 2.0}
    records = [
        {"round": 1, "seconds": {"wall": 3.0}, "busy_s": busy_s},
        {"round": 2, "seconds": {"wall": 9.0}, "busy_s": {"0": 1.0}},
        {"round": 5, "seconds": {"wall": 4.0}, "busy_s": busy_s},
    ]
    assert round_seconds(records, 2) == [3.0, 4.0]


def test_a_run_that_goes_on_knows_how_long_its_rounds_were(tmp_path: Path) -> None:
    """Two rounds of which one was slow; with less time than that would take, the next start makes one and stops."""
    words = ("method.name=fedavg", "rounds=9", "output.checkpoint_every=1")
    run_all(small_config(*words, "rounds=2"), SerialComm(), tmp_path)
    path = RunDir(tmp_path).records_path
    first, second = path.read_text().splitlines()
    slow = json.loads(first)
    slow["seconds"]["wall"] = 1000.0
    path.write_text(f"{json.dumps(slow)}\n{second}\n")
    stops = Stopping(1500.0, 0.0)  # nothing is left of the 1.5 times as long
    assert not run(small_config(*words), SerialComm(), RunRequest(str(tmp_path), resume=True), stopping=stops)
    assert len(read_records(RunDir(tmp_path))) == 3


def test_a_signal_is_heard_once_and_goes_before_the_clock(clock: HandClock, told: Told) -> None:
    """The highest wish of all ranks is done, and the reason that it names is said."""
    said: list[str] = []
    wishes = Stopping(0.0, now=clock)
    wishes.listen(said.append)
    assert wishes.stop_vote(1.0) == OUT_OF_TIME
    for _ in range(2):
        os.kill(os.getpid(), signal.SIGUSR1)
    assert wishes.stop_vote(1.0) == wishes.stop_vote(1.0) == SIGNALLED > OUT_OF_TIME > GO_ON
    told("\n".join(said))
    assert wishes.why(SIGNALLED) == "SIGUSR1"


def test_a_signal_before_anybody_listens_counts() -> None:
    stopping.notice_early()
    os.kill(os.getpid(), stopping.SIGNAL)
    said: list[str] = []
    wishes = Stopping()
    wishes.listen(said.append)
    assert len(said) == 1 and wishes.stop_vote(1.0) == SIGNALLED
    later = Stopping()
    later.listen(said.append)
    assert later.stop_vote(1.0) == GO_ON, "it was for one run"


def test_a_round_of_fewer_ranks_takes_longer(clock: HandClock) -> None:
    """10 s with all ranks are 40 s with a quarter of them, and 1.5 times as long are kept free: 60 of the 100 s."""
    wishes = Stopping(100.0, now=clock)
    assert wishes.stop_vote(10.0) == GO_ON and wishes.next_round_s == 15.0
    assert wishes.stop_vote(10.0, share=4.0) == GO_ON and wishes.next_round_s == 60.0
    assert wishes.stop_vote(40.0, share=4.0) == GO_ON and wishes.next_round_s == 60.0
    clock.now_s += 41.0
    assert wishes.stop_vote(40.0, share=4.0) == OUT_OF_TIME


# What is left to each rank when others are lost, by hand.


@pytest.mark.parametrize(
    ("started", "left", "trains", "share"),
    [
        (5, 5, False, 1),
        (5, 4, False, 2),  # one of the three workers has the fourth's clients, too
        (5, 2, False, 4),
        (2, 1, False, 2),  # the worker's part and the server's
        (4, 1, False, 4),
        (2, 1, True, 2),  # rank 0 did both before
        (1, 1, False, 1),
    ],
)
def test_share(started: int, left: int, trains: bool, share: int) -> None:
    comm = SimpleNamespace(size=left, started_size=started, traffic=None)
    assert Limits(SimpleNamespace(server_trains=trains), comm, None).share() == share
