"""Convs that the tested nets begin with, computed once for a batch.

Nets of unequal capacity may begin with the same dense layers, and all of them are tested on the same batches. So what
these convs give is the same to the bit, and the second net takes what the first has computed. This is checked, not
assumed: a conv's result is used again only for the same weights, inputs and settings, and only while nothing has
written into it by torch's operators. Nets are then loaded for each batch, which small nets do not repay. Inputs and
results of these convs stay in memory for a batch, up to `MOST_BYTES`.

For fedmpi's own nets and methods only: a user's net may take gradients in its `forward`, which a result that another
net has computed does not have, or write into a result behind torch's back. On CPUs only: to compare tensors a GPU would
have to be waited for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn

from fedmpi.learning.flat import FlatNet

# At 50 GMAC/s a core this is 10 ms. Loading a net of ResNet-18's size takes 1 to 5 ms (AMD EPYC, n = 1).
LEAST_MACS = 5e8
"""Multiply-accumulates of a batch from which on it pays."""
MOST_BYTES = 512 * 2**20
"""The most that is kept of one batch, inputs and results together. Convs that find no room are computed again."""


@dataclass(frozen=True)
class _Call:
    """What a conv has given, and of what. `versions` are torch's counts of what was written into inputs and outputs."""

    conv: tuple[object, ...]
    weights: tuple[Tensor | None, ...]
    inputs: Tensor
    outputs: Tensor
    versions: tuple[int, int]

    @classmethod
    def of(cls, conv: nn.Conv2d, inputs: Tensor, outputs: Tensor) -> _Call:
        weights = tuple(value if value is None else value.clone() for value in (conv.weight, conv.bias))
        return cls(_settings(conv), weights, inputs, outputs, (inputs._version, outputs._version))

    def gives(self, conv: nn.Conv2d, inputs: Tensor) -> bool:
        """Whether `conv` would give the same."""
        return (
            self.versions == (self.inputs._version, self.outputs._version)
            and self.conv == _settings(conv)
            and all(map(_are_equal, self.weights, (conv.weight, conv.bias)))
            and _are_equal(self.inputs, inputs)
        )


class LeadingConvs:
    """Remembers what the first `count` convs of a net have given for one batch; of 0 nothing."""

    def __init__(self, count: int) -> None:
        self.count = count
        self._calls: list[_Call] = []
        self._batch: object = None
        self._room = 0

    @classmethod
    def of(cls, nets: Sequence[int], load: Callable[[int], FlatNet], macs: float, device: torch.device) -> LeadingConvs:
        """The convs with which all of these nets begin; `load` puts a net into place. There are none where sharing does
        not pay: for a single net, on another device than a CPU, or where the smallest net takes fewer than
        `LEAST_MACS` multiply-accumulates for a batch (`macs`).
        """
        if len(nets) < 2 or device.type != "cpu" or macs < LEAST_MACS:
            return cls(0)
        first = [conv.weight.clone() for conv in _convs(load(nets[0]).module)]
        for net in nets[1:]:
            pairs = zip(first, _convs(load(net).module), strict=False)
            alike = [_are_equal(weight, conv.weight) for weight, conv in pairs]
            first = first[: [*alike, False].index(False)]
            if not first:
                break
        return cls(len(first))

    @contextmanager
    def within(self, module: nn.Module, batch: object) -> Iterator[None]:
        """Within the block `module` passes `batch`, which the nets before it may have passed."""
        if batch != self._batch:
            self._calls, self._batch, self._room = [], batch, MOST_BYTES
        place = 0

        def computed(conv: nn.Conv2d, inputs: Tensor) -> Tensor:
            nonlocal place
            place += 1
            known = self._calls[place - 1 : place]
            if known and known[0].gives(conv, inputs):
                return known[0].outputs
            outputs = nn.Conv2d.forward(conv, inputs)
            if place == len(self._calls) + 1 <= self.count:
                self._room -= inputs.nbytes + outputs.nbytes
                if self._room >= 0:
                    self._calls.append(_Call.of(conv, inputs, outputs))
            return outputs

        with ExitStack() as stack:
            for conv in _convs(module) if self.count else ():
                conv.forward = partial(computed, conv)  # type: ignore[method-assign]
                stack.callback(delattr, conv, "forward")
            yield


def _convs(module: nn.Module) -> list[nn.Conv2d]:
    """Plain ones: what a subclass computes is not known here."""
    return [part for part in module.modules() if type(part) is nn.Conv2d and "forward" not in vars(part)]


def _settings(conv: nn.Conv2d) -> tuple[object, ...]:
    return conv.stride, conv.padding, conv.dilation, conv.groups, conv.padding_mode


def _are_equal(one: Tensor | None, two: Tensor | None) -> bool:
    """Of equal values in the same order in memory, on which a kernel's bits may depend."""
    if one is None or two is None:
        return one is two
    return one is two or (one.shape == two.shape and one.stride() == two.stride() and torch.equal(one, two))
