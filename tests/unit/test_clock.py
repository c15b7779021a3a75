"""Where time goes, with a clock that only moves when told: every number below is exact."""

import pytest
from hand_clock import HandClock

from fedmpi import clock
from fedmpi.errors import RoundError


class World:
    """A clock and the waiting that a communicator counts; numbers are dyadic, so sums are exact."""

    def __init__(self) -> None:
        self.time = HandClock()
        self.traffic = clock.Traffic(self.time)
        self.clock = clock.Clock(self.traffic)

    def work(self, seconds: float = 0.0, **elsewhere: float) -> None:
        self.time.now_s += seconds
        for kind, waited_s in elsewhere.items():
            with self.traffic.counted(kind):
                self.time.now_s += waited_s


@pytest.fixture
def world() -> World:
    return World()


def nonzero(taken: dict[str, float]) -> dict[str, float]:
    return {stage: seconds for stage, seconds in taken.items() if seconds}


def test_stages_add_up_and_waiting_is_taken_out(world: World) -> None:
    """3 s in training, 1 of them waiting; 1 s more of training; 5 s in aggregation, 2 of them communication; 4.25 s in
    communication, 4 of them counted; and 2.5 s in no stage, 2 of them waiting."""
    with world.clock.stage("local_training"):
        world.work(2.0, idle=1.0)
    with world.clock.stage("local_training"):
        world.work(1.0)
    with world.clock.stage("aggregation"):
        world.work(3.0, communication=2.0)
    with world.clock.stage("communication"):
        world.work(0.25, communication=4.0)
    world.work(0.5, idle=2.0)
    expected = {"local_training": 3.0, "aggregation": 3.0, "idle": 1.0, "communication": 6.25, "wall": 15.75}
    assert nonzero(world.clock.take()) == expected


def test_the_split_has_all_stages_and_never_exceeds_the_wall(world: World) -> None:
    """`take` starts anew."""
    for stage in clock.STAGES:
        with world.clock.stage(stage):
            world.work(1.0, idle=0.25, communication=0.5)
    taken = world.clock.take()
    assert set(taken) == {*clock.STAGES, "wall"}
    assert taken.pop("wall") == sum(taken.values()) == 1.75 * len(clock.STAGES)
    world.work(0.5)
    assert nonzero(world.clock.take()) == {"wall": 0.5}


@pytest.mark.parametrize("cause", [ValueError("bad pixel"), SystemExit(3)])
def test_a_failure_says_where_and_keeps_its_cause(world: World, cause: BaseException) -> None:
    """The innermost stage is named: one that a RoundError passes on its way out adds nothing to it."""
    outer, inner = world.clock.stage("aggregation", 1), world.clock.stage("local_training", 12, 345)
    with pytest.raises(RoundError) as caught, outer, inner:
        raise cause
    assert caught.value.where == "round 12, client 345, stage local_training"
    assert caught.value.__cause__ is cause


def test_a_request_to_stop_is_no_failure(world: World) -> None:
    with pytest.raises(KeyboardInterrupt), world.clock.stage("svd"):
        raise KeyboardInterrupt
    assert "svd" in world.clock.take()
