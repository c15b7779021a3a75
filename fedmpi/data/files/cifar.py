"""CIFAR-10 and CIFAR-100 as distributed ("python version"), the files that torchvision reads, too.

Source of files and checksums: https://www.cs.toronto.edu/~kriz/cifar.html and torchvision's
datasets/cifar.py. Every file's md5 is checked before it is opened as a pickle.
"""

from __future__ import annotations

import hashlib
import pickle
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedmpi.data.dataset import Dataset
from fedmpi.data.files.budget import Budget, guarded
from fedmpi.data.files.folders import below_home
from fedmpi.data.files.source import File, Source, get_again
from fedmpi.data.files.unpickle import unpickle
from fedmpi.errors import DataError

SHAPE_CHW = (3, 32, 32)
_TORONTO = "https://www.cs.toronto.edu/~kriz/"
_TERMS = "no formal licence; cite Krizhevsky, Learning Multiple Layers of Features from Tiny Images, 2009"
_MAX_BATCH_BYTES = 2**28  # CIFAR-100's train has 155 MB


@dataclass(frozen=True)
class Format:
    """Names and checksums (md5) of one data set's files, in the order in which they are read, and its archive."""

    name: str
    folder: str
    archive: str
    sha256: str
    num_bytes: int
    train: Mapping[str, str]
    test: Mapping[str, str]
    meta: Mapping[str, str]
    label_key: str
    names_key: str
    num_classes: int

    @property
    def source(self) -> Source:
        """Where the archive comes from."""
        urls, checksum = (f"{_TORONTO}{self.archive}",), f"sha256:{self.sha256}"
        file = File(self.archive, urls, checksum, self.num_bytes, unpack_to=".", contents=(self.folder,))
        return Source(f"{_TORONTO}cifar.html", _TERMS, (file,))


def read(root: str, form: Format) -> Dataset:
    """All images, uint8 (N, 32, 32, 3), and labels of the files below `root` that `form` lists."""
    folder = find_folder(root, form)
    missing = [name for name in (*form.train, *form.test, *form.meta) if not (folder / name).is_file()]
    if missing:
        raise DataError(str(folder), f"file(s) {', '.join(missing)} missing; {_advice(folder, form)}")
    for name, md5 in form.meta.items():
        _check_meta(folder / name, md5, form)
    train = [_read_batch(folder / name, md5, form) for name, md5 in form.train.items()]
    test = [_read_batch(folder / name, md5, form) for name, md5 in form.test.items()]
    return Dataset(*_join(train), *_join(test))


def find_folder(root: str, form: Format) -> Path:
    """The folder with the files: `root` itself or the one below it that the archive makes."""
    base = below_home(root)
    for folder in (base / form.folder, base):
        if any((folder / name).exists() for name in (*form.train, *form.test, *form.meta)):
            return folder
    raise DataError(
        f"data.root={root}",
        f"neither {base / form.folder} nor {base} holds the files of {form.archive}; "
        f"{get_again(form.name, root)}, or set data.root to where they are",
    )


def _join(batches: list[tuple[NDArray[np.uint8], NDArray[np.int64]]]) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Images as stored, uint8 (n, 3072), channel after channel -> uint8 (N, 32, 32, 3); labels joined."""
    channels, height, width = SHAPE_CHW
    labels = np.concatenate([labels for _, labels in batches])
    images = np.empty((len(labels), height, width, channels), dtype=np.uint8)
    start = 0
    for rows, _ in batches:
        images[start : start + len(rows)] = rows.reshape(-1, *SHAPE_CHW).transpose(0, 2, 3, 1)
        start += len(rows)
    return images, labels


def _read_batch(path: Path, md5: str, form: Format) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    batch = _read_checked(path, md5, form)
    images, labels = batch.get("data"), batch.get(form.label_key)
    num_bytes = int(np.prod(SHAPE_CHW))
    if not isinstance(images, np.ndarray) or images.dtype != np.uint8 or images.shape[1:] != (num_bytes,):
        found = f"{images.dtype} {images.shape}" if isinstance(images, np.ndarray) else type(images).__name__
        raise _wrong(path, form, f"entry 'data' is {found}, expected uint8 (images, {num_bytes})")
    numbers = labels if isinstance(labels, list) and len(labels) == len(images) else [None]
    if any(type(label) is not int or not 0 <= label < form.num_classes for label in numbers):
        expected = f"a list of {len(images)} numbers from 0 to {form.num_classes - 1}"
        raise _wrong(path, form, f"entry '{form.label_key}' is not {expected}")
    return images, np.array(numbers, dtype=np.int64)


def _check_meta(path: Path, md5: str, form: Format) -> None:
    names = _read_checked(path, md5, form).get(form.names_key)
    if not isinstance(names, list) or len(names) != form.num_classes:
        raise _wrong(path, form, f"entry '{form.names_key}' is not a list of {form.num_classes} names")


def _read_checked(path: Path, md5: str, form: Format) -> dict[str, Any]:
    with guarded(path, _advice(path.parent, form), "cannot be read"):
        content = Budget(path).read(path, _MAX_BATCH_BYTES)
    found = hashlib.md5(content, usedforsecurity=False).hexdigest()
    if found != md5:
        problem = f"damaged or cut off: its {len(content):,} bytes have md5 {found}, expected {md5}"
        raise _wrong(path, form, problem)
    try:
        entries = unpickle(content)
    except pickle.UnpicklingError as error:
        raise _wrong(path, form, f"is not a batch of {form.archive}: {error}") from error
    if not isinstance(entries, dict):
        raise _wrong(path, form, f"holds a {type(entries).__name__}, expected a dict")
    return entries


def _wrong(path: Path, form: Format, problem: str) -> DataError:
    return DataError(str(path), f"{problem}; {_advice(path.parent, form)}")


def _advice(folder: Path, form: Format) -> str:
    return get_again(form.name, folder.parent if folder.name == form.folder else folder, "--force")
