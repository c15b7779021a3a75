"""How the work of a test is dealt: every unit once, in contiguous stretches, about equal in cost."""

import pytest

from fedmpi.learning.evaluate import Bounds, Unit, my_units

# MACs of the quick start's tiers, one light tier more, and batches of 64 out of 360 with a smaller last one.
COSTS = (993_536.0, 624_896.0, 477_440.0, 370_000.0, 1.0)
BOUNDS: list[Bounds] = [(0, 64), (64, 128), (128, 192), (192, 256), (256, 320), (320, 360)]


def dealt(costs: tuple[float, ...], bounds: list[Bounds], num_workers: int) -> list[list[Unit]]:
    return [my_units(costs, bounds, worker, num_workers) for worker in range(num_workers)]


def cost_of(units: list[Unit], costs: tuple[float, ...]) -> float:
    return sum(costs[tier] * (stop - start) for tier, (start, stop) in units)


@pytest.mark.parametrize("num_workers", [1, 2, 3, 5, 7])
@pytest.mark.parametrize("costs", [COSTS, COSTS[::-1], (1.0,), (0.1, 0.1, 0.1), (1e12, 1.0, 1e12)])
@pytest.mark.parametrize("bounds", [BOUNDS, BOUNDS[:1], [(i, i + 1) for i in range(50)]])
def test_every_unit_once_and_contiguous(num_workers: int, costs: tuple[float, ...], bounds: list[Bounds]) -> None:
    """One after the other, the workers' units are all units in order: none is lost, none is done twice."""
    everything = [(tier, piece) for tier in range(len(costs)) for piece in bounds]
    assert [unit for own in dealt(costs, bounds, num_workers) for unit in own] == everything


@pytest.mark.parametrize("num_workers", [2, 3, 5, 7])
def test_nobody_has_much_more_than_a_fair_share(num_workers: int) -> None:
    """A stretch whose units' middles lie within a share is longer than it by at most half a unit at each end."""
    longest = max(COSTS) * 64
    fair = cost_of([(tier, piece) for tier in range(len(COSTS)) for piece in BOUNDS], COSTS) / num_workers
    for own in dealt(COSTS, BOUNDS, num_workers):
        assert cost_of(own, COSTS) <= fair + longest


def test_by_hand() -> None:
    """Tiers of cost 3 and 1 in two batches of one example: units 3, 3, 1, 1 with middles 1.5, 4.5, 6.5, 7.5 of 8."""
    units: list[Unit] = [(0, (0, 1)), (0, (1, 2)), (1, (0, 1)), (1, (1, 2))]
    assert dealt((3.0, 1.0), [(0, 1), (1, 2)], 2) == [units[:1], units[1:]]
    assert my_units((3.0, 1.0), [(0, 1), (1, 2)], None, 4) == []
    assert dealt((3.0, 1.0), [(0, 1), (1, 2)], 4) == [units[:1], [], units[1:2], units[2:]]


def test_late_tiers_come_last_and_are_dealt_by_themselves() -> None:
    """Two workers, each first with a half of tier 1, then with a half of tiers 0 and 2."""
    late = [my_units((4.0, 2.0, 4.0), [(0, 1), (1, 2)], worker, 2, late={0, 2}) for worker in range(2)]
    assert late == [[(1, (0, 1)), (0, (0, 1)), (0, (1, 2))], [(1, (1, 2)), (2, (0, 1)), (2, (1, 2))]]
