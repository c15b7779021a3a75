"""What the options of all prepared data sets share; see `prepared.py`, whose HDF5 no config waits for."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from fedmpi.config.schema import Folder, free
from fedmpi.data.files.folders import below_home
from fedmpi.data.files.source import quoted
from fedmpi.data.options import DataOptions

if TYPE_CHECKING:
    from fedmpi.data.dataset import Dataset
    from fedmpi.data.files.budget import Tell

_ENDING = ".fedmpi.h5"


class PreparedOptions(DataOptions):
    """Options of a data set that is read from a prepared file."""

    counts: ClassVar[tuple[str, ...]] = ("num_train", "num_test", "num_groups")
    """Options that say what is expected in the file, without deciding it."""
    traces: ClassVar[tuple[str, ...]]
    """Names of which an archive of the originals soon shows one."""
    root: Folder = free("~/data")
    """The folder with the file that `python -m fedmpi.data prepare` wrote."""

    def prepare(self, folder: Path, tell: Tell) -> Dataset:
        """Decodes the unpacked original files below `folder`, and calls `tell(done, total)` as it proceeds."""
        raise NotImplementedError

    def read(self) -> Dataset:
        from fedmpi.data import prepared

        return prepared.read(self)

    @property
    def path(self) -> Path:
        """Where the prepared file is; another recipe than the default one is part of its name."""
        told = "".join(f"-{key}={value}" for key, value in self.own_recipe().items())
        return below_home(self.root) / f"{self.name}{told}{_ENDING}"

    def recipe(self) -> dict[str, Any]:
        """The options that decide what is in the file."""
        plain: dict[str, Any] = json.loads(self.model_dump_json())
        return {key: value for key, value in plain.items() if key not in ("name", "root", *self.counts)}

    def own_recipe(self) -> dict[str, Any]:
        """What of the recipe is not the default."""
        defaults = type(self)(name=self.name).recipe()
        return {key: value for key, value in self.recipe().items() if value != defaults[key]}


def other_recipes(options: PreparedOptions) -> list[list[str]]:
    """data.key=value for each option that a prepared file in the folder names, file by file; the default names none."""
    other = below_home(options.root).glob(f"{options.name}-*{_ENDING}")
    recipes = [path.name[len(options.name) : -len(_ENDING)] for path in other]
    return [[f"data.{word}" for word in re.split(r"-(?=[a-z_]+=)", recipe)[1:]] for recipe in sorted(recipes)]


def how_to_prepare(options: PreparedOptions) -> str:
    """The command that makes the file."""
    told = [f"data.{key}={json.dumps(value)}" for key, value in options.own_recipe().items()]
    words = ["python -m fedmpi.data prepare", options.name, *told, "--data-dir", quoted(options.root)]
    return " ".join(words)
