"""Chooses the best trial of each method in each setting, by its mean over the tuning seeds on validation data."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fedmpi.config import yaml_text
from fedmpi.results.archive import RunRecord
from fedmpi.results.grid_file import Grid
from fedmpi.results.grid_runs import GridRun, trials


@dataclass(frozen=True)
class Choice:
    """The chosen trial of a method in a setting."""

    trial: int
    values: Mapping[str, Any]
    """What the trial sets."""
    scores: Sequence[float | None]
    """The mean of each trial; None for one without a value in a seed."""


Choices = Mapping[tuple[str, str], Choice]
"""By setting and method."""


def choose(grid: Grid, runs: Mapping[GridRun, RunRecord]) -> Choices:
    """Chooses the best trial of each method, of equal ones the first in the file. A trial without a score is last.

    Returns nothing as long as a tuning run is missing, because then nothing may be chosen yet.
    """
    if any(run not in runs for run in trials(grid)):
        return {}
    choices: dict[tuple[str, str], Choice] = {}
    if grid.content.tuning is None:
        return choices
    measure = grid.content.measures[grid.content.tuning.measure]
    for setting in grid.content.settings:
        for name, method in grid.content.methods.items():
            scores = []
            for trial in range(len(method.trials)):
                own = (GridRun("tuning", setting, name, trial, seed) for seed in grid.content.tuning.seeds)
                scores.append(_score([runs[run].value(measure) for run in own]))
            ranks = [float("-inf") if score is None else measure.sign * score for score in scores]
            best = ranks.index(max(ranks))
            choices[setting, name] = Choice(best, method.trials[best], scores)
    return choices


def _score(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.fmean(known) if len(known) == len(values) else None


def at_edges(grid: Grid, choices: Choices) -> list[str]:
    """Returns a line for each chosen number that is the lowest or the highest of at least three that the method's grid
    has: a better one may lie beyond, where the option allows it.
    """
    settings_of: dict[str, list[str]] = {}
    for (setting, method), choice in choices.items():
        for key, value in choice.values.items():
            tried = {trial[key] for trial in grid.content.methods[method].trials if _is_number(trial.get(key))}
            if _is_number(value) and len(tried) > 2 and value in (min(tried), max(tried)):
                edge = "lowest" if value == min(tried) else "highest"
                line = f"{method} took the {edge} {key} that was tried, {yaml_text.flow(value)}"
                settings_of.setdefault(line, []).append(setting)
    return [f"in {', '.join(settings)}, {line}" for line, settings in settings_of.items()]


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)
