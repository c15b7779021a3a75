"""A small prepared data set: twenty examples of four people."""

from pathlib import Path

import numpy as np

from fedmpi.data.dataset import Dataset
from fedmpi.data.sets.har import Har

TRAIN, TEST, GROUPS = 20, 8, 4


def options_in(folder: Path) -> Har:
    return Har(root=str(folder))


def dataset() -> Dataset:
    x = (np.arange(TRAIN * 768, dtype=np.float32) % 50).reshape(TRAIN, 768)
    train, test = np.arange(TRAIN), np.arange(TEST)
    return Dataset(x, train % 6, x[:TEST] + 0.5, test % 6, train % GROUPS, test % GROUPS)
