"""What every data set has: options, what is known of it, where its files come from, and its examples."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

from fedmpi.config.schema import Section
from fedmpi.data.files.source import Source

if TYPE_CHECKING:
    from fedmpi.data.dataset import Dataset


PLACES = ("root", "path")
"""Options that say where the files are, which may differ between ranks and between starts."""


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
    """How many groups (writers, subjects, roles) the training examples come from; 0 if that is not known."""
    shares_groups: bool = False
    """Whether the test examples come from the same groups."""


class DataOptions(Section):
    """The options of a data set; each is a subclass in a file of its own, which `registry.py` lists by its name.

    A class is loaded when a config names it, so its module imports nothing heavier than numpy when it loads.
    """

    source: ClassVar[Source | None] = None
    """Where the files come from; None if there is nothing to download."""
    reads_to_know: ClassVar[bool] = False
    """Whether `info` reads the examples."""
    name: str
    """What the data set is, in one line; the value is the name in a config."""

    def info(self) -> DataInfo:
        """What is known of the examples."""
        raise NotImplementedError

    def read(self) -> Dataset:
        """The examples. Raises DataError, one line a problem."""
        raise NotImplementedError
