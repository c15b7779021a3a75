"""Chooses each method's trial, and answers each question in each setting with the numbers that decide.

A question holds where its primary measure and all its conditions hold. Its p-value is the largest of those that are
tested: a claim of several parts needs no further correction (Berger, Technometrics 24, 1982). A condition that is
judged by its mean has no p-value; it only has to hold. Holm's correction is over all questions in all their settings,
as many as the file has, whether or not their runs are there.

A pair is two runs of one seed that the same commit, versions and platform made of the same examples. Two runs that were
not made alike are no pair, and their difference is in no mean, interval or test.

A run that never reaches a target counts as if it had reached it one round after the end of the costlier run of its
pair, so as worse than any that does. Where neither does, the pair has no difference. This rule treats both methods of a
pair alike, so the sign-flip test stays exact.
"""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import pandas as pd

from fedmpi.config.schema import Config
from fedmpi.results.archive import RunRecord
from fedmpi.results.evidence import ALPHA, holm, interval, sign_flip_p, smallest_p
from fedmpi.results.frame import one_round_more, value, values
from fedmpi.results.grid_file import Condition, Grid, GridRun, Measure, Question, trials

Verdict = Literal["confirmed", "not confirmed", "not decidable here", "descriptive"]
_MOST_NAMED = 3


@dataclass(frozen=True)
class Choice:
    """The chosen trial of a method in a setting."""

    trial: int
    scores: Sequence[float]
    """The mean of each trial over the tuning seeds; NaN for one without a value in a seed."""


Choices = Mapping[tuple[str, str], Choice]
"""By setting and method."""


def choose(grid: Grid, runs: Mapping[GridRun, RunRecord]) -> Choices:
    """Chooses the best trial of each method, of equal ones the first in the file. A trial without a score is last.

    Returns nothing as long as a tuning run is missing, because then nothing may be chosen yet.
    """
    if grid.tuning is None or any(run not in runs for run in trials(grid)):
        return {}
    measure = grid.measures[grid.tuning.measure]
    table = values([runs[run] for run in trials(grid)], {"score": measure}).astype({"score": float})
    means = table.groupby(["setting", "method", "trial"], sort=False)["score"].agg(statistics.fmean)
    choices = {}
    for (setting, method), scores in means.groupby(["setting", "method"], sort=False):
        best = (measure.sign * scores).fillna(float("-inf")).argmax()
        choices[setting, method] = Choice(int(best), scores.tolist())
    return choices


@dataclass(frozen=True)
class Part:
    """One measure of a question: `first` minus `second` of each pair, with the sign that makes more better."""

    condition: Condition
    measure: Measure
    differences: pd.Series
    """By seed, of the seeds that have a pair."""
    missing: Sequence[str]
    """Runs that are not finished, or have no such number."""
    num_unreached: int
    """How many runs never reached the target."""

    @property
    def mean(self) -> float:
        return statistics.fmean(self.differences)

    @property
    def p(self) -> float:
        """Returns the two-sided p-value of a mean difference of minus the margin."""
        return sign_flip_p((self.differences + self.condition.margin).tolist())

    @property
    def holds(self) -> bool:
        """Returns True if the mean difference is on the right side, by chance or not."""
        return self.mean + self.condition.margin > 0

    @property
    def interval(self) -> tuple[float, float, float]:
        return interval(self.differences.tolist())


@dataclass(frozen=True)
class Answer:
    """One question in one setting; `setting` is empty for a question that has no runs."""

    question: Question
    setting: str
    verdict: Verdict
    why: str = ""
    """Why it is not decidable, which condition is not met, or the p-value."""
    parts: Sequence[Part] = ()
    p: float = 1.0
    """After Holm's correction."""


def answer_all(grid: Grid, runs: Sequence[RunRecord]) -> list[Answer]:
    """Answers all questions, in the order of the file."""
    known = {(run.run.setting, run.run.method, run.run.seed): run for run in runs if run.run.phase == "final"}
    asked: list[tuple[Question, str, list[Part]]] = []
    for question in grid.questions:
        for setting in [""] if question.undecidable else grid.settings:
            conditions = question.parts if setting else ()
            asked.append((question, setting, [_part(grid, known, question, setting, each) for each in conditions]))
    adjusted = iter(holm([_p(parts) for question, setting, parts in asked if setting and question.primary]))
    return [
        _answer(grid, question, setting, parts, next(adjusted) if setting and question.primary else None)
        for question, setting, parts in asked
    ]


