"""Random combinations by `tests/torture/random_runs.py`, each in variants that must give the same bytes."""

from collections import Counter
from pathlib import Path

import pytest
from launched import mpirun
from torture.combinations import METHODS
from torture.random_runs import Outcome, run

SEED = 11
PARTS = 3
"""Of all methods once. A part takes about half a minute on two cores that have nothing else to do."""


def outcomes_of(numbers: range, folder: Path) -> list[Outcome]:
    """None of them may have a problem."""
    mpirun()
    outcomes = list(run(SEED, numbers, folder))
    problems = [f"{outcome.combination.number}: {line}" for outcome in outcomes for line in outcome.problems]
    assert not problems, "\n".join(
        [f"again: python -m tests.torture.random_runs --seed {SEED} --only NUMBER", *problems[:30]]
    )
    return outcomes


@pytest.mark.slow
@pytest.mark.parametrize("part", range(PARTS))
def test_combinations_of_all_methods_give_the_same_bytes(tmp_path: Path, part: int) -> None:
    outcomes = outcomes_of(range(part * len(METHODS), (part + 1) * len(METHODS)), tmp_path)
    assert {outcome.combination.method for outcome in outcomes} == set(METHODS)
    # What is to be attacked was: starts that stopped and that failed, and nearly no combination was refused.
    endings = sum((Counter(outcome.endings) for outcome in outcomes), Counter())
    assert endings["stopped"] >= len(METHODS) // 2 and endings["fault"] >= len(METHODS) // 2
    assert sum(outcome.ending == "refused" for outcome in outcomes) <= 2
