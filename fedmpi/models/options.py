"""The contract of a model's options, and what the built-in ones share. Imports in milliseconds, without torch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, ClassVar, Protocol

from pydantic import Field

from fedmpi.config.schema import Section
from fedmpi.models.width import Width

if TYPE_CHECKING:
    from torch import nn

# A hundred times a paper's channels is ten thousand times its parameters.
Multiplier = Annotated[float, Field(gt=0, le=100)]
Dropout = Annotated[float, Field(ge=0, lt=1)]


class Inputs(Protocol):
    """What a model needs to know of the data; `data.DataInfo` has it."""

    @property
    def kind(self) -> str: ...
    @property
    def example_shape(self) -> tuple[int, ...]: ...
    @property
    def num_classes(self) -> int: ...
    @property
    def vocabulary_size(self) -> int: ...


class ModelOptions(Protocol):
    """What `build` and the methods need of a model's options; `kinds` are the kinds of data that it takes."""

    kinds: ClassVar[tuple[str, ...]]
    name: str

    @property
    def dense_layers(self) -> int:
        """FedHM's rho by default: how many of the first convs larger than 1x1 are never factorized."""
        ...

    def net(self, info: Inputs, width: Width) -> nn.Module: ...


class Model(Section):
    """Options of a net for images whose stem alone stays dense."""

    kinds: ClassVar[tuple[str, ...]] = ("image",)
    name: str

    @property
    def dense_layers(self) -> int:
        """The stem: the first conv larger than 1x1, if there is one."""
        return 1


class ScaledNet(Model):
    """Options of a net that has a width multiplier of its own."""

    width: Multiplier = 1.0
    """Width multiplier of every layer but the last: round(width * its size)."""
