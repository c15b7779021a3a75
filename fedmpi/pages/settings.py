"""Runs that differ by nothing but their seed, as one; and groups of such runs compared seed by seed."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from fedmpi.config import settings as config_settings
from fedmpi.pages.charts import Line, over_seeds
from fedmpi.pages.facts import Facts
from fedmpi.report.lineage import lineage

_BRANCH = "branch"
Setting = tuple[tuple[str, str], ...]
"""Pairs of a dotted key and its value as text."""
MOST_PAIRED = 5
"""Of more settings than this, not every pair is compared."""
LEAST_SEEDS = 3
"""With fewer, a difference has no interval."""


@dataclass(frozen=True)
class Group:
    """Runs of one setting, in the order of their seeds; `name` has what sets it apart from the other groups."""

    name: str
    runs: tuple[Facts, ...]

    @property
    def seeds(self) -> list[int]:
        return [int(run.config["seed"]) for run in self.runs]

    @property
    def tested(self) -> list[str]:
        return list(dict.fromkeys(name for run in self.runs for name in run.tested))

    def recorded(self, quantity: str) -> list[str]:
        """Those of what was tested that have this quantity: the clients' own nets have an accuracy and no loss."""
        return [name for name in self.tested if self.ends(name, quantity)]

    def line(self, tier: str, x: str, quantity: str, label: str) -> Line:
        """The mean over seeds by round (or by what was moved or computed up to it), and the range of the seeds. Seeds
        that have not tested this tier yet are left out. Of branches the mean of the rounds before, too."""
        runs = [run for run in self.runs if run.course(tier, quantity)[0]]
        places = [places_of(run, x) for run in runs]

        def mean_of(courses: Iterable[tuple[list[int], list[float]]]) -> Line:
            found = [
                (number, place[number], value)
                for place, course in zip(places, courses, strict=True)
                for number, value in zip(*course, strict=True)
            ]
            return over_seeds(label, found, len(runs))

        own = mean_of(run.course(tier, quantity) for run in runs)
        before = mean_of(run.course_before(tier, quantity) for run in runs)
        low, high = (own.low, own.high) if len(runs) > 1 else ([], [])
        return replace(own, low=low, high=high, x_before=before.x, y_before=before.y)

    def last(self, tier: str, quantity: str = "accuracy") -> dict[int, float]:
        """The value by seed, of the last round in which this tier was tested."""
        return {seed: value for seed, (_, value) in self.ends(tier, quantity).items()}

    def ends(self, tier: str, quantity: str = "accuracy") -> dict[int, tuple[int, float]]:
        """The last round in which this tier was tested, and its value there, by seed."""
        courses = {seed: run.course(tier, quantity) for seed, run in zip(self.seeds, self.runs, strict=True)}
        return {seed: (numbers[-1], values[-1]) for seed, (numbers, values) in courses.items() if values}


def places_of(run: Facts, x: str) -> dict[int, float]:
    """Where each round stands on the axis: its number, or the bytes or MACs of all rounds up to it, those included
    that a branch has of its parent: the net has cost them, too."""
    keys = {"rounds": (), "bytes": ("protocol_down_bytes", "protocol_up_bytes"), "macs": ("training_macs",)}[x]
    numbers, sums = replace(run, records=[*run.inherited, *run.records]).cumulated(*keys)
    return dict(zip(numbers, map(float, sums if keys else numbers), strict=True))


@dataclass(frozen=True)
class Difference:
    """The paired difference of two groups over the seeds that both have; `half_width` of its 95 % interval."""

    first: str
    second: str
    tier: str
    num_seeds: int
    mean: float
    rounds: tuple[tuple[int, ...], tuple[int, ...]]
    """The last tested rounds of the first's seeds and of the second's, in the order of the seeds."""
    half_width: float | None
    """Student's t, n - 1 degrees of freedom; None with fewer than `LEAST_SEEDS` seeds."""

    @property
    def is_of_equal_rounds(self) -> bool:
        """Whether each seed has the same last tested round in both."""
        return self.rounds[0] == self.rounds[1]


