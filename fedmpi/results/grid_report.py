"""The report of a study in Markdown: answers first, then what they rest on."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby

from fedmpi import methods
from fedmpi.config import yaml_text
from fedmpi.errors import UserError, counted
from fedmpi.report import table_text
from fedmpi.results.answers import Answer, Part, is_final
from fedmpi.results.archive import Kept
from fedmpi.results.evidence import smallest_p
from fedmpi.results.grid_file import Measure, Study
from fedmpi.results.grid_runs import Wanted, finals
from fedmpi.results.tuning import Choices, at_edges
from fedmpi.running import start
from fedmpi.running.remarks import remarks
from fedmpi.store.manifest import DIRTY
from fedmpi.store.units import duration, percent, seconds, si
from fedmpi.studies.launch import Job
from fedmpi.studies.runs import mean_std


def report(
    study: Study,
    choices: Choices,
    runs: Sequence[Kept],
    answers: Sequence[Answer],
    pictures: Sequence[str],
    warned: Sequence[str] = (),
) -> str:
    """The whole text; `pictures` are files beside it, `warned` is what `warnings` gives."""
    lines = [f"# {study.asked.title}", "", *_left(study, runs), *_answers(study, answers), ""]
    lines += ["## What was run", "", *_runs(study, choices, runs)]
    lines += [f"- careful: {line}" for line in warned]
    for setting in study.asked.settings:
        lines += ["", f"## Setting {setting}", "", *_methods(study, setting, choices, runs)]
        if differences := list(_differences(study, [answer for answer in answers if answer.setting == setting])):
            lines += ["", *differences]
        lines += [line for name in pictures if name.startswith(f"{setting}-") for line in ("", f"![{name}]({name})")]
    if choices:
        lines += ["", "## Choice on validation data", "", *_choices(study, choices)]
    return "\n".join([*lines, ""])


def sentence(study: Study, answer: Answer) -> str:
    where = f" In {answer.setting}:" if answer.setting and len(study.asked.settings) > 1 else ""
    numbers = "; ".join(_said(study, part) for part in answer.parts)
    head = f"{answer.question.ask}{where} **{answer.verdict}**"
    if answer.why:
        return f"{head} ({answer.why}){f': {numbers}' if numbers else ''}."
    if not answer.is_test:
        return f"{head}: {numbers}."
    opposite = "; the difference is the other way round" * answer.is_opposite
    if answer.unmet:
        unmet = ", ".join(_missed(study, part) for part in answer.unmet)
        return f"{head}: {numbers} (condition not met: {unmet}{opposite})."
    return f"{head}: {numbers} (p = {answer.p:.2g} after Holm's correction{opposite})."


def _missed(study: Study, part: Part) -> str:
    """By how much a condition fails; it has to be above minus its margin."""
    measure = study.asked.measures[part.condition.measure]
    found, allowed = (_signed(measure, number) for number in (part.mean, -part.condition.margin or 0.0))
    return f"{part.condition.measure} is {found}, allowed is above {allowed}"


def _said(study: Study, part: Part) -> str:
    measure = study.asked.measures[part.condition.measure]
    low, high, confidence = part.interval(study.asked.alpha)
    margin = part.condition.margin
    allowed = f", allowed {_signed(measure, -margin)}" if margin else ""
    judged = "" if part.is_tested else ", judged by its mean: an estimate, not a test"
    never = f", {counted(len(part.unreached), 'run')} never reached the target" if part.unreached else ""
    ends = f"{_signed(measure, low, unit=False)} to {_signed(measure, high, unit=False)}"
    number = f"{part.condition.measure} {_signed(measure, part.mean)}"
    return f"{number} ({100 * confidence:.1f} % interval {ends}{allowed}{judged}{never})"


def _left(study: Study, runs: Sequence[Kept]) -> Iterator[str]:
    """Said where a study is still under way."""
    left = len(finals(study, {})) - sum(run.wanted.phase == "final" for run in runs)
    if left:
        yield f"**This study is not finished: {left} final runs are missing.** Questions without their runs are open."
        yield ""


def _answers(study: Study, answers: Sequence[Answer]) -> Iterator[str]:
    num_tests = study.asked.num_tests
    best = smallest_p(len(study.asked.seeds), num_tests)
    yield from (f"- {sentence(study, answer)}" for answer in answers)
    yield ""
    if num_tests:
        yield (
            f"Differences are paired by seed and positive where the first method is better. Tests are exact sign-flip "
            f"permutation tests, two-sided, over {len(study.asked.seeds)} seeds, with Holm's correction over "
            f"{counted(num_tests, 'test')}; the smallest p-value that one can have is {best:.2g}, the level "
            f"{study.asked.alpha:g}. Intervals are those of the same test, not corrected."
        )


def _runs(study: Study, choices: Choices, runs: Sequence[Kept]) -> Iterator[str]:
    final = [run for run in runs if run.wanted.phase == "final"]
    asked = len(finals(study, {}))
    commits = sorted({run.note.commit or "none (no git there)" for run in runs})
    code = sorted({str(run.made_with.get("git")) for run in runs})
    spent_s = sum(run.seconds.get("wall", 0.0) * len(run.rounds) for run in runs)
    yield f"- file: `{study.path.name}`, SHA-256 `{study.digest}`, commit {', '.join(commits) or '-'}"
    yield f"- {len(final)} of {asked} final runs, seeds {', '.join(map(str, study.asked.seeds))}"
    yield f"- {len(runs) - len(final)} tuning runs on validation data"
    yield f"- code: commit {', '.join(code) or '-'}; all rounds took {duration(spent_s)} of one core"
    for text in dict.fromkeys(_versions(run) for run in runs):
        yield f"- {text}"
    if changed := sum(str(run.made_with.get("git")).endswith(DIRTY) for run in runs):
        yield f"- careful: {counted(changed, 'run')} began in a checkout with changes that were not committed"
    yield from (f"- {line}" for line in unlike(study, runs))
    yield from (f"- careful: {line}" for line in at_edges(study, choices))


def _versions(run: Kept) -> str:
    versions = run.made_with.get("versions") or {}
    return f"{', '.join(f'{name} {number}' for name, number in versions.items())}; {run.made_with.get('platform')}"


def unlike(study: Study, runs: Sequence[Kept]) -> list[str]:
    """What runs of one seed and setting do not share, a line each; one line where they share all.

    A run's digest of its cohorts is that of all its rounds, so it is held against those of as many rounds.
    """
    lines = []
    for setting in study.asked.settings:
        own = sorted((run for run in runs if is_final(run, setting)), key=lambda run: run.wanted.seed)
        for key, what in (("data", "examples"), ("partition", "partition"), ("cohorts", "cohorts"),
                          ("initial", "initial values of the model")):  # fmt: skip
            odd: dict[str, set[str]] = {}
            for _, same in groupby(own, key=lambda run: run.wanted.seed):
                firsts: dict[int, Kept] = {}
                for run in same:
                    first = firsts.setdefault(len(run.rounds) if key == "cohorts" else 0, run)
                    if getattr(run, key) != getattr(first, key):
                        odd.setdefault(first.wanted.method, set()).add(run.wanted.method)
            lines += [
                f"careful: in {setting}, {', '.join(sorted(others))} had other {what} than {first}"
                for first, others in odd.items()
            ]
        lines += _unlike_lengths(setting, own)
    nothing = "for each seed and setting all methods had the same examples, partition, cohorts and initial values"
    return lines or [nothing]


def warnings(study: Study, jobs: Iterable[tuple[Wanted, Job]]) -> list[str]:
    """What runs of these configs warn of before they begin, once for each method; nothing of a config whose data are
    needed for it and are not here.
    """
    settings: dict[tuple[str, str], list[str]] = {}
    for wanted, job in jobs:
        with contextlib.suppress(UserError):
            info = job.config.data.info()
            method = methods.create(start.method_context(job.config, info))
            for line in remarks(job.config, info, method, num_workers=1, per_round=job.config.clients.per_round):
                settings.setdefault((wanted.method, line), []).append(wanted.setting)
    found = []
    for (name, line), own in settings.items():
        where = "" if len(own) == len(study.asked.settings) else f"in {', '.join(own)}, "
        found.append(f"{where}{name}: {line}")
    return found


def _unlike_lengths(setting: str, runs: Sequence[Kept]) -> list[str]:
    lengths: dict[int, set[str]] = {}
    for run in runs:
        lengths.setdefault(len(run.rounds), set()).add(run.wanted.method)
    if len(lengths) < 2:
        return []
    said = "; ".join(f"{', '.join(sorted(methods))} {length}" for length, methods in sorted(lengths.items()))
    return [f"careful: in {setting}, the methods had unlike numbers of rounds, by their configs: {said}"]


def _methods(study: Study, setting: str, choices: Choices, runs: Sequence[Kept]) -> Iterator[str]:
    """A line for each method: what was chosen, and every measure's mean and sample standard deviation over seeds."""
    heads = ["method", "chosen", "seeds", *study.asked.measures]
    lines = []
    for method in study.asked.methods:
        own = [run for run in runs if is_final(run, setting) and run.wanted.method == method]
        chosen = choices.get(setting, {}).get(method, {}).get("values", {})
        cells = [_mean(measure, [run.value(measure) for run in own]) for measure in study.asked.measures.values()]
        said = ", ".join(f"{key} {yaml_text.flow(value)}" for key, value in chosen.items()) or "-"
        lines.append((method, said, str(len(own)), *cells))
    yield from table_text.markdown_lines(heads, lines, 2)


