"""What `python -m fedmpi.data prepare` does: original files in, one HDF5 file out."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from fedmpi.data import prepared
from fedmpi.data.dataset import Dataset, check
from fedmpi.data.files import archives
from fedmpi.data.files.budget import Tell
from fedmpi.data.files.source import below_home, how_to_fetch, made, unpacked
from fedmpi.data.prepared import PreparedOptions
from fedmpi.disk import temporary
from fedmpi.errors import DataError, reason

COUNTS = ("num_train", "num_test", "num_groups")


def prepare(
    options: PreparedOptions, given: Path | None, tell_unpacking: Tell, tell: Tell, unpack_in: Path | None = None
) -> tuple[Path, Dataset]:
    """Decodes the originals, from `given` or from below data.root, and writes the prepared file.

    Counts may be other than expected (see `other_counts`), shapes and types may not. Raises DataError.
    """
    place = _find(options) if given is None else given
    if not place.exists():
        raise DataError(str(place), "no such file or folder")
    if not place.is_dir() and not place.is_file():  # a pipe or a device could be read for ever
        raise DataError(str(place), "is neither a file nor a folder")
    prepared.try_place(options)
    with originals(place, options.traces, tell_unpacking, unpack_in or options.path.parent) as folder:
        dataset = options.prepare(folder, tell)
    info, found = options.info(), counts_of(dataset)
    if not info.num_groups:  # the options do not ask whose the examples are
        found["num_groups"] = 0
    told: dict[str, Any] = {name: found[name] for name in COUNTS if name in options.counts}
    check(f"data.name={options.name}", dataset, replace(info, **told))
    return prepared.save(options, dataset), dataset


@contextlib.contextmanager
def originals(place: Path, traces: tuple[str, ...], tell: Tell, unpack_in: Path) -> Iterator[Path]:
    """A folder with the unpacked originals; what an archive holds is there only until the end of the `with`.

    A DataError that names this folder, which is gone when the user reads it, names `place` instead.
    """
    if place.is_dir():
        yield place
        return
    try:
        with made(unpack_in), temporary.own_folder(unpack_in, "preparing") as folder:
            if archives.is_archive(place):
                archives.unpack_into(place, folder, tell, traces=traces)
            else:
                (folder / place.name).symlink_to(place.resolve())
            yield folder
    except OSError as error:
        raise DataError(str(unpack_in), f"{place.name} cannot be unpacked there: {reason(error)}") from error
    except DataError as error:
        texts = (text.replace(str(folder / place.name), str(place)) for text in (error.where, *error.problems))
        raise DataError(*(text.replace(str(folder), str(place)) for text in texts)) from error


def _find(options: PreparedOptions) -> Path:
    """Where the unpacked originals below data.root are, or the archive (or file) as downloaded. Raises DataError."""
    root, source = below_home(options.root), options.source
    files = source.needed(options) if source else ()
    for file in files:
        there = unpacked(file, root)
        if there is not None:
            return there if there.is_dir() else there.parent
        if (root / file.path).is_file():
            return root / file.path
    where = f"data.root={options.root}"
    if not files:
        raise DataError(where, f"say --from FOLDER: these files cannot be downloaded. {source.other if source else ''}")
    names = " or ".join(name for file in files for name in (file.path, *file.contents))
    raise DataError(where, f"no {names} there; {how_to_fetch(options)}, or say --from FOLDER_OR_ARCHIVE")


def counts_of(dataset: Dataset) -> dict[str, int]:
    """Training and test examples, and groups of the training examples."""
    num_groups = 0 if dataset.groups is None else len(np.unique(dataset.groups))
    return {"num_train": len(dataset.train_y), "num_test": len(dataset.test_y), "num_groups": num_groups}


def other_counts(options: PreparedOptions, dataset: Dataset) -> list[str]:
    """What a config must set, because the files hold other counts than it expects (of examples: fewer than asked)."""
    found = counts_of(dataset)
    info = options.info_of({"train": found["num_train"], "test": found["num_test"]})
    expected = {name: getattr(info, name) for name in COUNTS}
    if not info.num_groups:
        expected["num_groups"] = found["num_groups"]
    return [f"data.{name}={found[name]}" for name in COUNTS if expected[name] != found[name]]
