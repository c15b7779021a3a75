"""Names the runs of a grid file: trials on validation data, then the final runs with the chosen trials."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from fedmpi.config import explain, yaml_text
from fedmpi.config.load import Override, load
from fedmpi.config.schema import Config
from fedmpi.config.yaml_text import Tree
from fedmpi.errors import ConfigError
from fedmpi.results import printed
from fedmpi.results.grid_file import Grid, read
from fedmpi.store.files import user_path

# None of these changes a result: a grid reads the records alone.
_QUIET = {"output": {"tensorboard": False, "report": False, "progress": "plain", "keep_checkpoints": 1}}
_RUN = re.compile(r"(.+\.ya?ml)@([\w-]+)/([\w-]+)", re.ASCII)


@dataclass(frozen=True)
class GridRun:
    """One run. `trial` counts the method's trials from 0; it is None for a method without."""

    phase: Literal["tuning", "final"]
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

    @property
    def key(self) -> tuple[str, str, int]:
        return self.setting, self.method, self.seed


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


def finals(grid: Grid, chosen: Mapping[tuple[str, str], int]) -> list[GridRun]:
    """Lists all final runs with the chosen trials by setting and method; those of the first seed first."""
    content = grid.content
    names = [f"{setting}/{method}" for setting in content.settings for method in content.methods]
    if content.printed:
        names = printed.runs(content.printed)
    runs = []
    for seed in content.seeds:
        for name in names:
            setting, _, method = name.partition("/")
            runs.append(GridRun("final", setting, method, chosen.get((setting, method)), seed))
    return runs


def base_of(grid: Grid, setting: str, method: str) -> tuple[Path | None, Tree]:
    """Returns the config that the runs of a method begin from in a setting, and what is set on it; None stands for the
    defaults of the schema.
    """
    content = grid.content
    path: Path | None = None
    tree = Tree({})
    if address := content.methods[method].config or content.config:
        path = grid.path.parent / user_path(address)
        if run := _RUN.fullmatch(str(path)):
            path, tree = base_of(read(Path(run[1])), run[2], run[3])
    for layer in content.layers(setting, method):
        own = {key: value for key, value in layer.items() if key != "extends"}
        tree = tree.with_top(Tree.of(own, str(grid.path)))
    return path and path.resolve(), tree


def load_address(address: str | None, given: Sequence[Override] = ()) -> Config:
    """Returns the config of a run of a grid file, `FILE.yaml@SETTING/METHOD`, or as `load` does that of a plain file.
    Raises `ConfigError`.
    """
    run = _RUN.fullmatch(address or "")
    if address is None or run is None:
        return load(address, given)
    grid = read(Path(run[1]))
    for name, section in ((run[2], grid.content.settings), (run[3], grid.content.methods)):
        if name not in section:
            known = f"Known: {explain.listed(section)}"
            raise ConfigError(address, f"no {yaml_text.found(name)}.{explain.suggest(name, section)} {known}")
    path, below = base_of(grid, run[2], run[3])
    config = load(path, given, below=below)
    config._where = address
    return config


def config_of(grid: Grid, run: GridRun, given: Sequence[Override] = (), budget: float = 1.0) -> Config:
    """Returns the config of a run, with the overrides on top and numbers of rounds times `budget`. Raises
    `ConfigError`.
    """
    path, tree = base_of(grid, run.setting, run.method)
    if run.trial is not None:
        values = grid.content.methods[run.method].trials[run.trial]
        settings = yaml_text.nested((tuple(key.split(".")), value) for key, value in values.items())
        tree = tree.with_top(Tree.of(settings, str(grid.path)))
    if run.phase == "tuning" and grid.content.tuning is not None:
        tree = tree.with_top(Tree.of(grid.content.tuning.set, str(grid.path)))
    on = "validation" if run.phase == "tuning" else "test"
    below = tree.with_top(Tree.of({**_QUIET, "seed": run.seed, "evaluation": {"on": on}}))
    config = load(path, given, below=below)
    return config if budget == 1 else load(path, [*given, *budget_words(budget, config)], below=below)


def budget_words(factor: float, config: Config) -> list[str]:
    """Returns the overrides that multiply a config's numbers of rounds by a factor. No number falls below 1."""
    rounds = max(1, round(factor * config.rounds))
    words = [f"rounds={rounds}"]
    milestones: list[int] = []
    for milestone in sorted(getattr(config.train.schedule, "milestones", ())):
        after_last = milestones[-1] + 1 if milestones else 1
        milestones.append(max(after_last, round(factor * milestone)))
    if milestones:
        words.append(f"train.schedule.milestones={milestones}")
    if factor < 1:  # a longer run needs no coarser look
        words.append(f"evaluation.every={max(1, round(factor * config.evaluation.every))}")
    for key, value in config.method:
        if key.endswith(("_round", "_rounds")) and isinstance(value, int) and value > 0:
            scaled = max(1, round(factor * value))
            if value < config.rounds:  # what happened within the run still does
                scaled = min(scaled, max(1, rounds - 1))
            words.append(f"method.{key}={scaled}")
    return words