def _part(
    grid: Grid, known: Mapping[tuple[str, str, int], RunRecord], question: Question, setting: str, condition: Condition
) -> Part:
    measure = grid.measures[condition.measure]
    methods = [question.first, question.second]
    numbers = pd.DataFrame(index=grid.seeds, columns=methods, dtype=float)
    ends = numbers.copy()
    for seed in grid.seeds:
        pair = [run for method in methods if (run := known.get((setting, method, seed)))]
        if any(run.computed_by != pair[0].computed_by for run in pair):
            numbers = numbers.drop(index=seed)
        else:
            for run in pair:
                numbers.loc[seed, run.run.method] = value(run, measure)
                ends.loc[seed, run.run.method] = one_round_more(run, measure)
    # Where it never reaches the target, a run counts as a round more than the costlier one of its pair.
    costlier = ends.where(ends.isna(), ends.max(axis=1), axis=0)
    counted = numbers.fillna(costlier)
    is_missing = counted.isna().stack()
    missing = [f"{method} seed {seed}" for seed, method in is_missing[is_missing].index]
    pairs = counted.dropna()
    num_unreached = int(numbers.loc[pairs.index].isna().sum().sum())
    differences = measure.sign * (pairs[question.first] - pairs[question.second])
    return Part(condition, measure, differences, missing, num_unreached)


def _p(parts: Sequence[Part]) -> float:
    """Returns the p-value of the whole question; 1 where a part is missing or on the wrong side."""
    if any(part.missing or part.differences.empty or not part.holds for part in parts):
        return 1.0
    return max(part.p for part in parts if part.condition.by == "test")


def _answer(grid: Grid, question: Question, setting: str, parts: Sequence[Part], p: float | None) -> Answer:
    """Returns the answer and the parts that have numbers; `p` is None without a test."""
    if not setting:
        return Answer(question, "", "not decidable here", question.undecidable)
    missing = list(dict.fromkeys(name for part in parts for name in part.missing))
    num_pairs = min(len(part.differences) for part in parts)
    best = smallest_p(num_pairs, grid.num_tests)
    unmet = [part.condition.measure for part in parts[1:] if len(part.differences) and not part.holds]
    verdict: Verdict = "not decidable here"
    why = ""
    if missing:
        more = f" and {len(missing) - _MOST_NAMED} more" if len(missing) > _MOST_NAMED else ""
        why = f"no value of {', '.join(missing[:_MOST_NAMED])}{more}"
    elif not num_pairs:
        why = "no seed has a pair of runs made alike"
    elif p is None:
        verdict = "descriptive"
    elif best > ALPHA:
        why = f"descriptive: with {num_pairs} seeds no adjusted p-value can be below {best:.2g}"
    else:
        verdict = "confirmed" if p <= ALPHA else "not confirmed"
        why = f"condition not met: {', '.join(unmet)}" if unmet else f"p = {p:.2g} after Holm's correction"
    with_numbers = [part for part in parts if len(part.differences)]
    return Answer(question, setting, verdict, why, with_numbers, 1.0 if p is None else p)


@dataclass(frozen=True)
class Results:
    """All that a report is made from."""

    grid: Grid
    choices: Choices
    runs: Sequence[RunRecord]
    answers: Sequence[Answer]
    configs: Mapping[str, Mapping[str, Config]]
    """A config of each method, by setting."""
    changed: Sequence[str] = ()
    """What the command line sets on all runs."""

    @cached_property
    def values(self) -> pd.DataFrame:
        """Returns a line for each run, with a column for each measure (`frame.values`)."""
        return values(self.runs, self.grid.measures)

    def finals(self, setting: str, method: str = "") -> list[RunRecord]:
        """Returns the final runs of a setting, of one method or of all, in the order of their seeds."""
        of_setting = [run for run in self.runs if (run.run.phase, run.run.setting) == ("final", setting)]
        return sorted((run for run in of_setting if method in ("", run.run.method)), key=lambda run: run.run.seed)
