"""What one example costs a net: parameters, multiply-accumulates, activations.

Two counts of the compute (FedHM, arXiv:2111.14655):

`macs`  multiply-accumulates of convs and matrix products: half of what torch's FLOP counter says.
`macs_with_norm_and_activations`  the rule behind FedHM's figures: macs, and 2 for each output of a norm layer, 1 for
        each output of an activation, 1 for each input of an average pooling. Counted by hooks on modules: an activation
        called as a function is not seen.

`activation_bytes` is what training keeps for the backward pass, roughly: the float32 outputs of all leaf modules; one
that wrote over its input (an in-place ReLU) adds nothing, an LSTM layer adds its gates and cells.
"""

from __future__ import annotations

import math
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from fedmpi import seeds
from fedmpi.errors import ConfigError, users_code
from fedmpi.tensors import copy_of, frozen_values

NORMS = (_BatchNorm, nn.GroupNorm, nn.LayerNorm)
ACTIVATIONS = (nn.ReLU, nn.ReLU6, nn.LeakyReLU, nn.GELU, nn.SiLU, nn.Hardswish, nn.Sigmoid, nn.Hardsigmoid, nn.Tanh)
MOVE_NOTHING = (nn.Identity, nn.Flatten, nn.Dropout)
AVERAGE_POOLS = (nn.AvgPool2d, nn.AdaptiveAvgPool2d)
FLOAT32_BYTES = 4
LSTM_KEEPS = 6  # four gates, the cell and the output, at each token in each layer
EXAMPLES = 2  # BatchNorm needs two values
_ATEN = torch.ops.aten
# The operators that multiply, and which of their arguments have a row (an image, a matrix) for each row of the output.
ROWS = {_ATEN.convolution: (0,), _ATEN.mm: (0,), _ATEN.addmm: (1,), _ATEN.bmm: (0, 1), _ATEN.baddbmm: (0, 1, 2)}


@dataclass(frozen=True)
class Costs:
    """One net, one example; `params` counts every learnable number once. Others are 0 where nothing is counted."""

    params: int
    macs: int
    macs_with_norm_and_activations: int
    activation_bytes: int
    layers: tuple[LayerCosts, ...] = field(default=(), compare=False)
    """In the order of use, for a clock of devices."""

    @property
    def moved_bytes(self) -> int:
        """Returns the float32 that its layers read and write, in bytes."""
        return sum(layer.activation_bytes for layer in self.layers)

    @property
    def weight(self) -> float:
        """Returns its MACs, or its parameters where nothing is counted."""
        return float(self.macs or self.params)


@dataclass(frozen=True)
class LayerCosts:
    """One layer, one example: MACs, and the float32 read and written; all weights are read once a batch."""

    name: str
    macs: int
    activation_bytes: int
    parameter_bytes: int
    channels: int = 0
    """Output channels of a layer with parameters; 0 for another."""


