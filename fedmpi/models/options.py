"""What the options of all nets have in common; those of a built-in net stand beside it in `nets/`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Annotated, ClassVar, Literal, Protocol

from pydantic import Field
from torch import nn

from fedmpi.config.fields import Count, Section
from fedmpi.config.schema import Config
from fedmpi.errors import counted
from fedmpi.models.nets.shared import with_group_norm
from fedmpi.models.width import Width

# A hundred times a paper's channels is ten thousand times its parameters.
Multiplier = Annotated[float, Field(gt=0, le=100)]
Dropout = Annotated[float, Field(ge=0, lt=1)]


class Inputs(Protocol):
    """What a model needs to know of the data; `data.dataset.DataInfo` has it."""

    def __hash__(self) -> int: ...
    @property
    def kind(self) -> str: ...
    @property
    def example_shape(self) -> tuple[int, ...]: ...
    @property
    def num_classes(self) -> int: ...
    @property
    def vocabulary_size(self) -> int: ...


class Model(Section):
    """Options of a net for images whose stem alone stays dense."""

    kinds: ClassVar[tuple[str, ...]] = ("image",)
    """The kinds of data that it takes."""
    leading_dense: ClassVar[int] = 1
    """The stem: the first conv larger than 1x1, if there is one."""
    name: str

    @property
    def dense_layers(self) -> int:
        """FedHM's rho by default: how many of the first convs larger than 1x1 are never factorized."""
        return self.leading_dense

    def net(self, info: Inputs, width: Width) -> nn.Module:
        """Makes the net with initial values, for such data, with this share of its channels."""
        raise NotImplementedError


class ScaledNet(Model):
    """Options of a net that has a width multiplier of its own; `make` gets the width and all other options."""

    make: ClassVar[Callable[..., nn.Module]]
    width: Multiplier = 1.0
    """Width multiplier of every layer but the last: round(width * its size)."""

    def net(self, info: Inputs, width: Width) -> nn.Module:
        own = {key: value for key, value in self if key not in ("name", "width")}
        return type(self).make(info, width.times(self.width), **own)


class Normalized(Section):
    """Options of a net that normalizes by the batch, or in groups of channels of each example."""

    norm: Literal["batch", "group"] = "batch"
    """`batch`: BatchNorm. `group`: GroupNorm in its place, which knows no batch and needs no statistics for tests."""
    norm_groups: Count = 4
    """Groups of a GroupNorm; they must divide the channels of every such layer, at every width."""

    def problems(self, config: Config) -> Iterator[tuple[str, str]]:
        if self.norm == "batch" and self.norm_groups != type(self).model_fields["norm_groups"].default:
            todo = "set model.norm to group, or leave it out"
            yield "model.norm_groups", f"{counted(self.norm_groups, 'group')}, but model.norm is batch; {todo}"

    def normalized(self, net: nn.Module) -> nn.Module:
        """`net`, which has BatchNorms, with the norm that is asked for."""
        return with_group_norm(net, self.norm_groups) if self.norm == "group" else net
