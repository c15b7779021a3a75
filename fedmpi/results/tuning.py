"""Which trial of each method is best in each setting, by its mean over the tuning seeds on validation data."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from fedmpi.config import yaml_text
from fedmpi.errors import RunDirError
from fedmpi.results.archive import Kept
from fedmpi.results.grid_file import Study
from fedmpi.results.grid_runs import Chosen, trials

Choices = Mapping[str, Mapping[str, Mapping[str, Any]]]
"""By setting and method: `trial` (its number), `values` that it sets, and `scores`, the mean of each trial."""


def choose(study: Study, runs: Sequence[Kept]) -> Choices:
    """The best trial of each; of equal ones the first in the file. A trial that has no value in a seed is last.

    Empty without tuning. Raises RunDirError if a tuning run is missing: then nothing may be chosen yet.
    """
    tuning = study.asked.tuning
    if tuning is None:
        return {}
    found = {run.wanted: run for run in runs}
    wanted = trials(study)
    if missing := [one for one in wanted if one not in found]:
        text = f"{len(missing)} tuning runs are not finished, the first of which is {missing[0].name}"
        raise RunDirError(str(study.path), f"{text}; the final runs begin after all of them")
    measure = study.asked.measures[tuning.measure]

    def score(setting: str, method: str, trial: int) -> float | None:
        own = [one for one in wanted if (one.setting, one.method, one.trial) == (setting, method, trial)]
        values = [found[one].value(measure) for one in own]
        known = [value for value in values if value is not None]
        return statistics.fmean(known) if len(known) == len(values) else None

    choices: dict[str, dict[str, Any]] = {}
    for setting in study.asked.settings:
        for method, compared in study.asked.methods.items():
            scores = [score(setting, method, trial) for trial in range(len(compared.trials))]
            best = max(
                range(len(scores)),
                key=lambda trial: float("-inf") if (s := scores[trial]) is None else measure.sign * s,
            )
            one = {"trial": best, "values": compared.trials[best], "scores": scores}
            choices.setdefault(setting, {})[method] = one
    return choices


def numbers(choices: Choices) -> Chosen:
    """The number of the chosen trial, by setting and method."""
    return {(setting, method): one["trial"] for setting, of in choices.items() for method, one in of.items()}


def at_edges(study: Study, choices: Choices) -> list[str]:
    """A line for each chosen number that is the lowest or the highest of at least three that the method's grid has: a
    better one may lie beyond, where the option allows it.
    """
    found: dict[str, list[str]] = {}
    for setting, methods in choices.items():
        for method, one in methods.items():
            for key, value in one["values"].items():
                tried = {trial[key] for trial in study.asked.methods[method].trials if _is_number(trial.get(key))}
                if _is_number(value) and len(tried) > 2 and value in (min(tried), max(tried)):
                    edge = "lowest" if value == min(tried) else "highest"
                    line = f"{method} took the {edge} {key} that was tried, {yaml_text.flow(value)}"
                    found.setdefault(line, []).append(setting)
    return [f"in {', '.join(settings)}, {line}" for line, settings in found.items()]


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def is_possible(study: Study, choices: Choices) -> bool:
    """Whether these are empty, or name a trial of each method in each setting."""
    try:
        chosen = numbers(choices)
    except (AttributeError, KeyError, TypeError):
        return False
    counts = {name: len(method.trials) for name, method in study.asked.methods.items()}
    wanted = {(setting, method) for setting in study.asked.settings for method in counts}
    return not chosen or (chosen.keys() == wanted and all(chosen[one] in range(counts[one[1]]) for one in wanted))
