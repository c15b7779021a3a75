"""What one example costs a net: parameters, multiply-accumulates, activations.

The planning step, before a run; nothing is computed and no memory is taken, because everything
runs on the meta device. Two counts of the compute (FedHM, arXiv:2111.14655; methods.md 2.12):

`macs`  multiply-accumulates of convs and matrix products: torch's FlopCounterMode, halved.
`macs_with_norm_and_activations`  the rule behind FedHM's figures: macs, and 2 for each output of
        a norm layer, 1 for each output of an activation, 1 for each input of an average pooling.
        Counted by hooks on modules: an activation called as a function is not seen.

`activation_bytes` is what training keeps for the backward pass, roughly: the float32 outputs of
all leaf modules; one that wrote over its input (an in-place ReLU) adds nothing, an LSTM layer adds
its gates and cells.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils.flop_counter import FlopCounterMode

NORMS = (_BatchNorm, nn.GroupNorm, nn.LayerNorm)
ACTIVATIONS = (nn.ReLU, nn.ReLU6, nn.LeakyReLU, nn.GELU, nn.SiLU, nn.Hardswish, nn.Sigmoid, nn.Hardsigmoid, nn.Tanh)
AVERAGE_POOLS = (nn.AvgPool2d, nn.AdaptiveAvgPool2d)
FLOAT32_BYTES = 4
# Four gates, the cell and the output, at each token in each layer.
LSTM_KEEPS = 6
# Batch statistics of one value do not exist; two examples, then half of everything.
EXAMPLES = 2


@dataclass(frozen=True)
class Costs:
    """One net, one example; `params` counts every learnable number once."""

    params: int
    macs: int
    macs_with_norm_and_activations: int
    activation_bytes: int


def measure(net: nn.Module, example_shape: tuple[int, ...]) -> Costs:
    """The costs of `net` (on any device, left as it is) on one example: an image (C, H, W), a vector, or tokens."""
    tensors = dict(net.named_parameters()) | dict(net.named_buffers())
    on_meta = {name: tensor.detach().to("meta") for name, tensor in tensors.items()}
    batch = meta_batch(net, example_shape)
    with torch.no_grad(), _counting(net) as tally:
        flops = _flops(net, on_meta, batch)
    # What a net does once a batch (an LSTM's gates multiplied back out of their factors) is no example's.
    with torch.no_grad():
        macs = (_flops(net, on_meta, torch.cat([batch, batch])) - flops) // 2 // EXAMPLES
    return Costs(
        params=sum(parameter.numel() for parameter in net.parameters()),
        macs=macs,
        macs_with_norm_and_activations=macs + tally.extra_macs // EXAMPLES,
        activation_bytes=FLOAT32_BYTES * tally.activations // EXAMPLES,
    )


def _flops(net: nn.Module, on_meta: dict[str, torch.Tensor], batch: torch.Tensor) -> int:
    """Of one forward pass."""
    with FlopCounterMode(display=False) as counter:
        torch.func.functional_call(net, on_meta, (batch,))
    return int(counter.get_total_flops())


def meta_batch(net: nn.Module, example_shape: tuple[int, ...]) -> torch.Tensor:
    """A batch of two examples without values: int64 for a net that embeds tokens, else float32."""
    embeds = any(isinstance(module, nn.Embedding) for module in net.modules())
    return torch.empty(EXAMPLES, *example_shape, dtype=torch.int64 if embeds else torch.float32, device="meta")


@dataclass
class _Tally:
    extra_macs: int = 0
    activations: int = 0

    def add(self, module: nn.Module, inputs: tuple[torch.Tensor, ...], output: object) -> None:
        outputs = [out for out in _tensors(output) if not any(out is given for given in inputs)]
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


def _tensors(output: object) -> list[torch.Tensor]:
    if isinstance(output, torch.Tensor):
        return [output]
    return [tensor for part in output for tensor in _tensors(part)] if isinstance(output, (tuple, list)) else []


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
