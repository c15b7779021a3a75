"""Answers: for each question and setting whether the runs confirm it, with the numbers that decide.

A question holds where its primary measure and all its conditions hold. Its p-value is the largest of those that are
tested: a claim of several parts needs no further correction (Berger, Technometrics 24, 1982). A condition that is
judged by its mean has no p-value; it only has to hold. Holm's correction is over all questions in all their settings,
as many as the file has, whether or not their runs are there.

A run that never reaches a target counts as if it had reached it one round after the end of the costlier run of its
pair, so as worse than any that does. Where neither does, the pair has no difference. This rule treats both methods of a
pair alike, so the sign-flip test stays exact.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from fedmpi.results.archive import Kept
from fedmpi.results.evidence import holm, interval, sign_flip_p, smallest_p
from fedmpi.results.grid_file import Condition, Question, Study

Verdict = Literal["confirmed", "not confirmed", "not decidable here", "descriptive"]


@dataclass(frozen=True)
class Part:
    """One measure of a question: `first` minus `second`, so that more is better, for each seed that has both."""

    condition: Condition
    seeds: tuple[int, ...]
    differences: tuple[float, ...]
    missing: tuple[str, ...]
    """Runs that are not finished, or have no such number."""
    unreached: tuple[str, ...] = ()
    """Runs that never reached the target."""

    @property
    def mean(self) -> float:
        return statistics.fmean(self.differences)

    @property
    def p(self) -> float:
        """Two-sided, of a mean difference of minus the margin."""
        return sign_flip_p([difference + self.condition.margin for difference in self.differences])

    @property
    def is_tested(self) -> bool:
        return self.condition.by == "test"

    @property
    def holds(self) -> bool:
        """Whether the mean difference is on the right side; whether that is chance is for `p` to say."""
        return self.mean + self.condition.margin > 0

    def interval(self, alpha: float) -> tuple[float, float, float]:
        return interval(self.differences, alpha)


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
        """Whether it belongs to the family for Holm's correction."""
        return bool(self.setting) and self.question.primary

    @property
    def unmet(self) -> tuple[Part, ...]:
        """The conditions that do not hold by their means."""
        return tuple(part for part in self.parts[1:] if not part.holds)

    @property
    def is_opposite(self) -> bool:
        """Whether the primary measure alone differs the other way round."""
        return bool(self.parts) and self.parts[0].mean < 0


def answers(study: Study, runs: Sequence[Kept]) -> list[Answer]:
    """All answers, in the order of the file."""
    asked = study.asked
    best = smallest_p(len(asked.seeds), asked.num_tests)
    found: list[Answer] = []
    for question in asked.questions:
        if question.undecidable:
            found.append(Answer(question, "", "not decidable here", question.undecidable))
        for setting in asked.settings_of(question):
            parts = tuple(_part(study, runs, question, setting, one) for one in question.parts)
            found.append(Answer(question, setting, "not confirmed", parts=parts))
    tested = [place for place, answer in enumerate(found) if answer.is_test]
    for place, p in zip(tested, holm([_p(found[place].parts) for place in tested]), strict=True):
        found[place] = replace(found[place], p=p)
    return [_decided(study, answer, best) if answer.setting else answer for answer in found]


def _p(parts: Sequence[Part]) -> float:
    """The p-value of the whole question; 1 where a part is missing or on the wrong side."""
    if any(part.missing or not part.holds for part in parts):
        return 1.0
    return max(part.p for part in parts if part.is_tested)


def _part(study: Study, runs: Sequence[Kept], question: Question, setting: str, one: Condition) -> Part:
    measure = study.asked.measures[one.measure]
    final = {(run.wanted.method, run.wanted.seed): run for run in runs if is_final(run, setting)}
    differences: dict[int, float] = {}
    missing: list[str] = []
    unreached: list[str] = []
    for seed in study.asked.seeds:
        names = [f"{method} seed {seed}" for method in (question.first, question.second)]
        pair = [final.get((method, seed)) for method in (question.first, question.second)]
        values = [None if run is None else run.value(measure) for run in pair]
        after = [None if run is None else run.one_round_more(measure) for run in pair]
        never = [value is None and more is not None for value, more in zip(values, after, strict=True)]
        cap = max((more for more in after if more is not None), default=None)
        first, second = (cap if late else value for late, value in zip(never, values, strict=True))
        if first is not None and second is not None:
            differences[seed] = measure.sign * (first - second)
            unreached += [name for name, late in zip(names, never, strict=True) if late]
        else:
            missing += [name for name, value in zip(names, (first, second), strict=True) if value is None]
    return Part(one, tuple(differences), tuple(differences.values()), tuple(missing), tuple(unreached))


def is_final(run: Kept, setting: str) -> bool:
    return run.wanted.phase == "final" and run.wanted.setting == setting


def _decided(study: Study, answer: Answer, best: float) -> Answer:
    """The answer with its verdict and the parts that have numbers; no test can have a p-value smaller than `best`."""
    alpha = study.asked.alpha
    missing = list(dict.fromkeys(name for part in answer.parts for name in part.missing))
    found = replace(answer, parts=tuple(part for part in answer.parts if part.differences))
    if missing:
        more = f" and {len(missing) - 3} more" if len(missing) > 3 else ""
        return replace(found, verdict="not decidable here", why=f"no value of {', '.join(missing[:3])}{more}")
    if not answer.is_test:
        return replace(found, verdict="descriptive")
    if best > alpha:
        why = f"descriptive: with {len(study.asked.seeds)} seeds no adjusted p-value can be below {best:.2g}"
        return replace(found, verdict="not decidable here", why=why)
    return replace(found, verdict="confirmed") if found.p <= alpha else found
