"""Images made from a fixed seed: a coarse random pattern per class plus uniform noise, both of 0..127.

The patterns are 4x4 blocks, which survive crops; classes are equally frequent (to one example) and in random order.
"""

from typing import Annotated

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from fedmpi.config.fields import Count
from fedmpi.data.dataset import DataInfo, DataOptions, Dataset
from fedmpi.data.subset import Ints
from fedmpi.seeds import numpy_generator

BLOCKS = 4
CHUNK_EXAMPLES = 4096
SEED = 0
Side = Annotated[int, Field(ge=1, le=65_536)]


class Synthetic(DataOptions):
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
        return Dataset(
            *_examples(patterns, self.num_train, numpy_generator("synthetic-train", SEED)),
            *_examples(patterns, self.num_test, numpy_generator("synthetic-test", SEED)),
        )


def _examples(
    patterns: NDArray[np.uint8], num_examples: int, generator: np.random.Generator
) -> tuple[NDArray[np.uint8], Ints]:
    labels = generator.permutation(np.arange(num_examples, dtype=np.int64) % len(patterns))
    images = np.empty((num_examples, *patterns.shape[1:]), dtype=np.uint8)
    for start in range(0, num_examples, CHUNK_EXAMPLES):
        chunk = images[start : start + CHUNK_EXAMPLES]
        chunk[:] = generator.integers(0, 128, chunk.shape, dtype=np.uint8)
        chunk += patterns[labels[start : start + CHUNK_EXAMPLES]]
    return images, labels
