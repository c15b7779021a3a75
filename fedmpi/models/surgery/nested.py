"""A narrow net inside a wide one of the same class: which entries of each parameter are the narrow one's.

What methods that cut widths need in `narrow` and `regions`. They are the leading entries along every
dimension, so nets of falling width are nested. An LSTM stacks the weights of its four gates (a GRU
of three) along the first dimension: there it is the leading entries of each gate, so that the same
hidden units stay in all gates, in the recurrent inputs and in the next layer. Heads of
an attention are stacked likewise: a narrow net has the leading numbers of every head, as in HeteroFL's
code for its transformer (src/fed.py), so that all heads stay.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from math import prod

import torch
from torch import Tensor, nn

from fedmpi.errors import ConfigError
from fedmpi.models.nets.attention import INPUTS, Attention


@dataclass(frozen=True)
class Part:
    """The leading entries of a tensor of shape `wide`: as many as `shape` says, in each of `gates` equal stacks.

    `axis` is where the stacks are: 0 for rows, 1 for columns.
    """

    wide: tuple[int, ...]
    shape: tuple[int, ...]
    gates: int = 1
    axis: int = 0

    @property
    def is_whole(self) -> bool:
        return self.shape == self.wide

    @cached_property
    def region(self) -> tuple[slice | Tensor, ...]:
        """Returns the index of these entries: slices, for several gates numbers along the axis (int64, on the CPU)."""
        index: list[slice | Tensor] = [*_leading(self.shape)]
        if self.gates > 1:
            firsts = torch.arange(self.gates)[:, None] * (self.wide[self.axis] // self.gates)
            index[self.axis] = (firsts + torch.arange(self.shape[self.axis] // self.gates)).flatten()
        return tuple(index)

    def of(self, tensor: Tensor) -> Tensor:
        """Returns these entries of `tensor`: a view, for several gates a copy; gradients flow back either way."""
        if self.gates == 1:
            return tensor[_leading(self.shape)]
        axis = self.axis
        lengths = list(self.shape)
        lengths[axis : axis + 1] = [self.gates, lengths[axis] // self.gates]
        return tensor.unflatten(axis, (self.gates, -1))[_leading(lengths)].flatten(axis, axis + 1)


def refuse_unnested(wide: nn.Module, narrow: nn.Module) -> None:
    """Raises `ConfigError` unless `narrow` has `wide`'s parameters, none longer: a user's net may ignore its width."""
    shapes = {name: tuple(parameter.shape) for name, parameter in wide.named_parameters()}
    for name, parameter in narrow.named_parameters():
        wanted = shapes.get(name, ())
        found = tuple(parameter.shape)
        if len(wanted) != len(found) or any(less > more for less, more in zip(found, wanted, strict=True)):
            has = f"has {name} of shape {found}, the wider one " + (f"of {wanted}" if name in shapes else "has none")
            raise ConfigError("model.name", f"a narrower net {has}; expected the same layers, each as wide or narrower")


def nested_parts(wide: nn.Module, narrow: nn.Module) -> dict[str, Part]:
    """Maps every parameter of `narrow` to its part of the parameter of that name of `wide`; both may be on meta."""
    shapes = {name: tuple(parameter.shape) for name, parameter in wide.named_parameters()}
    stacks = _gates(wide) | _heads(wide)
    return {
        name: Part(shapes[name], tuple(parameter.shape), *stacks.get(name, ()))
        for name, parameter in narrow.named_parameters()
    }


def fan_in_shares(wide: nn.Module, narrow: nn.Module) -> dict[str, float]:
    """Returns, by weight and bias of convs and linear layers, `narrow`'s inputs as a share of `wide`'s."""
    layers = dict(wide.named_modules())
    return {
        f"{layer}.{name}": prod(part.weight.shape[1:]) / prod(layers[layer].get_parameter("weight").shape[1:])
        for layer, part in narrow.named_modules()
        if isinstance(part, (nn.modules.conv._ConvNd, nn.Linear))
        for name, _ in part.named_parameters(recurse=False)
    }


def _gates(net: nn.Module) -> dict[str, tuple[int, int]]:
    """Returns how many gates (4 in an LSTM, 3 in a GRU) each parameter of a recurrent layer stacks, and along which
    axis."""
    return {
        f"{layer}.{name}" if layer else name: (len(parameter) // part.hidden_size, 0)
        for layer, part in net.named_modules()
        if isinstance(part, nn.RNNBase)
        for name, parameter in part.named_parameters(recurse=False)
    }


def _heads(net: nn.Module) -> dict[str, tuple[int, int]]:
    """Counts an attention's heads as `_gates` does: they write the rows of its inputs' layers, its output reads."""
    stacks: dict[str, tuple[int, int]] = {}
    for layer, part in net.named_modules():
        for name in INPUTS if isinstance(part, Attention) else ():
            stacks |= {f"{layer}.{name}.weight": (part.num_heads, 0), f"{layer}.{name}.bias": (part.num_heads, 0)}
        if isinstance(part, Attention):
            stacks[f"{layer}.out.weight"] = (part.num_heads, 1)
    return stacks


def _leading(shape: Sequence[int]) -> tuple[slice, ...]:
    return tuple(slice(0, length) for length in shape)
