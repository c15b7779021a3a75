"""A net whose parameters and gradients are views of flat buffers.

A rank simulates one client at a time, so the nets of all tiers share three buffers as large as the
largest of them: parameters, gradients, momentum (AdamW has a fourth, of squares). Loading a client is copying into the
first, resetting the optimizer is zeroing the third, and a step is a handful of operations on whole vectors,
however many layers the net has. Nothing is allocated once a rank has started.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.adamw import adamw
from torch.optim.sgd import sgd

from fedmpi.learning.loss_scale import LossScale
from fedmpi.tensors import Layout, Params, specs_of


class Buffers:
    """Parameters, gradients and momentum of whichever net trains, float32, `num_bytes` each. With `squares` also what
    AdamW keeps beside: the mean of squared gradients, and how many steps each of the two groups has taken. With
    `loss_scale` (what each client begins with) the loss is scaled.
    """

    def __init__(
        self, num_bytes: int, device: torch.device | str, *, squares: bool = False, loss_scale: float | None = None
    ) -> None:
        self.device = torch.device(device)
        self.parameters, self.gradients, self.momentum, self.squares = (
            torch.zeros(size, dtype=torch.uint8, device=device) for size in (*[num_bytes] * 3, num_bytes * squares)
        )
        self.steps = torch.zeros(2, device=device)
        self.loss_scale = LossScale(loss_scale, device) if loss_scale else None


@dataclass(frozen=True)
class Sgd:
    """torch's fused SGD of (parameter, gradient, momentum, weight decay) groups of flat vectors.

    As a function: torch.optim.SGD as a class imports torch._dynamo, 2 s at the start of every rank.
    """

    momentum: float
    groups: list[tuple[Tensor, Tensor, Tensor, float]]

    @torch.no_grad()
    def step(self, lr: float, left_out: Tensor | None = None) -> None:
        """One step; none where `left_out` (0-dim float32, on the device) is 1."""
        for parameter, gradient, momentum, weight_decay in self.groups:
            kept: list[Tensor | None] = [momentum if self.momentum else None]
            rule: dict[str, Any] = {"lr": lr, "momentum": self.momentum, "weight_decay": weight_decay}
            rule["found_inf"] = left_out
            sgd([parameter], [gradient], kept, fused=True, dampening=0.0, nesterov=False, maximize=False, **rule)


@dataclass(frozen=True)
class AdamW:
    """torch's fused AdamW of (parameter, gradient, mean gradient, mean square, steps, weight decay) groups.

    I. Loshchilov, F. Hutter: Decoupled Weight Decay Regularization, ICLR 2019, arXiv:1711.05101, Algorithm 2.
    """

    beta1: float
    beta2: float
    eps: float
    groups: list[tuple[Tensor, Tensor, Tensor, Tensor, Tensor, float]]

    @torch.no_grad()
    def step(self, lr: float, left_out: Tensor | None = None) -> None:
        """As that of `Sgd`."""
        rule: dict[str, Any] = {"lr": lr, "beta1": self.beta1, "beta2": self.beta2, "eps": self.eps}
        rule["found_inf"] = left_out
        rule |= {"fused": True, "amsgrad": False, "maximize": False}
        for param, grad, mean, square, steps, decay in self.groups:
            adamw([param], [grad], [mean], [square], [], [steps], weight_decay=decay, **rule)


class FlatNet:
    """A module living in `buffers`, with its optimizer.

    `own_decay` names parameters that weight decay leaves alone. They come last in the buffer, so
    that each of the optimizer's two groups is one contiguous vector.
    """

    def __init__(self, module: nn.Module, layout: Layout, buffers: Buffers) -> None:
        self.layout, self._buffers = layout, buffers
        self.params: Params = layout.views(buffers.parameters)
        self.grads: Params = layout.views(buffers.gradients)
        self.momenta: Params = layout.views(buffers.momentum)
        self._momentum = buffers.momentum[: layout.num_bytes]
        self._squares = buffers.squares[: layout.num_bytes]
        self._gradient = buffers.gradients[: layout.num_bytes]
        self._parameter = buffers.parameters[: layout.num_bytes]
        self.module = _adopt(module, self.params, self.grads).to(buffers.device)
        self._scale = buffers.loss_scale
        if self._scale:
            self._scale.attach(self.module)

    @property
    def device(self) -> torch.device:
        return self._buffers.device

    def with_module(self, module: nn.Module) -> FlatNet:
        """Another module of the same layout in the same buffers."""
        return FlatNet(module, self.layout, self._buffers)

    def optimizer(self, *, momentum: float, weight_decay: float, own_decay: Collection[str]) -> Sgd:
        """SGD over the flat vectors; its momentum lies in the shared buffer (see `reset_momentum`)."""
        param, grad, momenta = (flat.view(torch.float32) for flat in (self._parameter, self._gradient, self._momentum))
        parts = self._groups(weight_decay, own_decay)
        return Sgd(momentum, [(param[part], grad[part], momenta[part], decay) for part, decay in parts])

    def adamw(
        self, *, beta1: float, beta2: float, eps: float, weight_decay: float, own_decay: Collection[str]
    ) -> AdamW:
        """AdamW over the flat vectors; all that it keeps lies in the shared buffers, which have `squares`."""
        flat = self._parameter, self._gradient, self._momentum, self._squares
        param, grad, means, squares = (vector.view(torch.float32) for vector in flat)
        groups = [
            (param[part], grad[part], means[part], squares[part], steps, decay)
            for (part, decay), steps in zip(self._groups(weight_decay, own_decay), self._buffers.steps, strict=True)
        ]
        return AdamW(beta1, beta2, eps, [group for group in groups if group[0].numel()])

    def _groups(self, weight_decay: float, own_decay: Collection[str]) -> Iterator[tuple[slice, float]]:
        """Each group's part of a flat vector of numbers, and its weight decay."""
        split = min((self.layout.offsets[name] for name in own_decay), default=self.layout.num_bytes)
        first = split // torch.float32.itemsize
        yield slice(0, first), weight_decay
        yield slice(first, None), 0.0

    def outputs(self, outputs: Tensor) -> Tensor:
        """What a method has computed from `params` otherwise than by calling `module`, as `module` would return it: in
        fp16 its gradient has to be scaled."""
        return self._scale.outputs(outputs) if self._scale else outputs

    def reset_scale(self) -> None:
        """The loss scale (fp16) that every client begins with."""
        if self._scale:
            self._scale.reset()

    def settle_scale(self) -> Tensor | None:
        """After a backward pass in fp16: 1 if the step is to be left out, because the gradient was not finite; else 0.
        None in other precisions.
        """
        return self._scale.settle(self._gradient.view(torch.float32)) if self._scale else None

    @property
    def left_out(self) -> Tensor | None:
        """What `settle_scale` has returned last."""
        return self._scale.left_out if self._scale else None

    @property
    def num_left_out(self) -> Tensor | None:
        """How many steps of this client `settle_scale` has left out: 0-dim float32, on the device. None in other
        precisions."""
        return self._scale.num_left_out if self._scale else None

    def reset_momentum(self) -> None:
        """Makes the momentum that of a fresh optimizer: SGD's first step on a zero buffer leaves the gradient in it."""
        for kept in (self._momentum, self._squares, self._buffers.steps):
            kept.zero_()

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
        """Zeros for parameters, gradients and what the optimizer keeps, as at the start."""
        for vector in (self._parameter, self._gradient):
            vector.zero_()
        self.reset_momentum()

    def copy_of_parameters(self) -> Tensor:
        """Their bytes, uint8 (layout.num_bytes,)."""
        return self._parameter.clone()

    def copy_of_gradients(self) -> Tensor:
        """As that of parameters."""
        return self._gradient.clone()

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
