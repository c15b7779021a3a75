"""Answers each question in each setting: whether the runs confirm it, with the numbers that decide.

A question holds where its primary measure and all its conditions hold. Its p-value is the largest of those that are
tested: a claim of several parts needs no further correction (Berger, Technometrics 24, 1982). A condition that is
judged by its mean has no p-value; it only has to hold. Holm's correction is over all questions in all their settings,
as many as the file has, whether or not their runs are there.

A pair is two runs of one seed that were made by the same commit, versions and platform. Two runs that were not are no
pair, and their difference is in no mean, interval or test.

A run that never reaches a target counts as if it had reached it one round after the end of the costlier run of its
pair, so as worse than any that does. Where neither does, the pair has no difference. This rule treats both methods of a
pair alike, so the sign-flip test stays exact.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Literal

from fedmpi.results.archive import RunRecord
from fedmpi.results.evidence import ALPHA, holm, interval, sign_flip_p, smallest_p
from fedmpi.results.grid_file import Condition, Grid, Measure, Question

Verdict = Literal["confirmed", "not confirmed", "not decidable here", "descriptive"]


@dataclass(frozen=True)
class Part:
    """One measure of a question: `first` minus `second` of each pair, with the sign that makes more better."""

    condition: Condition
    differences: Mapping[int, float]
    """By seed."""
    missing: tuple[str, ...] = ()
    """Runs that are not finished, or have no such number."""
    unreached: tuple[str, ...] = ()
    """Runs that never reached the target."""
    mixed: tuple[int, ...] = ()
    """Seeds whose two runs were made by different code, versions or platforms, so that they are no pair."""

    @property
    def mean(self) -> float:
        return statistics.fmean(self.differences.values())

    @property
    def p(self) -> float:
        """Returns the two-sided p-value of a mean difference of minus the margin."""
        return sign_flip_p([difference + self.condition.margin for difference in self.differences.values()])

    @property
    def is_tested(self) -> bool:
        return self.condition.by == "test"

    @property
    def holds(self) -> bool:
        """Says whether the mean difference is on the right side; whether that is chance is for `p` to say."""
        return self.mean + self.condition.margin > 0

    @property
    def interval(self) -> tuple[float, float, float]:
        return interval(list(self.differences.values()))


@dataclass(frozen=True)
class Answer:
    """One question in one setting; `setting` is empty for a question that has no runs."""

    question: Question
    setting: str
    verdict: Verdict
    why: str = ""
    """Why it is not decidable."""
    parts: tuple[Part, ...] = ()
    p: float = 1.0
    """After Holm's correction."""

    @property
    def is_test(self) -> bool:
        """Says whether it belongs to the family for Holm's correction."""
        return bool(self.setting) and self.question.primary

    @property
    def unmet(self) -> tuple[Part, ...]:
        """Returns the conditions that do not hold by their means."""
        return tuple(part for part in self.parts[1:] if not part.holds)

    @property
    def is_opposite(self) -> bool:
        """Says whether the primary measure alone differs the other way round."""
        return bool(self.parts) and self.parts[0].mean < 0


def answer_all(grid: Grid, runs: Sequence[RunRecord]) -> list[Answer]:
    """Answers all questions, in the order of the file."""
    content = grid.content
    answers: list[Answer] = []
    for question in content.questions:
        if question.undecidable:
            answers.append(Answer(question, "", "not decidable here", question.undecidable))
        for setting in content.settings_of(question):
            parts = tuple(_part(grid, runs, question, setting, condition) for condition in question.parts)
            answers.append(Answer(question, setting, "not confirmed", parts=parts))
    places = [place for place, answer in enumerate(answers) if answer.is_test]
    for place, p in zip(places, holm([_p(answers[place].parts) for place in places]), strict=True):
        answers[place] = replace(answers[place], p=p)
    return [_decide(grid, answer) if answer.setting else answer for answer in answers]


