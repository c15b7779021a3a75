"""Human activities of 30 subjects: windows of HAPT's raw signals, or UCI HAR's 561 features as distributed.

HAPT: J.-L. Reyes-Ortiz et al., Transition-Aware Human Activity Recognition Using Smartphones, Neurocomputing 2015;
UCI HAR: D. Anguita et al., A Public Domain Dataset for Human Activity Recognition Using Smartphones, ESANN 2013. Both
are the same recordings, two experiments of each subject at 50 Hz. A group is a subject.

Windows. A row of labels.txt is a stretch of one activity, its first and last sample counted from 1. Windows lie wholly
inside a stretch; an example is its samples in the order of time, each as acc x y z (gravity included) and gyro x y z.
Each axis is standardized over all training windows. Transitions (activities 7 to 12) are left out. This is not UCI
HAR's own preprocessing (no filters), so results do not compare with published ones.

Test data are the later fifth of each subject's time in each activity. Windows: a subject's stretches of one activity
are put end to end and cut once; each side has its own windows. Features: the later examples in the order of the file.
Neighbours there overlap by half, so the one example before the test part is in neither.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from fedmpi.data.dataset import PARTS, DataInfo, Dataset, number_groups
from fedmpi.data.files import CountedOptions, find, guarded, track
from fedmpi.data.sets.steps import first_of_test, windows
from fedmpi.data.subset import Ints
from fedmpi.errors import DataError

Floats: TypeAlias = NDArray[np.float32]

NUM_ACTIVITIES, AXES, FEATURES = 6, 6, 561
WINDOW, STEP = 128, 64
TEST_SHARE = 0.2


class Har(CountedOptions):
    downloads = ("har-240.zip", "har-341.zip")
    name: str = "har"
    """Activities of 30 people from a phone's sensors, 6 classes: HAPT's raw signals or UCI HAR's features."""
    form: Literal["windows", "features"] = "windows"
    """`windows`: pieces of HAPT's raw signals, 128 samples (2.56 s) of 6 standardized axes (3 of acceleration, 3 of
    rotation), cut out of each labelled stretch every 64 samples. `features`: UCI HAR's 561 numbers, as distributed."""

    def complete(self) -> DataInfo:
        if self.form == "features":
            return DataInfo("vector", (FEATURES,), NUM_ACTIVITIES, 8059, 2060, num_groups=30, shares_groups=True)
        return DataInfo("vector", (AXES * WINDOW,), NUM_ACTIVITIES, 8180, 1982, num_groups=30, shares_groups=True)

    def files(self) -> tuple[str, ...]:
        return self.downloads[:1] if self.form == "features" else self.downloads[1:]

    def prepare(self, folder: Path) -> Dataset:
        """Returns vectors float32, activities 1 to 6 as labels 0 to 5. Raises DataError."""
        return _windows(folder) if self.form == "windows" else _features(folder)


def _divided(x: Floats, y: Ints, subjects: Ints, is_test: NDArray[np.bool_]) -> Dataset:
    groups = number_groups(subjects[~is_test], subjects[is_test])
    return Dataset(x[~is_test], y[~is_test], x[is_test], y[is_test], *groups)


def _windows(folder: Path) -> Dataset:
    labels_path = find(folder, "labels.txt", "HAPT's raw signals (RawData)")
    rows = _table(labels_path, 5, np.int64)
    signals = _signals(labels_path.parent, rows)
    rows = rows[rows[:, 2] <= NUM_ACTIVITIES]
    rows = rows[np.lexsort((rows[:, 3], rows[:, 0], rows[:, 2], rows[:, 1]))]
    pieces = []
    for subject, activity in np.unique(rows[:, 1:3], axis=0).tolist():
        its_rows = rows[(rows[:, 1] == subject) & (rows[:, 2] == activity)]
        for experiment, begin, end, is_test in _divide(its_rows):
            x = windows(signals[experiment][begin:end], WINDOW, STEP)
            facts = (np.full(len(x), fact) for fact in (activity - 1, subject, is_test))
            pieces.append((x.reshape(len(x), AXES * WINDOW), *facts))
    x, y, subjects, in_test = (np.concatenate(column) for column in zip(*pieces, strict=True))
    return _divided(_standardized(x, in_test), y, subjects, in_test)