def differences(groups: Sequence[Group]) -> Iterator[Difference]:
    """The differences of pairs of groups, in each tier that both have: last accuracy of the first minus that of the
    second. Of more than `MOST_PAIRED` groups only pairs with the first.
    """
    for place, first in enumerate(groups[: 1 if len(groups) > MOST_PAIRED else None]):
        for second in groups[place + 1 :]:
            for tier in (name for name in first.tested if name in second.tested):
                ours, theirs = first.ends(tier), second.ends(tier)
                if seeds := sorted(ours.keys() & theirs.keys()):
                    mean, half_width = mean_and_half_width([ours[seed][1] - theirs[seed][1] for seed in seeds])
                    rounds = tuple(ours[seed][0] for seed in seeds), tuple(theirs[seed][0] for seed in seeds)
                    yield Difference(first.name, second.name, tier, len(seeds), mean, rounds, half_width)


def mean_and_half_width(values: Sequence[float]) -> tuple[float, float | None]:
    """The mean, and half of the width of its 95 % interval by Student's t; None for fewer than `LEAST_SEEDS` values."""
    mean = float(np.mean(values))
    if len(values) < LEAST_SEEDS:
        return mean, None
    from scipy.stats import t  # comes with scikit-learn

    deviation = float(np.std(values, ddof=1))
    return mean, float(t.ppf(0.975, len(values) - 1)) * deviation / math.sqrt(len(values))


def grouped(runs: Iterable[Facts]) -> list[Group]:
    """Groups in the order of their first runs; of several runs of one seed the one with the most rounds."""
    by_setting: dict[Setting, dict[int, Facts]] = {}
    for run in runs:
        by_seed = by_setting.setdefault(setting_of(run), {})
        seed = int(run.config["seed"])
        by_seed[seed] = max(by_seed.get(seed, run), run, key=lambda one: one.done)
    keys = _differing([{key: value for key, value in setting if key != _BRANCH} for setting in by_setting])
    return [
        Group(
            _name(dict(setting), keys) + _of_parents(by_seed.values()), tuple(by_seed[seed] for seed in sorted(by_seed))
        )
        for setting, by_seed in by_setting.items()
    ]


def setting_of(run: Facts) -> Setting:
    """What runs have in common that differ by nothing but their seed. A branch is no run of its settings alone: after
    which round it begins and what it changes there are a setting, too, and so are those of its parents.
    """
    found = tuple(settings(run.config).items())
    if (parent := run.parent) is None:
        return found
    branchings, before = [], run.inherited
    while parent is not None:
        changes = "; ".join(change for change in parent.changes if not change.startswith("seed:"))
        branchings.append(f"{parent.round}: {changes}")
        before = [record for record in before if record["round"] < parent.round]  # the last one says where it begins
        parent = lineage(before).parent
    return (*found, (_BRANCH, ", ".join(branchings)))


def _of_parents(runs: Iterable[Facts]) -> str:
    """`, branch of RUN@3`: whose rounds come before those of these runs; empty for runs that are no branches."""
    names = list(dict.fromkeys(run.parent.name for run in runs if run.parent))
    more = f" and {len(names) - 1} more" if len(names) > 1 else ""
    return f", branch of {names[0]}{more}" if names else ""


def settings(config: Mapping[str, Any]) -> dict[str, str]:
    """Every setting that decides results, by its dotted key."""
    return config_settings.settings(config)


def _differing(found: Sequence[Mapping[str, str]]) -> list[str]:
    """The keys that tell these settings apart; where names of sections differ, those alone say enough if they do."""
    keys = dict.fromkeys(key for setting in found for key in setting)
    differ = [key for key in keys if len({setting.get(key) for setting in found}) > 1]
    names = [key for key in differ if key.endswith(".name")]
    sections = [key for key in names if _is_of_section(key)]
    if sections and len({tuple(setting.get(key) for key in sections) for setting in found}) == len(found):
        return sections
    shared = [key for key in differ if all(key in setting for setting in found)]
    return [*names, *(key for key in (shared or differ) if key not in names)]


def _name(setting: Mapping[str, str], keys: Sequence[str]) -> str:
    """`fedhm`, `fedhm, train.lr 0.1`, or `method.server fedadam`."""
    given = [(key, setting[key]) for key in keys if key in setting]
    parts = [value if _is_of_section(key) else f"{key.removesuffix('.name')} {value}" for key, value in given]
    return ", ".join(parts) or setting["method.name"]


def _is_of_section(key: str) -> bool:
    """Whether the key is the name of a section, as `method.name`, which says what it is without its key."""
    return key.endswith(".name") and key.count(".") == 1
