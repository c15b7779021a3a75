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

import copy
import math
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from fedmpi import seeds
from fedmpi.tensors import frozen_values

NORMS = (_BatchNorm, nn.GroupNorm, nn.LayerNorm)
ACTIVATIONS = (nn.ReLU, nn.ReLU6, nn.LeakyReLU, nn.GELU, nn.SiLU, nn.Hardswish, nn.Sigmoid, nn.Hardsigmoid, nn.Tanh)
MOVE_NOTHING = (nn.Identity, nn.Flatten, nn.Dropout)
AVERAGE_POOLS = (nn.AvgPool2d, nn.AdaptiveAvgPool2d)
FLOAT32_BYTES = 4
# Four gates, the cell and the output, at each token in each layer.
LSTM_KEEPS = 6
# BatchNorm needs two values, so two examples pass.
EXAMPLES = 2
_ATEN = torch.ops.aten
# The operators that multiply, and which of their arguments have a row (an image, a matrix) for each row of the output.
ROWS = {_ATEN.convolution: (0,), _ATEN.mm: (0,), _ATEN.addmm: (1,), _ATEN.bmm: (0, 1), _ATEN.baddbmm: (0, 1, 2)}


@dataclass(frozen=True)
class Costs:
    """One net, one example; `params` counts every learnable number once. All others are 0 where nothing is counted."""

    params: int
    macs: int
    macs_with_norm_and_activations: int
    activation_bytes: int
    layers: tuple[LayerCosts, ...] = field(default=(), compare=False)
    """In the order of use, for a clock of devices."""

    @property
    def is_counted(self) -> bool:
        return bool(self.layers)

    @property
    def weight(self) -> float:
        """Returns its MACs, or its parameters where nothing is counted, to compare nets by what they take."""
        return float(self.macs or self.params)


@dataclass(frozen=True)
class LayerCosts:
    """One layer, one example: MACs, and the float32 that it reads and writes; its weights, trained or not, are read
    once a batch."""

    name: str
    macs: int
    activation_bytes: int
    parameter_bytes: int
    channels: int = 0
    """Output channels of a layer with parameters; 0 for another."""


class UncountedError(Exception):
    """A net that cannot be copied, or does not run on what stands for its values."""


