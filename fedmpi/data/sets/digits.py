"""Data sets that need no download: scikit-learn's digits, real handwriting that travels inside a package, and images
made from a fixed seed."""

import importlib.util
from pathlib import Path
from typing import Annotated

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from fedmpi.config.fields import Count
from fedmpi.data.dataset import DataInfo, DataOptions, Dataset, Part
from fedmpi.data.files import guarded
from fedmpi.data.subset import Ints
from fedmpi.errors import DataError
from fedmpi.seeds import mix, numpy_generator

NUM_EXAMPLES, NUM_TRAIN, SIDE = 1797, 1437, 8
BLOCKS = 4
CHUNK_EXAMPLES = 4096
SEED = 0
Side = Annotated[int, Field(ge=1, le=65_536)]


class Digits(DataOptions):
    """E. Alpaydin and C. Kaynak, Optical Recognition of Handwritten Digits (UCI, 1998), its test part.

    The file is read where scikit-learn keeps it; importing that would take 1.5 s of every rank's start. A pixel v of
    0..16 becomes v * 255 / 16, rounded half up. The split is ours and fixed. Digits are cropped with a padding of one
    pixel and never flipped: a mirrored 2 is no 2.
    """

    name: str = "digits"
    """1,797 real handwritten digits, 8x8 grey, inside the package scikit-learn: no download."""

    def info(self) -> DataInfo:
        num_test = NUM_EXAMPLES - NUM_TRAIN
        return DataInfo("image", (1, SIDE, SIDE), 10, NUM_TRAIN, num_test, (0.3049,), (0.3755,), crop_padding=1)

    def read(self) -> Dataset:
        """Returns 1,437 training and 360 test images, uint8 (N, 8, 8, 1)."""
        package = importlib.util.find_spec("sklearn")
        if package is None or not package.submodule_search_locations:
            raise DataError("data.name=digits", "the package scikit-learn is not installed; pip install scikit-learn")
        path = Path(package.submodule_search_locations[0], "datasets", "data", "digits.csv.gz")
        with guarded(path, "reinstall scikit-learn", "cannot be read"):
            table = np.loadtxt(path, delimiter=",", dtype=np.int64).reshape(NUM_EXAMPLES, SIDE * SIDE + 1)
        images = ((table[:, :-1] * 255 + 8) // 16).astype(np.uint8).reshape(-1, SIDE, SIDE, 1)
        labels = table[:, -1]
        train, test = split()
        return Dataset(images[train], labels[train], images[test], labels[test])


def split() -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Returns the positions in the file of the training and of the test examples, in the order of their hashes, which
    no library's random number generator decides."""
    keys = np.array([mix("digits-split", position) for position in range(NUM_EXAMPLES)])
    order = np.argsort(keys, kind="stable")
    return order[:NUM_TRAIN], order[NUM_TRAIN:]


class Synthetic(DataOptions):
    """A coarse random pattern per class, 4x4 blocks, which survive crops, plus uniform noise, both of 0..127. Classes
    are equally frequent (to one example) and in random order."""

    name: str = "synthetic"
    """Generated images of any shape and class count, for load tests and benchmarks."""
    shape: Annotated[tuple[Side, Side, Side], Field(strict=False)] = (3, 32, 32)
    """Channels, height and width of an image."""
    classes: Annotated[int, Field(ge=2, le=1_000_000)] = 10
    """Number of classes, all of about the same size."""
    num_train: Count = 5000
    """Training examples."""
    num_test: Count = 1000
    """Test examples."""

    def info(self) -> DataInfo:
        counts, padding = (self.num_train, self.num_test), min(self.shape[1:]) // 8
        mean, std = (0.5,) * self.shape[0], (0.2,) * self.shape[0]
        return DataInfo("image", self.shape, self.classes, *counts, mean, std, crop_padding=padding, flip=True)

    def read(self) -> Dataset:
        """Makes `num_train` and `num_test` images, uint8 (N, H, W, C), the same in every run."""
        channels, height, width = self.shape
        generator = numpy_generator("synthetic-patterns", SEED)
        blocks = generator.integers(0, 128, (self.classes, BLOCKS, BLOCKS, channels), dtype=np.uint8)
        rows = np.arange(height) * BLOCKS // height
        columns = np.arange(width) * BLOCKS // width
        patterns = blocks[:, rows[:, None], columns[None, :]]
        return Dataset(*_examples(patterns, self.num_train, "train"), *_examples(patterns, self.num_test, "test"))


def _examples(patterns: NDArray[np.uint8], num_examples: int, part: Part) -> tuple[NDArray[np.uint8], Ints]:
    generator = numpy_generator(f"synthetic-{part}", SEED)
    labels = generator.permutation(np.arange(num_examples, dtype=np.int64) % len(patterns))
    images = np.empty((num_examples, *patterns.shape[1:]), dtype=np.uint8)
    for start in range(0, num_examples, CHUNK_EXAMPLES):
        chunk = images[start : start + CHUNK_EXAMPLES]
        chunk[:] = generator.integers(0, 128, chunk.shape, dtype=np.uint8)
        chunk += patterns[labels[start : start + CHUNK_EXAMPLES]]
    return images, labels