def _mean(measure: Measure, values: Sequence[float | None]) -> str:
    known = [value for value in values if value is not None]
    mean, std = mean_std(known)
    of = f" ({len(known)} of {len(values)})" if len(known) < len(values) else ""
    if mean is None:
        return "-"
    if std is None:
        return _shown(measure, mean) + of
    return f"{_shown(measure, mean).removesuffix(' %').removesuffix(' s')} ± {_shown(measure, std)}{of}"


def _shown(measure: Measure, number: float) -> str:
    return percent(number) if measure.is_share else seconds(number) if measure.is_seconds else si(number)


def _differences(study: Study, answers: Sequence[Answer]) -> Iterator[str]:
    heads = ("first", "second", "measure", "difference", "sd", "interval", "p", "differences by seed")
    lines = []
    for answer in answers:
        for part in answer.parts:
            measure = study.asked.measures[part.condition.measure]
            low, high, confidence = part.interval(study.asked.alpha)
            deviation = mean_std(part.differences)[1]
            by_seed = ", ".join(_signed(measure, each, unit=False) for each in part.differences)
            lines.append((
                answer.question.first, answer.question.second, part.condition.measure, _signed(measure, part.mean),
                "-" if deviation is None else _signed(measure, deviation, unit=False).lstrip("+"),
                f"{_signed(measure, low, unit=False)} to {_signed(measure, high)} ({100 * confidence:.1f} %)",
                f"{part.p:.3g}" if part.is_tested else "-", by_seed,
            ))  # fmt: skip
    if lines:
        yield from table_text.markdown_lines(heads, lines, 3)
        yield ""
        yield "p is that of the row alone, against minus its margin and before Holm's correction."
        if any(part.unreached for answer in answers for part in answer.parts):
            yield (
                "A run that never reached the target counts as if it had a round after the end of the costlier run of "
                "its pair."
            )


