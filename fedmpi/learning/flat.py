"""A net whose parameters and gradients are views of flat buffers.

A rank simulates one client at a time, so the nets of all tiers share three buffers as large as the
largest of them: parameters, gradients, momentum. Loading a client is copying into the first,
resetting the optimizer is zeroing the third, and SGD is a handful of operations on whole vectors,
however many layers the net has. Nothing is allocated once a rank has started.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.sgd import sgd

from fedmpi.tensors import Layout, Params, specs_of

FLOAT32_BYTES = 4


class Buffers:
    """Parameters, gradients and momentum of whichever net trains, float32, `num_bytes` each."""

    def __init__(self, num_bytes: int, device: torch.device | str) -> None:
        self.device = torch.device(device)
        self.parameters, self.gradients, self.momentum = (
            torch.zeros(num_bytes, dtype=torch.uint8, device=device) for _ in range(3)
        )


@dataclass(frozen=True)
class Sgd:
    """torch's fused SGD of (parameter, gradient, momentum, weight decay) groups of flat vectors.

    As a function: torch.optim.SGD as a class imports torch._dynamo, 2 s at the start of every rank.
    """

    momentum: float
    groups: list[tuple[Tensor, Tensor, Tensor, float]]

    @torch.no_grad()
    def step(self, lr: float) -> None:
        for parameter, gradient, momentum, weight_decay in self.groups:
            kept: list[Tensor | None] = [momentum if self.momentum else None]
            rule: dict[str, Any] = {"lr": lr, "momentum": self.momentum, "weight_decay": weight_decay}
            sgd([parameter], [gradient], kept, fused=True, dampening=0.0, nesterov=False, maximize=False, **rule)


class FlatNet:
    """A module living in `buffers`, with its SGD.

    `own_decay` names parameters that weight decay leaves alone. They come last in the buffer, so
    that each of SGD's two groups is one contiguous vector.
    """

    def __init__(self, module: nn.Module, layout: Layout, buffers: Buffers) -> None:
        self.layout, self._buffers = layout, buffers
        self.params: Params = layout.views(buffers.parameters)
        self.grads: Params = layout.views(buffers.gradients)
        self.momenta: Params = layout.views(buffers.momentum)
        self._momentum = buffers.momentum[: layout.num_bytes]
        self._gradient = buffers.gradients[: layout.num_bytes]
        self._parameter = buffers.parameters[: layout.num_bytes]
        self.module = _adopt(module, self.params, self.grads).to(buffers.device)

    def with_module(self, module: nn.Module) -> FlatNet:
        """Another module of the same layout in the same buffers."""
        return FlatNet(module, self.layout, self._buffers)

    def optimizer(self, *, momentum: float, weight_decay: float, own_decay: Collection[str]) -> Sgd:
        """SGD over the flat vectors; its momentum lies in the shared buffer (see `reset_momentum`)."""
        split = min((self.layout.offsets[name] for name in own_decay), default=self.layout.num_bytes)
        param, grad, momenta = (flat.view(torch.float32) for flat in (self._parameter, self._gradient, self._momentum))
        parts = (slice(0, split // FLOAT32_BYTES), weight_decay), (slice(split // FLOAT32_BYTES, None), 0.0)
        return Sgd(momentum, [(param[part], grad[part], momenta[part], decay) for part, decay in parts])

    def reset_momentum(self) -> None:
        """As a fresh optimizer: SGD's first step on a zero buffer leaves the gradient in it."""
        self._momentum.zero_()

    def is_finite(self) -> Tensor:
        """Whether all parameters are finite (0-dim bool, on the device)."""
        return torch.isfinite(self._parameter.view(torch.float32)).all()

    @torch.no_grad()
    def clip_gradient(self, largest_norm: float) -> None:
        """Scales the gradient of the whole net down to this Euclidean norm if it is longer; nothing waits."""
        gradient = self._gradient.view(torch.float32)
        # As torch.nn.utils.clip_grad_norm_, which would visit every tensor of the net.
        gradient.mul_((largest_norm / (torch.linalg.vector_norm(gradient) + 1e-6)).clamp(max=1.0))

    def zero_gradient(self) -> None:
        self._gradient.zero_()

    def clear(self) -> None:
        """Zeros for parameters, gradients and momentum, as at the start."""
        for vector in (self._parameter, self._gradient, self._momentum):
            vector.zero_()

    def copy_of_parameters(self) -> Tensor:
        """Their bytes, uint8 (layout.num_bytes,)."""
        return self._parameter.clone()

    def copy_parameters_to(self, target: Tensor) -> None:
        """Saves the parameters into the first bytes of `target` (uint8)."""
        target[: self.layout.num_bytes].copy_(self._parameter)

    def copy_parameters_from(self, source: Tensor) -> None:
        self._parameter.copy_(source[: self.layout.num_bytes])


def net_layout(parameters: Iterable[tuple[str, Tensor]], own_decay: Collection[str], *, channels_last: bool) -> Layout:
    """The layout of a net's parameters, those that decay by themselves at the end."""
    specs = specs_of(parameters, channels_last=channels_last)
    return Layout.of(dict(sorted(specs.items(), key=lambda item: item[0] in own_decay)))


def _adopt(module: nn.Module, params: Params, grads: Params) -> nn.Module:
    """Makes every parameter of `module` a view of the flat buffers; values are not kept, ties between layers are."""
    adopted = {}
    for name, old in module.named_parameters():
        adopted[id(old)] = nn.Parameter(params[name])
        adopted[id(old)].grad = grads[name]
    for part in module.modules():
        for name, tied in part._parameters.items():
            if tied is not None:
                part._parameters[name] = adopted[id(tied)]
    return module
