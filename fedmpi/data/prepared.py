"""Data sets that take decoding (archives of pictures, texts, signals): decoded once, kept as one HDF5 file.

`python -m fedmpi.data prepare NAME` writes the file, one rank of each node reads it. It says by which
recipe it was made (the options that decide what is in it), and a run with other options refuses it.
Arrays are stored whole and uncompressed, so reading is a copy from the page cache, with a checksum on
the way; `fedmpi.disk.hdf5`, which is loaded only then, says why a crafted file cannot do harm. The
attribute `digest` is `digest_of` the arrays, computed once, when the file is written.
"""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from fedmpi.config.fields import Folder, free
from fedmpi.data.dataset import PARTS, Dataset, layout_problems, num_rows
from fedmpi.data.files.source import below_home, how_to_fetch, is_here, made, quoted
from fedmpi.data.options import DataOptions, Part
from fedmpi.data.reading import digest_of
from fedmpi.disk import temporary
from fedmpi.disk.plain import DIGEST_BYTES
from fedmpi.errors import DataError, reason

if TYPE_CHECKING:
    from fedmpi.data.files.budget import Tell

KIND = "data"
MAX_RECIPE_CHARACTERS = 10_000
_ENDING = ".fedmpi.h5"
_NOT_DECODED = ("name", "root", "num_train", "num_test")
_DIGEST = re.compile(f"[0-9a-f]{{{2 * DIGEST_BYTES}}}")


class PreparedOptions(DataOptions):
    """Options of a data set that is read from a prepared file."""

    counts: ClassVar[tuple[str, ...]] = ()
    """Options that say what is expected in the file, without deciding it."""
    traces: ClassVar[tuple[str, ...]]
    """Names of which an archive of the originals soon shows one."""
    root: Folder = free("~/data")
    """The folder with the file that `python -m fedmpi.data prepare` wrote."""

    def prepare(self, folder: Path, tell: Tell) -> Dataset:
        """Decodes the unpacked original files below `folder`, and calls `tell(done, total)` as it proceeds."""
        raise NotImplementedError

    def read(self) -> Dataset:
        """What `save` wrote for these options. Raises DataError: missing, damaged, or made by another recipe."""
        from fedmpi.disk import hdf5

        path, todo = self.path, how_to_prepare(self)
        if not path.is_file():
            first = ", but the original files are:" if is_here(self) else f"; {how_to_fetch(self)}, and"
            raise DataError(f"data.root={self.root}", f"no {path.name} there{first} decode them by `{todo}`")
        try:
            with hdf5.opened(path, KIND) as file:
                _check_recipe(file.attributes["recipe"], self, todo)
                found: Mapping[Part, int] = {
                    "train": num_rows(file.entries.get("train_y")),
                    "test": num_rows(file.entries.get("test_y")),
                }
                if problems := layout_problems(file.entries, self.info_of(found)):
                    raise DataError(str(path), *problems.values())
                values: dict[str, Any] = {name: file.array(name) if name in file.entries else None for name in PARTS}
                digest = str(file.attributes.get("digest", ""))  # older versions wrote none
                return Dataset(**values, digest=digest if _DIGEST.fullmatch(digest) else "")
        except hdf5.Damaged as damage:
            raise DataError(str(path), f"{damage}; make it again by `{todo}`") from None
        except (OSError, KeyError, TypeError, ValueError, RecursionError) as error:
            raise DataError(str(path), f"damaged ({reason(error)}); make it again by `{todo}`") from error

    @property
    def path(self) -> Path:
        """Where the prepared file is; another recipe than the default one is part of its name."""
        told = "".join(f"-{key}={value}" for key, value in self.own_recipe().items())
        return below_home(self.root) / f"{self.name}{told}{_ENDING}"

    def recipe(self) -> dict[str, Any]:
        """The options that decide what is in the file."""
        plain: dict[str, Any] = json.loads(self.model_dump_json())
        return {key: value for key, value in plain.items() if key not in (*_NOT_DECODED, *self.counts)}

    def own_recipe(self) -> dict[str, Any]:
        """What of the recipe is not the default."""
        defaults = type(self)(name=self.name).recipe()
        return {key: value for key, value in self.recipe().items() if value != defaults[key]}


def _check_recipe(attribute: object, options: PreparedOptions, todo: str) -> None:
    found, asked = json.loads(str(attribute)[:MAX_RECIPE_CHARACTERS]), options.recipe()
    if not isinstance(found, dict):
        raise ValueError("its recipe is no table")
    other = [
        f"data.{key[:40]}={_told(found, key)}, not {_told(asked, key)}"
        for key in {**asked, **found}
        if key not in found or key not in asked or found[key] != asked[key]
    ]
    if other:
        raise DataError(str(options.path), f"was made with {'; '.join(other[:5])}; change the config, or run `{todo}`")


def _told(recipe: dict[str, Any], key: str) -> str:
    return json.dumps(recipe[key])[:60] if key in recipe else "(nothing)"


def save(options: PreparedOptions, dataset: Dataset) -> Path:
    """Writes the file, whole or not at all, and returns where it is. Raises DataError if that cannot be done."""
    from fedmpi.disk import hdf5

    with _writing(options.path) as partial:
        attributes = {"recipe": json.dumps(options.recipe(), sort_keys=True), "digest": digest_of(dataset.arrays)}
        arrays = {name: array for name, array in dataset.arrays.items() if array is not None}
        with open(partial, "w+b") as file:
            hdf5.write(file, KIND, attributes, arrays)
        partial.replace(options.path)
    return options.path


def try_place(options: PreparedOptions) -> None:
    """Raises DataError if `save` could not write there, so that nobody decodes for minutes to learn it."""
    with _writing(options.path):
        pass


@contextlib.contextmanager
def _writing(path: Path) -> Iterator[Path]:
    """A file of this process's own to write what becomes `path`: of several processes, the last rename counts.

    Nothing of it stays there. Raises DataError for any OSError.
    """
    try:
        with made(path.parent):
            if path.is_dir():
                raise IsADirectoryError("a folder has that name")
            with temporary.own_folder(path.parent, path.name) as own:
                yield own / path.name
    except OSError as error:
        raise DataError(str(path), f"cannot be written: {reason(error)}") from error


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
