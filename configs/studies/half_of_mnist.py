"""Five of ten classes as classes 0 to 4: a net is trained on one half before it is fine-tuned on the other."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from fedmpi.data.dataset import DataInfo, Dataset
from fedmpi.data.files import FetchedOptions
from fedmpi.data.sets.mnist import Mnist


class Half(FetchedOptions):
    """Goes before a data set of ten classes among the bases of its half."""

    first: Literal[0, 5] = 0
    """The smallest of the five classes."""
    counts: ClassVar[Mapping[int, tuple[int, int]]]
    """Training and test examples of each half."""

    def info(self) -> DataInfo:
        num_train, num_test = self.counts[self.first]
        return replace(super().info(), num_classes=5, num_train=num_train, num_test=num_test)

    def read(self) -> Dataset:
        whole = super().read()
        train = self._half(whole.train_y)
        test = self._half(whole.test_y)
        return Dataset(
            whole.train_x[train], whole.train_y[train] - self.first, whole.test_x[test], whole.test_y[test] - self.first
        )

    def _half(self, labels: NDArray[np.int64]) -> NDArray[Any]:
        return (labels >= self.first) & (labels < self.first + 5)


class HalfOfMnist(Half, Mnist):
    name: str = "half_of_mnist"
    counts: ClassVar = {0: (30_596, 5_139), 5: (29_404, 4_861)}
