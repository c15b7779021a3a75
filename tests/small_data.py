"""A small prepared data set: twenty examples of four people."""

from pathlib import Path
from typing import Any

import numpy as np

from fedmpi.data import prepare
from fedmpi.data.dataset import Dataset
from fedmpi.data.sets.har import Har
from fedmpi.disk import hdf5

TRAIN, TEST, GROUPS = 20, 8, 4
WORDS = (
    "data.name=har",
    f"data.num_train={TRAIN}",
    f"data.num_test={TEST}",
    f"data.num_groups={GROUPS}",
    "data.window=8",
)
"""Its options in a config, without its folder."""


def options_in(folder: Path) -> Har:
    return Har(root=str(folder), num_train=TRAIN, num_test=TEST, num_groups=GROUPS, window=8)


def dataset() -> Dataset:
    x = np.arange(TRAIN * 48, dtype=np.float32).reshape(TRAIN, 48)
    train, test = np.arange(TRAIN), np.arange(TEST)
    return Dataset(x, train % 6, x[:TEST] + 0.5, test % 6, train % GROUPS, test % GROUPS)


def rewrite(options: Har, attributes: dict[str, Any] | None = None, **arrays: np.ndarray | None) -> None:
    """The file with other attributes or arrays (None: without it), as if `save` had written them."""
    with hdf5.opened(options.path, prepare.KIND) as file:
        kept = {name: file.array(name) for name in file.entries}
        held = dict(file.attributes)
    given = {name: array for name, array in {**kept, **arrays}.items() if array is not None}
    packed = hdf5.pack(prepare.KIND, held if attributes is None else attributes, given)
    options.path.write_bytes(packed)
