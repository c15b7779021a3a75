"""Images made from seeds: a coarse random pattern per class plus uniform noise.

A pixel is pattern + noise, both of 0..127, so it fits uint8. The patterns are 4x4 blocks, which
survive crops; classes are equally frequent (to one example) and in random order.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fedmpi.data.dataset import Dataset
from fedmpi.data.options import Synthetic
from fedmpi.seeds import numpy_generator

BLOCKS = 4
CHUNK_EXAMPLES = 4096


def read(options: Synthetic) -> Dataset:
    """`num_train` and `num_test` images, uint8 (N, H, W, C), made from `options.seed`."""
    patterns = class_patterns(options)
    return Dataset(
        *_examples(patterns, options.num_train, numpy_generator("synthetic-train", options.seed)),
        *_examples(patterns, options.num_test, numpy_generator("synthetic-test", options.seed)),
    )


def class_patterns(options: Synthetic) -> NDArray[np.uint8]:
    """uint8 (classes, H, W, C): 4x4 blocks of one random value of 0..127 each."""
    channels, height, width = options.shape
    generator = numpy_generator("synthetic-patterns", options.seed)
    blocks = generator.integers(0, 128, (options.classes, BLOCKS, BLOCKS, channels), dtype=np.uint8)
    rows, columns = np.arange(height) * BLOCKS // height, np.arange(width) * BLOCKS // width
    return blocks[:, rows[:, None], columns[None, :]]


def _examples(
    patterns: NDArray[np.uint8], num_examples: int, generator: np.random.Generator
) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    labels = generator.permutation(np.arange(num_examples, dtype=np.int64) % len(patterns))
    images = np.empty((num_examples, *patterns.shape[1:]), dtype=np.uint8)
    for start in range(0, num_examples, CHUNK_EXAMPLES):
        chunk = images[start : start + CHUNK_EXAMPLES]
        chunk[:] = generator.integers(0, 128, chunk.shape, dtype=np.uint8)
        chunk += patterns[labels[start : start + CHUNK_EXAMPLES]]
    return images, labels
