"""Names the runs of a grid file: trials on validation data, then the final runs with the chosen trials."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from fedmpi.config import yaml_text
from fedmpi.config.address import file_and_cell
from fedmpi.config.yaml_text import leaves
from fedmpi.results.grid_file import Grid

Phase = Literal["tuning", "final"]
TrialNumbers = Mapping[tuple[str, str], int]
"""The number of the chosen trial, by setting and method."""
# None of these changes a result: a grid reads the records alone.
_QUIET = {"output": {"tensorboard": False, "report": False, "progress": "plain", "keep_checkpoints": 1}}
_VALIDATION_SHARE = 0.2
_Leaves = dict[tuple[Any, ...], Any]


@dataclass(frozen=True)
class GridRun:
    """One run. `trial` counts the method's trials from 0; it is None for a method without."""

    phase: Phase
    setting: str
    method: str
    trial: int | None
    seed: int

    @property
    def name(self) -> str:
        trial = f"-trial{self.trial}" if self.phase == "tuning" else ""
        return f"{self.phase}-{self.setting}-{self.method}{trial}"

    @property
    def folder_name(self) -> str:
        return f"{self.name}-seed{self.seed}"


def trials(grid: Grid) -> list[GridRun]:
    """Lists all tuning runs, seed by seed and method by method, so that an early look shows all methods."""
    if grid.content.tuning is None:
        return []
    return [
        GridRun("tuning", setting, method, trial, seed)
        for setting in grid.content.settings
        for seed in grid.content.tuning.seeds
        for method, section in grid.content.methods.items()
        for trial in range(len(section.trials))
    ]


def finals(grid: Grid, chosen: TrialNumbers) -> list[GridRun]:
    """Lists all final runs; those of the first seed first."""
    return [
        GridRun("final", setting, method, chosen.get((setting, method)), seed)
        for seed in grid.content.seeds
        for setting in grid.content.settings
        for method in grid.content.methods
    ]


def base_of(grid: Grid, setting: str, method: str) -> tuple[Path | None, dict[str, Any]]:
    """Returns the config that the runs of a method begin from in a setting, and what is set on it; None stands for the
    defaults of the schema.
    """
    content = grid.content
    own = content.methods[method]
    merged: _Leaves = {}
    for settings in (content.set, content.settings[setting], own.set):
        merged |= _leaves_of(settings)
    address = own.config or content.config
    return _beside(grid, address) if address else None, _nested(merged)


def overrides(grid: Grid, run: GridRun) -> tuple[str, ...]:
    """Returns what is set on the run's config: one override a section, in which later settings replace earlier ones."""
    merged = _leaves_of(base_of(grid, run.setting, run.method)[1])
    if run.trial is not None:
        values = grid.content.methods[run.method].trials[run.trial]
        merged |= {tuple(key.split(".")): value for key, value in values.items()}
    if run.phase == "tuning" and grid.content.tuning is not None:
        merged |= _leaves_of({"evaluation": {"validation_share": _VALIDATION_SHARE}})
        merged |= _leaves_of(grid.content.tuning.set)
    on = "validation" if run.phase == "tuning" else "test"
    merged |= _leaves_of({**_QUIET, "seed": run.seed, "evaluation": {"on": on}})
    return tuple(f"{key}={yaml_text.flow(value)}" for key, value in _nested(merged).items())


def _leaves_of(settings: Mapping[str, Any]) -> _Leaves:
    return dict(leaves(settings)) if settings else {}


def _nested(merged: _Leaves) -> dict[str, Any]:
    tree: dict[str, Any] = {}
    for path, value in merged.items():
        section = tree
        for key in path[:-1]:
            section = section.setdefault(key, {})
        section[path[-1]] = value
    return tree


def _beside(grid: Grid, address: str) -> Path:
    file, cell = file_and_cell(address)
    path = (grid.path.parent / file).resolve()
    return path if cell is None else path.with_name(f"{path.name}@{cell}")