def _choices(study: Study, choices: Choices) -> Iterator[str]:
    assert study.asked.tuning is not None
    tuning = study.asked.tuning
    measure = study.asked.measures[tuning.measure]
    seeds = ", ".join(map(str, tuning.seeds))
    yield f"{tuning.measure} on validation data, mean over seeds {seeds}; the chosen trial is bold."
    yield ""
    lines = []
    for setting, of in choices.items():
        for method, one in of.items():
            for number, score in enumerate(one["scores"]):
                values = study.asked.methods[method].trials[number]
                said = ", ".join(f"{key} {yaml_text.flow(value)}" for key, value in values.items())
                shown = "-" if score is None else _shown(measure, score)
                mark = "**" * (number == one["trial"])
                lines.append((setting, method, f"{mark}{said}{mark}", f"{mark}{shown}{mark}"))
    yield from table_text.markdown_lines(("setting", "method", "trial", "score"), lines, 3)


def _signed(measure: Measure, number: float, *, unit: bool = True) -> str:
    if measure.is_share:
        return f"{100 * number:+.2f}{' points' * unit}"
    text = _shown(measure, abs(number)).removesuffix(" s" * (not unit))
    return f"{'-' if number < 0 else '+'}{text}"


def by_seed(study: Study, runs: Sequence[Kept]) -> str:
    """Every run's numbers as CSV, exact."""
    return table_text.comma_separated([
        {
            "phase": run.wanted.phase, "setting": run.wanted.setting, "method": run.wanted.method,
            "trial": run.wanted.trial, "seed": run.wanted.seed,
            **{name: run.value(measure) for name, measure in study.asked.measures.items()},
        }
        for run in runs
    ])  # fmt: skip
