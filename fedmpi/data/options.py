"""What every data set has: options, what is known of it, where its files come from, and its examples."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from pydantic import Field

from fedmpi.config.fields import Section, later
from fedmpi.config.schema import Config
from fedmpi.data.files.source import Source

if TYPE_CHECKING:
    from fedmpi.data.dataset import Dataset

NumExamples = Annotated[int, Field(ge=0, le=2**31 - 1)]
Part = Literal["train", "test"]


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

    A class is loaded when a config names it, so its module imports nothing heavy when it loads: a function that
    needs numpy imports it. A config is checked before numpy and torch load.
    """

    source: ClassVar[Source | None] = None
    """Where the files come from; None if there is nothing to download."""
    reads_to_know: ClassVar[bool] = False
    """Whether `info` reads the examples."""
    name: str
    """What the data set is, in one line; the value is the name in a config."""
    num_train: NumExamples = later(0, subset=True)
    """Training examples to use, for trials: so many in all, drawn class by class (or group by group); 0 means all."""
    num_test: NumExamples = later(0, subset=True)
    """Test examples to use, drawn in the same way; 0 means all."""

    def info(self) -> DataInfo:
        """What is known of the examples, all of them."""
        raise NotImplementedError

    def read(self) -> Dataset:
        """The examples, all of them. Raises DataError, one line a problem."""
        raise NotImplementedError

    def forget(self) -> None:
        """Frees the examples that were read to know of them, which this process has elsewhere by now."""

    def asked(self, part: Part) -> int:
        """How many examples of a part a config asks for; 0 if it does not, or if the key means something else here: an
        option of a subclass, an argument of a function.
        """
        key = f"num_{part}"
        field, value = type(self).model_fields[key], getattr(self, key)
        extra = field.json_schema_extra
        return value if isinstance(extra, dict) and extra.get("subset") and value != field.default else 0

    def used(self) -> DataInfo:
        """What is known of the examples that a run uses."""
        info = self.info()
        return replace(
            info, num_train=self.asked("train") or info.num_train, num_test=self.asked("test") or info.num_test
        )

    def info_of(self, found: Mapping[Part, int]) -> DataInfo:
        """What is known of `found` examples, among which there may be more than are asked for."""
        info, used = self.info(), self.used()
        most = {part: max(count, getattr(used, f"num_{part}")) for part, count in found.items() if self.asked(part)}
        return replace(info, **{f"num_{part}": count for part, count in most.items()})

    def problems(self, config: Config) -> Iterator[tuple[str, str]]:
        from fedmpi.data import subset  # loads numpy

        yield from subset.problems(self)