def measure(net: nn.Module, examples: Tensor | tuple[int, ...]) -> Costs:
    """Returns the costs of `net` (left as it is) for one of these examples, or of zeros of one example's shape:
    (C, H, W), (features,) or (length,). A net that cannot be copied, or does not run on what stands for its values, is
    not counted.
    """
    inputs = torch.zeros(EXAMPLES, *examples) if isinstance(examples, tuple) else examples[:EXAMPLES]
    params = sum(parameter.numel() for parameter in net.parameters())
    try:
        light = weightless(net, inputs.device)
        tally = _passed(light, inputs)
        # The difference leaves out what a net does once a batch (an LSTM's gates multiplied back out of their factors).
        twice = _passed(light, torch.cat([inputs, inputs]))
    except UncountedError:
        return Costs(params, 0, 0, 0)
    macs = (twice.counter.total - tally.counter.total) // len(inputs)
    activation_bytes = FLOAT32_BYTES * tally.activations // len(inputs)
    layers = []
    # A net that calls a layer for each example has other calls the second time: its MACs are of no layer.
    is_comparable = len(tally.layers) == len(twice.layers)
    for once, both in zip(tally.layers, twice.layers, strict=True) if is_comparable else ():
        moved_bytes = once.activation_bytes // len(inputs)
        layers.append(replace(once, macs=(both.macs - once.macs) // len(inputs), activation_bytes=moved_bytes))
    outside = macs - sum(layer.macs for layer in layers)  # products of no layer, as those of attention
    if outside:
        layers.append(LayerCosts("", outside, 0, 0))
    return Costs(params, macs, macs + tally.extra_macs // len(inputs), activation_bytes, tuple(layers))


def _passed(net: nn.Module, inputs: Tensor) -> _Tally:
    """Passes `inputs` through `net`. Raises `UncountedError`."""
    frozen = {id(value) for value in frozen_values(net).values()}
    tally = _Tally({module: name for name, module in net.named_modules()}, frozen)
    handles = []
    for leaf in net.modules():
        # An LSTM whose gates are layers of their own computes itself all the same.
        if isinstance(leaf, nn.LSTM) or not any(leaf.children()):
            handles.append(leaf.register_forward_pre_hook(tally.begin))
            handles.append(leaf.register_forward_hook(tally.add))
    try:
        macs_of(net, inputs, tally.counter)
    finally:
        for handle in handles:
            handle.remove()
    return tally


def weightless(net: nn.Module, device: torch.device) -> nn.Module:
    """Returns a copy of `net` (on meta, too) whose weights are one zero that is seen everywhere. Raises
    `UncountedError`."""
    zero = torch.zeros((), device=device)
    copies: dict[int, Tensor] = {id(value): nn.Parameter(zero.expand(value.shape)) for value in net.parameters()}
    for part in net.modules():
        # torch's weight norm keeps what it computes of parameters, which cannot be copied.
        copies |= {id(value): value for value in vars(part).values() if isinstance(value, Tensor)}
    copies |= {id(value): zero.to(value.dtype).expand(value.shape) for value in frozen_values(net).values()}
    with _users_code():
        return copy.deepcopy(net, copies)


@contextmanager
def _users_code() -> Iterator[None]:
    """Makes an `UncountedError` of whatever a user's net raises within."""
    try:
        yield
    except Exception as error:
        raise UncountedError from error


def macs_of(net: nn.Module, inputs: Tensor, counter: MacCounter | None = None) -> int:
    """Passes `inputs` through `net` and its hooks; returns the multiply-accumulates that this would have cost. Raises
    `UncountedError`.

    Not on the meta device, of which many operators import torch._dynamo, half of a rank's start. Products are left out.
    """
    with ExitStack() as stack:
        # Operators that do too much in one to be counted: oneDNN's LSTM, fused attention.
        stack.enter_context(torch.backends.mkldnn.flags(enabled=False, allow_tf32=None))
        stack.enter_context(sdpa_kernel(SDPBackend.MATH))
        stack.enter_context(seeds.global_generators(0))  # a net in training mode draws for its dropout
        stack.enter_context(torch.no_grad())
        given = inputs.clone()  # a net may write over it
        counter = stack.enter_context(counter or MacCounter())
        stack.enter_context(_users_code())
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


@dataclass
class _Tally:
    names: dict[nn.Module, str]
    frozen: set[int]
    """The `id` of each value that is not trained."""
    counter: MacCounter = field(default_factory=MacCounter)
    layers: list[LayerCosts] = field(default_factory=list)
    extra_macs: int = 0
    activations: int = 0
    macs_before: int = 0

    def begin(self, module: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        self.macs_before = self.counter.total

    def add(self, module: nn.Module, inputs: tuple[Tensor, ...], output: Any) -> None:
        self._add_layer(module, tensors_in((inputs, output)))
        given = {id(tensor) for tensor in inputs}
        outputs = [out for out in tensors_in(output) if id(out) not in given]
        if isinstance(module, nn.LSTM):
            self.activations += LSTM_KEEPS * module.num_layers * outputs[0].numel()
        else:
            self.activations += sum(out.numel() for out in outputs)
        if isinstance(module, NORMS):
            self.extra_macs += 2 * output.numel()
        elif isinstance(module, ACTIVATIONS):
            self.extra_macs += output.numel()
        elif isinstance(module, AVERAGE_POOLS):
            self.extra_macs += inputs[0].numel()

    def _add_layer(self, module: nn.Module, passed: Sequence[Tensor]) -> None:
        macs = self.counter.total - self.macs_before
        moves = macs or not isinstance(module, MOVE_NOTHING)
        if moves:
            activation_bytes = FLOAT32_BYTES * sum(tensor.numel() for tensor in passed)
            frozen = [value for value in module.buffers() if id(value) in self.frozen]
            weights = [*frozen, *module.parameters()]
            parameter_bytes = FLOAT32_BYTES * sum(weight.numel() for weight in weights)
            channels = len(weights[0]) if weights else 0
            self.layers.append(LayerCosts(self.names[module], macs, activation_bytes, parameter_bytes, channels))


def tensors_in(values: object) -> list[Tensor]:
    """Returns the tensors in nested tuples, lists and dicts."""
    return [value for value in tree_leaves(values) if isinstance(value, Tensor)]
