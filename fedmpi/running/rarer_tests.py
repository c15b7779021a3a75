"""How often a run tests, what that takes of it, and whether rarer tests would take much less."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from fedmpi.config.schema import Config
from fedmpi.rounds.state import reestimates

_LARGE_SHARE, _SMALL_SHARE = 1 / 3, 0.1
MANY_TESTS = "tests take"
"""How the line of `many_tests` begins."""


def count_tests(config: Config, every: int | None = None) -> tuple[int, int]:
    """How many rounds of a run are tested, and how many of those tests re-estimate BatchNorm's statistics; under
    another `evaluation.every`, if it is given.
    """
    every, rounds = every or config.evaluation.every, config.rounds
    num_tests = -(-rounds // every)
    changes = (1, *getattr(config.train.schedule, "milestones", ()))  # from one of these rounds on, or never
    first = min((number for number in changes if reestimates(config, number)), default=rounds + 1)
    return num_tests, num_tests - (first - 1) // every if first <= rounds else 0


@dataclass(frozen=True)
class CostOfTests:
    """What a round's test, its re-estimation, and all of a run but its tests take, in MACs or seconds; `always` is what
    tests take however many there are.
    """

    test: float
    restat: float
    rest: float
    always: float = 0.0

    def of(self, config: Config, every: int | None = None) -> float:
        """All tests of a run; `every` as in `count_tests`."""
        num_tests, num_restats = count_tests(config, every)
        return self.always + num_tests * self.test + num_restats * self.restat

    def share(self, config: Config, every: int | None = None) -> float:
        """The tests' part of the run."""
        taken = self.of(config, every)
        return taken / max(taken + self.rest, 1e-9)


def many_tests(config: Config, costs: CostOfTests, of: str = "compute") -> Iterator[str]:
    """A line where tests take a large share of `of` and rarer ones would take less: with the first `evaluation.every`
    that makes it small, or else with a single test.
    """
    if (share := costs.share(config)) <= _LARGE_SHARE:
        return
    rarer = range(config.evaluation.every + 1, config.rounds)
    every = next((each for each in rarer if costs.share(config, each) <= _SMALL_SHARE), config.rounds)
    now, then = (f"{100 * value:.0f} %" for value in (share, costs.share(config, every)))
    if every > config.evaluation.every and now != then:
        yield f"{MANY_TESTS} {now} of the {of}; evaluation.every={every} would make it {then}"
