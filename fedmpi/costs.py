"""What one example costs a net: parameters, multiply-accumulates, activations.

The planning step, before a run: a forward pass without weights and without products. Two counts
of the compute (FedHM, arXiv:2111.14655):

`macs`  multiply-accumulates of convs and matrix products: half of what torch's FLOP counter says.
`macs_with_norm_and_activations`  the rule behind FedHM's figures: macs, and 2 for each output of
        a norm layer, 1 for each output of an activation, 1 for each input of an average pooling.
        Counted by hooks on modules: an activation called as a function is not seen.

`activation_bytes` is what training keeps for the backward pass, roughly: the float32 outputs of
all leaf modules; one that wrote over its input (an in-place ReLU) adds nothing, an LSTM layer adds
its gates and cells.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import nn
from torch._ops import OpOverload
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

NORMS = (_BatchNorm, nn.GroupNorm, nn.LayerNorm)
ACTIVATIONS = (nn.ReLU, nn.ReLU6, nn.LeakyReLU, nn.GELU, nn.SiLU, nn.Hardswish, nn.Sigmoid, nn.Hardsigmoid, nn.Tanh)
AVERAGE_POOLS = (nn.AvgPool2d, nn.AdaptiveAvgPool2d)
FLOAT32_BYTES = 4
# Four gates, the cell and the output, at each token in each layer.
LSTM_KEEPS = 6
# BatchNorm needs two values, so the dry run uses two examples and halves the counts.
EXAMPLES = 2
# In one tensor of a dry run on the CPU; VGG on 224 x 224 pixels has 13 million.
MOST_NUMBERS = 2**24
# Products, and which of their arguments have a row (an image, a matrix) for each row of the output.
ROWS = {
    torch.ops.aten.convolution: (0,),
    torch.ops.aten.mm: (0,),
    torch.ops.aten.addmm: (1,),
    torch.ops.aten.bmm: (0, 1),
    torch.ops.aten.baddbmm: (0, 1, 2),
}

DryRun = Callable[[int], int]
Result = TypeVar("Result")


@dataclass(frozen=True)
class Costs:
    """One net, one example; `params` counts every learnable number once."""

    params: int
    macs: int
    macs_with_norm_and_activations: int
    activation_bytes: int


def measure(net: nn.Module, example_shape: tuple[int, ...]) -> Costs:
    """The costs of `net` (on any device, left as it is) on one example: an image (C, H, W), a vector, or tokens."""

    def count(dry_run: DryRun) -> Costs:
        with _counting(net) as tally:
            once = dry_run(EXAMPLES)
        # What a net does once a batch (an LSTM's gates multiplied back out of their factors) is no example's.
        macs = (dry_run(2 * EXAMPLES) - once) // EXAMPLES
        return Costs(
            params=sum(parameter.numel() for parameter in net.parameters()),
            macs=macs,
            macs_with_norm_and_activations=macs + tally.extra_macs // EXAMPLES,
            activation_bytes=FLOAT32_BYTES * tally.activations // EXAMPLES,
        )

    return in_dry_runs(net, example_shape, count)


def in_dry_runs(net: nn.Module, example_shape: tuple[int, ...], count: Callable[[DryRun], Result]) -> Result:
    """What `count` finds out by dry runs: each passes so many examples of zeros through `net` (left as it is) and its
    hooks, and returns the multiply-accumulates that this would have cost.

    On the CPU, whose operators are compiled: many of the meta device's are Python and import torch._dynamo, half of
    a rank's start. Weights are one zero that is seen everywhere, and products are left out (`_MacCounter`). What
    would take much memory even so is counted, from the beginning, on the meta device.
    """
    try:
        return count(lambda num_examples: _run_on_cpu(net, example_shape, num_examples))
    except _TooLargeError:
        return count(lambda num_examples: _run_on_meta(net, example_shape, num_examples))


def _run_on_cpu(net: nn.Module, example_shape: tuple[int, ...], num_examples: int) -> int:
    weights, buffers = dict(net.named_parameters()), dict(net.named_buffers())
    # A convolution copies its kernels together, rows or no rows.
    kernels = (weight.shape for weight in weights.values() if weight.ndim > 2)
    _check_size((num_examples, *example_shape), *(buffer.shape for buffer in buffers.values()), *kernels)
    batch = torch.zeros(num_examples, *example_shape, dtype=_input_dtype(net))
    tensors = {name: torch.zeros((), dtype=weight.dtype).expand(weight.shape) for name, weight in weights.items()}
    tensors |= {name: torch.zeros(buffer.shape, dtype=buffer.dtype) for name, buffer in buffers.items()}
    # Operators that have no formula because they do too much in one: oneDNN's LSTM, fused attention.
    apart = torch.backends.mkldnn.flags(enabled=False, allow_tf32=None), sdpa_kernel(SDPBackend.MATH)
    # A net in training mode draws for its dropout.
    quiet = torch.random.fork_rng(devices=[]), torch.no_grad(), _one_thread()
    with quiet[0], quiet[1], quiet[2], apart[0], apart[1], _MacCounter() as counter:
        torch.func.functional_call(net, tensors, (batch,))
    return counter.total


def _run_on_meta(net: nn.Module, example_shape: tuple[int, ...], num_examples: int) -> int:
    from torch.utils.flop_counter import FlopCounterMode

    tensors = dict(net.named_parameters()) | dict(net.named_buffers())
    on_meta = {name: tensor.detach().to("meta") for name, tensor in tensors.items()}
    batch = torch.empty(num_examples, *example_shape, dtype=_input_dtype(net), device="meta")
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        torch.func.functional_call(net, on_meta, (batch,))
    return int(counter.get_total_flops()) // 2


def _input_dtype(net: nn.Module) -> torch.dtype:
    return torch.int64 if any(isinstance(module, nn.Embedding) for module in net.modules()) else torch.float32


class _TooLargeError(Exception):
    """A tensor of a dry run has more than `MOST_NUMBERS`."""


def _check_size(*shapes: Sequence[int]) -> None:
    if max(map(math.prod, shapes), default=0) > MOST_NUMBERS:
        raise _TooLargeError


@contextmanager
def _one_thread() -> Iterator[None]:
    """There is little to compute, and threads that wait for each other on a busy machine take longer."""
    num_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(num_threads)


class _MacCounter(TorchDispatchMode):
    """Counts as torch's FlopCounterMode does, for nets whose values do not matter: products come out as zeros.

    torch's formulas themselves import Triton: 0.15 s at the start of every rank.
    """

    total = 0

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        # The wrapper that keeps torch.compile out of such modes imports torch._dynamo, too.
        return False

    def __torch_dispatch__(
        self, func: OpOverload, types: object, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        operator, kwargs = func.overloadpacket, kwargs or {}
        if operator not in ROWS and not func.is_view:  # a weight takes no memory, but a copy of it would
            _check_size(*(tensor.shape for tensor in tensors_in(args)))
        out = _zeros_out(func, args, kwargs) if operator in ROWS else func(*args, **kwargs)
        if isinstance(out, torch.Tensor):
            _check_size(out.shape)  # before the next operator makes more of it
        if operator in ROWS:
            self.total += _macs(operator, args, out)
        return out


def _macs(operator: object, args: tuple[Any, ...], out: torch.Tensor) -> int:
    """Each number of the output is a sum of products: as many as the kernels have weights for it, or as the left matrix
    has columns. A transposed conv spreads each number of its input in the same way.
    """
    if operator is torch.ops.aten.convolution:
        is_transposed = args[6]
        return int((args[0] if is_transposed else out).numel() * math.prod(args[1].shape[1:]))
    left = args[1] if operator in (torch.ops.aten.addmm, torch.ops.aten.baddbmm) else args[0]
    return int(out.numel() * left.shape[-1])


def _zeros_out(func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> torch.Tensor:
    """Zeros of the shape that a product has, which torch itself tells from no rows at all."""
    places = ROWS[func.overloadpacket]
    out = func(*(arg[:0] if place in places else arg for place, arg in enumerate(args)), **kwargs)
    shape = len(args[places[-1]]), *out.shape[1:]
    _check_size(shape)
    return out.new_zeros(shape)


@dataclass
class _Tally:
    extra_macs: int = 0
    activations: int = 0

    def add(self, module: nn.Module, inputs: tuple[torch.Tensor, ...], output: Any) -> None:
        outputs = [out for out in tensors_in(output) if not any(out is given for given in inputs)]
        self.activations += _kept(module, outputs)
        if isinstance(module, NORMS):
            self.extra_macs += 2 * output.numel()
        elif isinstance(module, ACTIVATIONS):
            self.extra_macs += output.numel()
        elif isinstance(module, AVERAGE_POOLS):
            self.extra_macs += inputs[0].numel()


def _kept(module: nn.Module, outputs: list[torch.Tensor]) -> int:
    """How many numbers the backward pass needs of what a leaf module made."""
    if isinstance(module, nn.LSTM):
        return LSTM_KEEPS * module.num_layers * outputs[0].numel()
    return sum(out.numel() for out in outputs)


def tensors_in(values: object) -> list[torch.Tensor]:
    """The tensors in nested tuples, lists and dicts."""
    return [value for value in tree_leaves(values) if isinstance(value, torch.Tensor)]


@contextmanager
def _counting(net: nn.Module) -> Iterator[_Tally]:
    tally = _Tally()
    # An LSTM whose gates are layers of their own computes itself all the same.
    leaves = [module for module in net.modules() if isinstance(module, nn.LSTM) or not any(module.children())]
    handles = [leaf.register_forward_hook(tally.add) for leaf in leaves]
    try:
        yield tally
    finally:
        for handle in handles:
            handle.remove()