def _p(parts: Sequence[Part]) -> float:
    """Returns the p-value of the whole question; 1 where a part is missing or on the wrong side."""
    if any(part.missing or not part.differences or not part.holds for part in parts):
        return 1.0
    return max(part.p for part in parts if part.is_tested)


def _part(grid: Grid, runs: Sequence[RunRecord], question: Question, setting: str, condition: Condition) -> Part:
    measure = grid.content.measures[condition.measure]
    final = {(run.run.method, run.run.seed): run for run in runs if is_final(run, setting)}
    differences: dict[int, float] = {}
    missing: list[str] = []
    unreached: list[str] = []
    mixed: list[int] = []
    for seed in grid.content.seeds:
        pair = [final.get((method, seed)) for method in (question.first, question.second)]
        if pair[0] is not None and pair[1] is not None and pair[0].computed_by != pair[1].computed_by:
            mixed.append(seed)
            continue
        values, late = _values(pair, measure)
        if values[0] is not None and values[1] is not None:
            differences[seed] = measure.sign * (values[0] - values[1])
        for method, value, is_late in zip((question.first, question.second), values, late, strict=True):
            if value is None:
                missing.append(f"{method} seed {seed}")
            elif is_late and seed in differences:
                unreached.append(f"{method} seed {seed}")
    return Part(condition, differences, tuple(missing), tuple(unreached), tuple(mixed))


def _values(pair: Sequence[RunRecord | None], measure: Measure) -> tuple[list[float | None], list[bool]]:
    """Returns the numbers of a pair, and whether each run never reached the target."""
    values = [None if run is None else run.value(measure) for run in pair]
    after = [None if run is None else run.one_round_more(measure) for run in pair]
    late = [value is None and more is not None for value, more in zip(values, after, strict=True)]
    cap = max((more for more in after if more is not None), default=None)
    return [cap if is_late else value for value, is_late in zip(values, late, strict=True)], late


def is_final(run: RunRecord, setting: str) -> bool:
    return run.run.phase == "final" and run.run.setting == setting


def by_seed(runs: Sequence[RunRecord], setting: str) -> Iterator[tuple[int, Iterator[RunRecord]]]:
    """Yields each seed of a setting with its final runs."""
    own = sorted((run for run in runs if is_final(run, setting)), key=lambda run: run.run.seed)
    return groupby(own, key=lambda run: run.run.seed)


def _decide(grid: Grid, answer: Answer) -> Answer:
    """Returns the answer with its verdict and the parts that have numbers."""
    missing = list(dict.fromkeys(name for part in answer.parts for name in part.missing))
    shown = replace(answer, parts=tuple(part for part in answer.parts if part.differences))
    if missing:
        more = f" and {len(missing) - 3} more" if len(missing) > 3 else ""
        return replace(shown, verdict="not decidable here", why=f"no value of {', '.join(missing[:3])}{more}")
    num_pairs = min((len(part.differences) for part in answer.parts), default=0)
    if not num_pairs:
        return replace(shown, verdict="not decidable here", why="no seed has a pair of runs made alike")
    if not answer.is_test:
        return replace(shown, verdict="descriptive")
    best = smallest_p(num_pairs, grid.content.num_tests)
    if best > ALPHA:
        why = f"descriptive: with {num_pairs} seeds no adjusted p-value can be below {best:.2g}"
        return replace(shown, verdict="not decidable here", why=why)
    return replace(shown, verdict="confirmed") if shown.p <= ALPHA else shown


def mixed_seeds(grid: Grid, runs: Sequence[RunRecord]) -> Iterator[tuple[str, int, list[list[RunRecord]]]]:
    """Yields (setting, seed, groups of runs made alike) of each seed whose runs were not all made alike."""
    for setting in grid.content.settings:
        for seed, of_seed in by_seed(runs, setting):
            groups: dict[str, list[RunRecord]] = {}
            for run in of_seed:
                groups.setdefault(json.dumps(run.computed_by, sort_keys=True), []).append(run)
            if len(groups) > 1:
                yield setting, seed, list(groups.values())