def _signals(raw: Path, rows: Ints) -> dict[int, Floats]:
    """Returns experiment -> samples, float32 (S, 6); every stretch of `rows` is checked to lie inside."""
    signals = {}
    experiments = np.unique(rows[:, :2], axis=0).tolist()
    for experiment, subject in track(experiments, "reading signals"):
        name = f"exp{experiment:02d}_user{subject:02d}.txt"
        acc, gyro = (_table(raw / f"{sensor}_{name}", 3, np.float32) for sensor in ("acc", "gyro"))
        firsts, lasts = rows[rows[:, 0] == experiment, 3:].T
        if len(acc) != len(gyro) or (firsts < 1).any() or (firsts > lasts).any() or lasts.max() > len(acc):
            found = f"acc_{name} has {len(acc)} samples, gyro_{name} {len(gyro)}"
            problem = f"{found}, labels.txt stretches from {firsts.min()} to {lasts.max()}: a file is cut off"
            raise DataError(str(raw), problem)
        signals[experiment] = np.concatenate([acc, gyro], axis=1)
    return signals


def _divide(rows: Ints) -> Iterator[tuple[int, int, int, bool]]:
    """Yields experiment, first sample and the one after the last, from 0, and whether it is test data, of the stretches
    of one subject and activity, cut in time."""
    num_train = first_of_test(int((rows[:, 4] - rows[:, 3] + 1).sum()), TEST_SHARE)
    for experiment, _, _, first, last in rows.tolist():
        cut = min(first - 1 + num_train, last)
        yield experiment, first - 1, cut, False
        yield experiment, cut, last, True
        num_train -= cut - (first - 1)


def _standardized(x: Floats, is_test: NDArray[np.bool_]) -> Floats:
    """Scales each axis by its mean and standard deviation (computed in float64) over all training windows."""
    samples = x[~is_test].reshape(-1, AXES).astype(np.float64)
    mean, deviation = samples.mean(axis=0), samples.std(axis=0)
    deviation[deviation == 0] = 1
    return ((x.reshape(-1, AXES) - mean) / deviation).astype(np.float32).reshape(x.shape)


def _features(folder: Path) -> Dataset:
    home = find(folder, "train/subject_train.txt", "UCI HAR (UCI HAR Dataset)").parent.parent
    x = _both_parts(home, "X", FEATURES, np.float32)
    y = _both_parts(home, "y", 1, np.int64)[:, 0] - 1
    subjects = _both_parts(home, "subject", 1, np.int64)[:, 0]
    if not len(x) == len(y) == len(subjects):
        raise DataError(str(home), f"holds {len(x)} examples, {len(y)} labels and {len(subjects)} subjects")
    rows = []
    is_test = []
    for subject, activity in np.unique(np.stack([subjects, y], axis=1), axis=0).tolist():
        own = np.flatnonzero((subjects == subject) & (y == activity))
        first = first_of_test(len(own), TEST_SHARE)
        train = own[: max(first - 1, 0)] if first < len(own) else own
        rows += [train, own[first:]]
        is_test += [np.full(len(train), False), np.full(len(own) - first, True)]
    chosen = np.concatenate(rows)
    return _divided(x[chosen], y[chosen], subjects[chosen], np.concatenate(is_test))


def _both_parts(home: Path, name: str, columns: int, dtype: type[np.generic]) -> NDArray[Any]:
    return np.concatenate([_table(home / part / f"{name}_{part}.txt", columns, dtype) for part in PARTS])


def _table(path: Path, columns: int, dtype: type[np.generic]) -> NDArray[Any]:
    """Reads a table of numbers with so many columns. Raises DataError if the file is missing or holds anything else."""
    with guarded(path, "unpack the files again", "cannot be read as a table of numbers"):
        table: NDArray[Any] = np.loadtxt(path, dtype=dtype, ndmin=2)
        if table.shape[1] != columns:
            raise ValueError(f"it has {table.shape[1]} columns, expected {columns}")
    return table
