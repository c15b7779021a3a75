"""The runs that a study asks for: trials on validation data, then the final runs with what was chosen."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from fedmpi.config import yaml_text
from fedmpi.config.address import file_and_cell
from fedmpi.config.load import load
from fedmpi.config.yaml_text import leaves
from fedmpi.errors import ConfigError
from fedmpi.results.grid_file import Study
from fedmpi.store.files import make_folder, read_whole, write_text
from fedmpi.store.run_dir import RunDir
from fedmpi.studies.launch import Job, planned
from fedmpi.studies.runs import Run

Phase = Literal["tuning", "final"]
Chosen = Mapping[tuple[str, str], int]
"""By setting and method, the number of the trial that was chosen."""
# None of these changes a result: a study reads the records alone.
_QUIET = {"output": {"tensorboard": False, "report": False, "progress": "plain", "keep_checkpoints": 1}}
_DEFAULTS = "defaults.yaml"
_Leaves = dict[tuple[Any, ...], Any]


@dataclass(frozen=True)
class Wanted:
    """One run. `trial` counts the method's trials from 0; it is None for a method without."""

    phase: Phase
    setting: str
    method: str
    trial: int | None
    seed: int

    @property
    def name(self) -> str:
        """The name of its folder, without the seed."""
        trial = f"-trial{self.trial}" if self.phase == "tuning" else ""
        return f"{self.phase}-{self.setting}-{self.method}{trial}"


def trials(study: Study) -> list[Wanted]:
    """All tuning runs, seed by seed and method by method, so that an early look shows all methods."""
    if study.asked.tuning is None:
        return []
    return [
        Wanted("tuning", setting, method, trial, seed)
        for setting in study.asked.settings
        for seed in study.asked.tuning.seeds
        for method, compared in study.asked.methods.items()
        for trial in range(len(compared.trials))
    ]


def finals(study: Study, chosen: Chosen) -> list[Wanted]:
    """All final runs; those of a first seed first."""
    return [
        Wanted("final", setting, method, chosen.get((setting, method)), seed)
        for seed in study.asked.seeds
        for setting in study.asked.settings
        for method in study.asked.methods
    ]


def overrides(study: Study, wanted: Wanted) -> tuple[str, ...]:
    """What is set on the config: one override for each section, in which later settings replace earlier ones."""
    asked = study.asked
    method, tuning = asked.methods[wanted.method], asked.tuning
    merged: _Leaves = {}
    for settings in (asked.set, asked.settings[wanted.setting], method.set):
        merged |= dict(leaves(settings)) if settings else {}
    if wanted.trial is not None:
        merged |= {tuple(key.split(".")): value for key, value in method.trials[wanted.trial].items()}
    own: dict[str, Any] = {**_QUIET, "seed": wanted.seed, "evaluation": {"on": "test"}}
    if wanted.phase == "tuning" and tuning is not None:
        merged |= dict(leaves(tuning.set)) if tuning.set else {}
        own["evaluation"] = {"on": "validation", "validation_share": tuning.validation_share}
    return tuple(f"{key}={yaml_text.flow(value)}" for key, value in _nested(merged | dict(leaves(own))).items())


def _nested(merged: _Leaves) -> dict[str, Any]:
    tree: dict[str, Any] = {}
    for path, value in merged.items():
        section = tree
        for key in path[:-1]:
            section = section.setdefault(key, {})
        section[path[-1]] = value
    return tree


def run_of(wanted: Wanted, out: Path) -> Run:
    return Run(wanted.name, wanted.seed, RunDir(out / f"{wanted.name}-seed{wanted.seed}"))


def jobs_of(
    study: Study, all_wanted: Sequence[Wanted], out: Path, data_dir: Path | None = None
) -> Iterator[tuple[Wanted, Job]]:
    """Each run with its config; `data_dir` is where its data are, if not where the config says. Raises `UserError`: a
    setting that no config can have, or another run in its folder.
    """
    for wanted in all_wanted:
        address = study.asked.methods[wanted.method].config or study.asked.config
        path = _beside(study, address) if address else _defaults(out)
        try:
            said = overrides(study, wanted)
            if data_dir is not None and hasattr(load(path, said).data, "root"):
                said = (*said, f"data.root={json.dumps(str(data_dir))}")
            yield wanted, planned(run_of(wanted, out), path, said)
        except ConfigError as error:
            where = f"{study.path}, method {wanted.method} in setting {wanted.setting}"
            raise ConfigError(where, *error.problems) from None


def _beside(study: Study, address: str) -> Path:
    file, cell = file_and_cell(address)
    path = (study.path.parent / file).resolve()
    return path if cell is None else path.with_name(f"{path.name}@{cell}")


def _defaults(out: Path) -> Path:
    """A config file that says nothing, so all of it are the defaults of the schema."""
    path = out.resolve() / _DEFAULTS
    if read_whole(path) is None:
        make_folder(out)
        write_text(path, "{}\n")
    return path
