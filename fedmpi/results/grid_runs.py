"""Names the runs of a grid file: trials on validation data, then the final runs with the chosen trials."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from fedmpi.config import explain, yaml_text
from fedmpi.config.load import Override, load
from fedmpi.config.schema import Config
from fedmpi.config.yaml_text import leaves
from fedmpi.errors import ConfigError
from fedmpi.results import printed
from fedmpi.results.grid_file import Grid, read

Phase = Literal["tuning", "final"]
TrialNumbers = Mapping[tuple[str, str], int]
"""The number of the chosen trial, by setting and method."""
# None of these changes a result: a grid reads the records alone.
_QUIET = {"output": {"tensorboard": False, "report": False, "progress": "plain", "keep_checkpoints": 1}}
_VALIDATION_SHARE = 0.2
_RUN = re.compile(r"(.+\.ya?ml)@([\w-]+)/([\w-]+)", re.ASCII)
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
    content = grid.content
    runs = [f"{setting}/{method}" for setting in content.settings for method in content.methods]
    runs = printed.runs(content.printed) if content.printed else runs
    pairs = [(setting, method) for setting, method in (run.split("/") for run in runs)]
    return [GridRun("final", *pair, chosen.get(pair), seed) for seed in content.seeds for pair in pairs]


def base_of(grid: Grid, setting: str, method: str) -> tuple[Path | None, dict[str, Any]]:
    """Returns the config that the runs of a method begin from in a setting, and what is set on it; None stands for the
    defaults of the schema.
    """
    content = grid.content
    path: Path | None = None
    merged: _Leaves = {}
    if address := content.methods[method].config or content.config:
        path = grid.path.parent / address
        if run := _RUN.fullmatch(str(path)):
            path, below = base_of(read(Path(run[1])), run[2], run[3])
            merged = _leaves_of(below)
    for layer in content.layers(setting, method):
        _put(merged, _leaves_of(layer))
    return path and path.resolve(), _nested(merged)


def load_address(address: str | None, given: Sequence[Override] = (), *, observed: bool = False) -> Config:
    """Returns the config of a run of a grid file, `FILE.yaml@SETTING/METHOD`, or as `load` does that of a plain file.
    Raises `ConfigError`.
    """
    run = _RUN.fullmatch(address or "")
    if address is None or run is None:
        return load(address, given, observed=observed)
    grid = read(Path(run[1]))
    for name, section in ((run[2], grid.content.settings), (run[3], grid.content.methods)):
        if name not in section:
            known = f"Known: {explain.listed(section)}"
            raise ConfigError(address, f"no {explain.found(name)}.{explain.suggest(name, section)} {known}")
    path, below = base_of(grid, run[2], run[3])
    words = [f"{key}={yaml_text.flow(value)}" for key, value in below.items()]
    config = load(path, given, below=words, observed=observed)
    config._where = address
    return config


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


def _put(merged: _Leaves, layer: _Leaves) -> None:
    """Sets values on top of those that are there; a section's name empties the section first."""
    for path in layer:
        if len(path) > 1 and path[-1] == "name":
            for known in [known for known in merged if known[: len(path) - 1] == path[:-1]]:
                del merged[known]
    merged.update(layer)


def _nested(merged: _Leaves) -> dict[str, Any]:
    tree: dict[str, Any] = {}
    for path, value in merged.items():
        section = tree
        for key in path[:-1]:
            section = section.setdefault(key, {})
        section[path[-1]] = value
    return tree
