"""The data sets a configuration can name, and what is known of each without reading a file."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal, Protocol

from pydantic import Field

from fedmpi.config.schema import Count, Folder, Section, free


@dataclass(frozen=True)
class DataInfo:
    """What models, plans and batches need to know of a data set.

    `example_shape` is (C, H, W) for images, (features,) for vectors, (length,) for tokens.
    `mean` and `std` are per channel, of pixels scaled to 0..1; empty means that examples are
    used as they are. Random crops are cut out of the image padded by `crop_padding` zeros a side.
    """

    kind: Literal["image", "vector", "tokens"]
    example_shape: tuple[int, ...]
    num_classes: int
    num_train: int
    num_test: int
    mean: tuple[float, ...] = ()
    std: tuple[float, ...] = ()
    crop_padding: int = 0
    flip: bool = False
    vocabulary_size: int = 0
    """Number of different tokens (kind "tokens" only)."""
    num_groups: int = 0
    """How many groups (writers, subjects, roles) the training examples come from; 0 where nobody knows whose they are."""
    shares_groups: bool = False
    """Whether the test examples come from the same groups."""


class DataOptions(Protocol):
    """The options of any data set."""

    @property
    def name(self) -> str: ...

    def info(self) -> DataInfo: ...


class Digits(Section):
    """E. Alpaydin and C. Kaynak, Optical Recognition of Handwritten Digits (UCI, 1998), its test part.

    The split into training and test examples is ours and fixed. Digits are cropped with a
    padding of one pixel and never flipped: a mirrored 2 is not a 2.
    """

    name: str = "digits"
    """1,797 real handwritten digits, 8x8 grey, inside the package scikit-learn: no download."""

    def info(self) -> DataInfo:
        return DataInfo("image", (1, 8, 8), 10, 1437, 360, mean=(0.3049,), std=(0.3755,), crop_padding=1)


class Cifar10(Section):
    """A. Krizhevsky, Learning Multiple Layers of Features from Tiny Images, 2009; normalization as in FedHM's code."""

    name: str = "cifar10"
    """60,000 colour images 32x32 in 10 classes, files as distributed (python version)."""
    root: Folder = free("~/data")
    """The folder that holds cifar-10-batches-py, or that folder itself."""

    def info(self) -> DataInfo:
        mean, std = (0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010)
        return DataInfo("image", (3, 32, 32), 10, 50_000, 10_000, mean, std, crop_padding=4, flip=True)


class Cifar100(Section):
    """A. Krizhevsky, Learning Multiple Layers of Features from Tiny Images, 2009; normalization as in FedHM's code."""

    name: str = "cifar100"
    """60,000 colour images 32x32 in 100 classes, files as distributed (python version)."""
    root: Folder = free("~/data")
    """The folder that holds cifar-100-python, or that folder itself."""

    def info(self) -> DataInfo:
        mean, std = (0.5071, 0.4867, 0.4408), (0.2675, 0.2565, 0.2761)
        return DataInfo("image", (3, 32, 32), 100, 50_000, 10_000, mean, std, crop_padding=4, flip=True)


# As many pixels as an image file has in a row, if it is an image at all.
Side = Annotated[int, Field(ge=1, le=65_536)]


class Synthetic(Section):
    """A coarse pattern per class under uniform noise: learnable, and as large as one likes."""

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
    seed: Annotated[int, Field(ge=0, lt=2**63)] = 0
    """Seed of the examples; the run's own seed does not change them."""

    def info(self) -> DataInfo:
        channels, height, width = self.shape
        return DataInfo(
            "image",
            (channels, height, width),
            self.classes,
            self.num_train,
            self.num_test,
            mean=(0.5,) * channels,
            std=(0.2,) * channels,
            crop_padding=min(height, width) // 8,
            flip=True,
        )
