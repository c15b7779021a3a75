"""What a million registered clients cost: the same steps of Python as a thousand, and memory of the cohort only.

Steps are counted, not timed: `steps` is how many lines of fedmpi run, loops and comprehensions included.
"""

import sys
import tracemalloc
from collections.abc import Callable
from types import FrameType
from typing import Any

import numpy as np
import pytest

from fedmpi.config.load import load
from fedmpi.data.partition import PartitionOptions, make_partition
from fedmpi.data.partitions.dirichlet import Dirichlet, DirichletEqual, QuantitySkew
from fedmpi.data.partitions.plain import Iid, Lottery, Natural, Shards
from fedmpi.federation.participation import Participation
from fedmpi.running.forecast import forecast

MILLION = 1_000_000
FEW, MANY = 500, 50_000


def steps(action: Callable[[], Any]) -> int:
    """How many lines of fedmpi's modules `action` runs."""
    count = 0

    def trace(frame: FrameType, event: str, argument: Any) -> Any:
        nonlocal count
        if "fedmpi" not in frame.f_code.co_filename:
            return None
        count += event == "line"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        action()
    finally:
        sys.settrace(before)
    return count


VECTORIZED = [
    Iid(shuffle=True),
    Dirichlet(),
    DirichletEqual(),
    QuantitySkew(),
    Shards(shards_per_client=1),
    Lottery(samples=1),
    Natural(),
]


@pytest.mark.parametrize("options", VECTORIZED, ids=lambda options: options.model_dump_json())
def test_partitions_do_not_loop_over_clients(options: PartitionOptions) -> None:
    labels, groups = np.arange(2 * MANY) % 10, np.arange(2 * MANY) % MANY

    def pack(num_clients: int) -> None:
        make_partition(options, labels, num_clients, 0, groups).packed("ff")

    few, many = (steps(lambda n=n: pack(n)) for n in (FEW, MANY))
    # What is done in blocks (of 4,096 clients, of 16,384 draws, of a share of what is left) takes more of them.
    in_blocks = options.name in ("dirichlet", "dirichlet_equal", "lottery")
    assert many < (20 * few if in_blocks else few + 20)


@pytest.mark.parametrize("assignment", ["fixed", "dynamic"])
@pytest.mark.parametrize("tiers", [None, frozenset({1, 3})])
def test_a_cohort_of_a_million(assignment: str, tiers: frozenset[int] | None) -> None:
    """20 clients with their tiers: a list of all of them would be 8 MB; steps as for a thousand."""
    cohorts = {}
    for count in (1000, MILLION):
        words = [f"clients.count={count}", "clients.per_round=20", f"clients.tier_assignment={assignment}"]
        config = load(None, ["data.name=synthetic", f"data.num_train={MILLION}", "partition.name=iid", *words])
        cohorts[count] = lambda config=config: Participation(config).cohort(1, "train", 20, tiers)
    few, many = (steps(cohorts[count]) for count in cohorts)
    assert many < 5 * few
    tracemalloc.start()
    cohort = cohorts[MILLION]()
    peak_bytes = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert len(cohort) == 20 and peak_bytes < 300_000 and cohort[-1][0] > 1000
    assert tiers is None or {tier for _, tier in cohort} <= tiers


def test_a_plan_for_a_million() -> None:
    """fedmpi plan: the same steps for a thousand and a million clients, with dynamic tiers."""
    found = []
    for count in (1000, MILLION):
        words = [f"clients.count={count}", "clients.per_round=20", "clients.tier_assignment=dynamic", "rounds=3"]
        words += ["partition.name=lottery", "partition.samples=1", "data.name=synthetic", "data.num_train=2000000"]
        config = load(None, ["model.name=mlp", *words, "data.shape=[1,4,4]"])
        plan = forecast(config, 5)  # torch loads what it needs here, untraced
        found.append(steps(lambda c=config: forecast(c, 5)))
        # Every client of this partition has two examples, however few of the two million that uses.
        assert plan.tiers[0].training_examples == 2 * config.train.local_epochs
    assert found[1] < 1.2 * found[0]
