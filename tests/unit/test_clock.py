"""Where time goes, with a clock that only moves when told: every number below is exact."""

from types import SimpleNamespace

import pytest

from fedmpi import clock
from fedmpi.errors import RoundError


class World:
    """A fake time and the waiting that a communicator counts; numbers are dyadic, so sums are exact."""

    def __init__(self) -> None:
        self.now_s = 100.0
        self.waiting = SimpleNamespace(idle_s=8.0, communication_s=16.0)
        self.clock: clock.Clock

    def work(self, seconds: float = 0.0, *, idle: float = 0.0, communication: float = 0.0) -> None:
        self.now_s += seconds + idle + communication
        self.waiting.idle_s += idle
        self.waiting.communication_s += communication


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    world = World()
    monkeypatch.setattr(clock, "time", SimpleNamespace(perf_counter=lambda: world.now_s))
    world.clock = clock.Clock(world.waiting)
    return world


def nonzero(taken: dict[str, float]) -> dict[str, float]:
    return {stage: seconds for stage, seconds in taken.items() if seconds}


def test_stages_add_up_and_waiting_is_taken_out(world: World) -> None:
    """3 s in training, 1 of them waiting; then 1 s more of training; 5 s in aggregation, 2 of them communication."""
    with world.clock.stage("local_training") as timer:
        world.work(2.0, idle=1.0)
    assert timer.seconds == 2.0
    with world.clock.stage("local_training"):
        world.work(1.0)
    with world.clock.stage("aggregation") as timer:
        world.work(3.0, communication=2.0)
    assert timer.seconds == 3.0
    world.work(0.5)  # in no stage
    expected = {"local_training": 3.0, "aggregation": 3.0, "idle": 1.0, "communication": 2.0, "wall": 9.5}
    assert nonzero(world.clock.take()) == expected


def test_waiting_within_its_own_stage_counts_once(world: World) -> None:
    with world.clock.stage("communication") as timer:
        world.work(0.25, communication=4.0, idle=0.5)
    assert timer.seconds == 0.25
    assert nonzero(world.clock.take()) == {"communication": 4.25, "idle": 0.5, "wall": 4.75}


def test_waiting_outside_of_stages_is_nobody_s(world: World) -> None:
    world.work(idle=2.0)
    with world.clock.stage("svd"):
        world.work(1.0)
    assert nonzero(world.clock.take()) == {"svd": 1.0, "wall": 3.0}


def test_take_starts_anew_and_names_every_stage(world: World) -> None:
    with world.clock.stage("evaluation"):
        world.work(1.0)
    assert set(world.clock.take()) == {*clock.STAGES, "wall"}
    world.work(0.5)
    assert nonzero(world.clock.take()) == {"wall": 0.5}


def test_the_split_never_exceeds_the_wall(world: World) -> None:
    for stage in clock.STAGES:
        with world.clock.stage(stage):
            world.work(1.0, idle=0.25, communication=0.5)
    taken = world.clock.take()
    assert taken.pop("wall") == sum(taken.values()) == 1.75 * len(clock.STAGES)


def test_a_failure_says_where_and_keeps_its_cause(world: World) -> None:
    cause = ValueError("bad pixel")

    def fail() -> None:
        with world.clock.stage("local_training", 12, 345):
            world.work(1.0)
            raise cause

    with pytest.raises(RoundError) as caught:
        fail()
    error = caught.value
    assert (error.stage, error.round_number, error.client) == ("local_training", 12, 345)
    assert error.__cause__ is cause
    assert nonzero(world.clock.take()) == {"local_training": 1.0, "wall": 1.0}


def test_the_innermost_stage_is_named(world: World) -> None:
    """A stage that a RoundError passes on its way out adds nothing to it."""
    cause = ValueError("x")
    with pytest.raises(RoundError) as caught, world.clock.stage("aggregation", 1), world.clock.stage("svd", 2, 3):
        raise cause
    error = caught.value
    assert (error.stage, error.round_number, error.client) == ("svd", 2, 3)
    assert error.__cause__ is cause


@pytest.mark.parametrize("kind", [KeyboardInterrupt, SystemExit])
def test_a_request_to_stop_is_no_failure(world: World, kind: type[BaseException]) -> None:
    with pytest.raises(kind), world.clock.stage("svd"):
        raise kind
    assert "svd" in world.clock.take()
