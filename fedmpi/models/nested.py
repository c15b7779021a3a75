"""A narrow net inside a wide one of the same class: which entries of each parameter are the narrow one's.

What methods that cut widths need in `narrow` and `regions`. They are the leading entries along every
dimension, so nets of falling width are nested. An LSTM stacks the weights of its four gates (a GRU
of three) along the first dimension: there it is the leading entries of each gate, so that the same
hidden units stay in all gates, in the recurrent inputs and in the next layer (methods.md 14).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from math import prod

import torch
from torch import Tensor, nn


@dataclass(frozen=True)
class Part:
    """The leading entries of a tensor of shape `wide`: as many as `shape` says, in each of `gates` equal stacks."""

    wide: tuple[int, ...]
    shape: tuple[int, ...]
    gates: int = 1

    @property
    def is_whole(self) -> bool:
        return self.shape == self.wide

    @cached_property
    def region(self) -> tuple[slice | Tensor, ...]:
        """What indexes these entries: slices, and for several gates the numbers of the rows (int64, on the CPU)."""
        slices = _leading(self.shape)
        if self.gates == 1:
            return slices
        firsts = torch.arange(self.gates)[:, None] * (self.wide[0] // self.gates)
        return (firsts + torch.arange(self.shape[0] // self.gates)).flatten(), *slices[1:]

    def of(self, tensor: Tensor) -> Tensor:
        """These entries of `tensor`: a view, for several gates a copy; gradients flow back either way."""
        if self.gates == 1:
            return tensor[_leading(self.shape)]
        rows, *columns = self.shape
        stacks = tensor.unflatten(0, (self.gates, -1))
        return stacks[_leading((self.gates, rows // self.gates, *columns))].flatten(0, 1)


def nested_parts(wide: nn.Module, narrow: nn.Module) -> dict[str, Part]:
    """For every parameter of `narrow`, its part of the parameter of that name of `wide`; both may be on meta."""
    shapes = {name: tuple(parameter.shape) for name, parameter in wide.named_parameters()}
    gates = _gates(wide)
    return {
        name: Part(shapes[name], tuple(parameter.shape), gates.get(name, 1))
        for name, parameter in narrow.named_parameters()
    }


def fan_in_shares(wide: nn.Module, narrow: nn.Module) -> dict[str, float]:
    """For weight and bias of every conv and linear layer: `narrow`'s number of inputs, as a share of `wide`'s."""
    layers = dict(wide.named_modules())
    return {
        f"{layer}.{name}": prod(part.weight.shape[1:]) / prod(layers[layer].get_parameter("weight").shape[1:])
        for layer, part in narrow.named_modules()
        if isinstance(part, (nn.modules.conv._ConvNd, nn.Linear))
        for name, _ in part.named_parameters(recurse=False)
    }


def _gates(net: nn.Module) -> dict[str, int]:
    """How many gates are stacked in each parameter of a recurrent layer: 4 in an LSTM, 3 in a GRU."""
    return {
        f"{layer}.{name}" if layer else name: len(parameter) // part.hidden_size
        for layer, part in net.named_modules()
        if isinstance(part, nn.RNNBase)
        for name, parameter in part.named_parameters(recurse=False)
    }


def _leading(shape: tuple[int, ...]) -> tuple[slice, ...]:
    return tuple(slice(0, length) for length in shape)