def measure(net: nn.Module, examples: Tensor | tuple[int, ...]) -> Costs:
    """Returns the costs of `net` (left as it is) for one of these examples, or of zeros of one example's shape:
    (C, H, W), (features,) or (length,). A net that cannot be copied, or does not run on what stands for its values, is
    not counted.
    """
    inputs = torch.zeros(EXAMPLES, *examples) if isinstance(examples, tuple) else examples[:EXAMPLES]
    params = sum(parameter.numel() for parameter in net.parameters())
    try:
        once = _Tally(net, inputs)
        # The difference leaves out what a net does once a batch (an LSTM's gates multiplied back out of their factors).
        twice = _Tally(net, torch.cat([inputs, inputs]))
    except ConfigError:
        return Costs(params, 0, 0, 0)
    number = len(inputs)
    macs = (twice.counter.total - once.counter.total) // number
    layers = []
    # A net that calls a layer for each example has other calls the second time: its MACs are of no layer.
    if len(once.layers) == len(twice.layers):
        for one, two in zip(once.layers, twice.layers, strict=True):
            moved_bytes = one.activation_bytes // number
            layers.append(replace(one, macs=(two.macs - one.macs) // number, activation_bytes=moved_bytes))
    outside = macs - sum(layer.macs for layer in layers)  # products of no layer, as those of attention
    if outside:
        layers.append(LayerCosts("", outside, 0, 0))
    kept_bytes = FLOAT32_BYTES * once.activations // number
    return Costs(params, macs, macs + once.extra_macs // number, kept_bytes, tuple(layers))


class _Tally:
    """Counts what a copy of `net` without values does with a batch. Raises `ConfigError`."""

    def __init__(self, net: nn.Module, inputs: Tensor) -> None:
        self.counter = MacCounter()
        self.layers: list[LayerCosts] = []
        self.extra_macs = 0
        self.activations = 0
        self._macs_before = 0
        light = weightless(net, inputs.device)
        self._frozen = {id(value) for value in frozen_values(light).values()}
        for name, leaf in light.named_modules():
            # An LSTM whose gates are layers of their own computes itself all the same.
            if isinstance(leaf, nn.LSTM) or not any(leaf.children()):
                leaf.register_forward_pre_hook(self._begin)
                leaf.register_forward_hook(partial(self._add, name))
        macs_of(light, inputs, self.counter)

    def _begin(self, module: nn.Module, inputs: object) -> None:
        self._macs_before = self.counter.total

    def _add(self, name: str, module: nn.Module, inputs: tuple[Tensor, ...], output: Any) -> None:
        given = {id(tensor) for tensor in inputs}
        outputs = [out.numel() for out in tensors_in(output) if id(out) not in given]
        self.activations += LSTM_KEEPS * module.num_layers * outputs[0] if isinstance(module, nn.LSTM) else sum(outputs)
        if isinstance(module, NORMS):
            self.extra_macs += 2 * output.numel()
        elif isinstance(module, ACTIVATIONS):
            self.extra_macs += output.numel()
        elif isinstance(module, AVERAGE_POOLS):
            self.extra_macs += inputs[0].numel()
        macs = self.counter.total - self._macs_before
        if macs or not isinstance(module, MOVE_NOTHING):
            moved_bytes = FLOAT32_BYTES * sum(tensor.numel() for tensor in tensors_in((inputs, output)))
            frozen = [value for value in module.buffers() if id(value) in self._frozen]
            weights = [*frozen, *module.parameters()]
            parameter_bytes = FLOAT32_BYTES * sum(weight.numel() for weight in weights)
            channels = len(weights[0]) if weights else 0
            self.layers.append(LayerCosts(name, macs, moved_bytes, parameter_bytes, channels))


def weightless(net: nn.Module, device: torch.device) -> nn.Module:
    """Returns a copy of `net` (on meta, too) whose weights are all one zero in memory. Raises `ConfigError`."""
    zero = torch.zeros((), device=device)
    values: dict[int, Tensor] = {id(value): nn.Parameter(zero.expand(value.shape)) for value in net.parameters()}
    values |= {id(value): zero.to(value.dtype).expand(value.shape) for value in frozen_values(net).values()}
    return copy_of(net, values)


def macs_of(net: nn.Module, inputs: Tensor, counter: MacCounter) -> int:
    """Passes `inputs` through `net` and its hooks; returns the multiply-accumulates that this would have cost, though
    products are left out. Raises `ConfigError`. On the meta device many operators would import torch._dynamo.
    """
    with ExitStack() as stack:
        # Operators that do too much in one to be counted: oneDNN's LSTM, fused attention.
        stack.enter_context(torch.backends.mkldnn.flags(enabled=False, allow_tf32=None))
        stack.enter_context(sdpa_kernel(SDPBackend.MATH))
        stack.enter_context(seeds.global_generators(0))  # a net in training mode draws for its dropout
        stack.enter_context(torch.no_grad())
        given = inputs.clone()  # a net may write over it
        stack.enter_context(counter)
        stack.enter_context(users_code("model.name", "cannot be counted", ConfigError))
        net(given)
    return counter.total


class MacCounter(TorchDispatchMode):
    """Counts as torch's FlopCounterMode does, whose formulas import Triton; products come out as zeros."""

    total = 0

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        # The wrapper that keeps torch.compile out of such modes imports torch._dynamo, too.
        return False

    def __torch_dispatch__(self, func: Any, types: object, args: Any = (), kwargs: Any = None) -> Any:
        operator = func.overloadpacket
        if operator not in ROWS:
            return func(*args, **(kwargs or {}))
        rows = ROWS[operator]
        of_no_rows = func(*(arg[:0] if place in rows else arg for place, arg in enumerate(args)), **(kwargs or {}))
        out = of_no_rows.new_zeros(len(args[rows[-1]]), *of_no_rows.shape[1:])
        self.total += _macs(operator, args, out)
        return out


def _macs(operator: object, args: tuple[Any, ...], out: Tensor) -> int:
    """Counts the products behind each number of the output: as many as the kernels have weights for it, or as the left
    matrix has columns. A transposed conv spreads each number of its input in the same way.
    """
    if operator is _ATEN.convolution:
        is_transposed = args[6]
        return int((args[0] if is_transposed else out).numel() * math.prod(args[1].shape[1:]))
    left = args[1] if operator in (_ATEN.addmm, _ATEN.baddbmm) else args[0]
    return int(out.numel() * left.shape[-1])


def tensors_in(values: object) -> list[Tensor]:
    """Returns the tensors in nested tuples, lists and dicts."""
    return [value for value in tree_leaves(values) if isinstance(value, Tensor)]
