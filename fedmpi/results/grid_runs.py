"""Names the runs of a grid file: trials on validation data, then the final runs with the chosen trials."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from fedmpi.config import explain, yaml_text
from fedmpi.config.load import Override, Tree, load
from fedmpi.config.schema import Config
from fedmpi.config.yaml_text import Document
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


def base_of(grid: Grid, setting: str, method: str) -> tuple[Path | None, Tree]:
    """Returns the config that the runs of a method begin from in a setting, and what is set on it; None stands for the
    defaults of the schema.
    """
    content = grid.content
    path: Path | None = None
    tree = Tree(str(grid.path))
    if address := content.methods[method].config or content.config:
        path = grid.path.parent / address
        if run := _RUN.fullmatch(str(path)):
            path, tree = base_of(read(Path(run[1])), run[2], run[3])
    for layer in content.layers(setting, method):
        _put(tree, layer)
    return path and path.resolve(), tree


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
    config = load(path, given, below=_words(below), observed=observed)
    config._where = address
    return config


def overrides(grid: Grid, run: GridRun) -> tuple[str, ...]:
    """Returns what is set on the run's config: one override a section, in which later settings replace earlier ones."""
    _, tree = base_of(grid, run.setting, run.method)
    if run.trial is not None:
        values = grid.content.methods[run.method].trials[run.trial]
        tree.leaves |= {tuple(key.split(".")): value for key, value in values.items()}
    if run.phase == "tuning" and grid.content.tuning is not None:
        _put(tree, {"evaluation": {"validation_share": _VALIDATION_SHARE}})
        _put(tree, grid.content.tuning.set)
    on = "validation" if run.phase == "tuning" else "test"
    _put(tree, {**_QUIET, "seed": run.seed, "evaluation": {"on": on}})
    return tuple(_words(tree))


def _put(tree: Tree, settings: Mapping[str, Any]) -> None:
    tree.put(Tree(tree.where, Document(settings, {})))


def _words(tree: Tree) -> list[str]:
    return [f"{key}={yaml_text.flow(value)}" for key, value in tree.values.items()]
