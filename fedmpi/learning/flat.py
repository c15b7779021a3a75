"""A net whose parameters and gradients are views of flat buffers.

A rank simulates one client at a time, so the nets of all tiers share three buffers as large as the
largest of them: parameters, gradients, momentum (AdamW has a fourth, of squares). Loading a client is copying into the
first, resetting the optimizer is zeroing the third, and a step is a handful of operations on whole vectors,
however many layers the net has. Nothing is allocated once a rank has started.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn
from torch.optim.adamw import adamw
from torch.optim.sgd import sgd

from fedmpi.learning.loss_scale import LossScale
from fedmpi.strided import subsample_before_narrow_convs
from fedmpi.tensors import Layout, Params, frozen_values, put_buffer, specs_of


class Buffers:
    """Parameters, gradients and momentum of whichever net trains, float32, `num_bytes` each. With `squares` also the
    mean of squared gradients that AdamW keeps. With `loss_scale` (the scale that each client begins with) the loss is
    scaled.
    """

    def __init__(
        self, num_bytes: int, device: torch.device | str, *, squares: bool = False, loss_scale: float | None = None
    ) -> None:
        self.device = torch.device(device)
        self.parameters = torch.zeros(num_bytes, dtype=torch.uint8, device=device)
        self.gradients = torch.zeros_like(self.parameters)
        self.momentum = torch.zeros_like(self.parameters)
        self.squares = torch.zeros_like(self.parameters if squares else self.parameters[:0])
        self.steps = torch.zeros(2, device=device)  # how many AdamW has taken in each of the two groups
        self.loss_scale = LossScale(loss_scale, device) if loss_scale else None
        self._frozen: dict[tuple[str, int], Tensor] = {}

    def moved(self, module: nn.Module) -> nn.Module:
        """Moves a net to the device; frozen values that several nets have in common are moved once."""
        for name, value in frozen_values(module).items():
            key = (name, value.data_ptr())
            if key not in self._frozen:
                self._frozen[key] = value.to(self.device)
            put_buffer(module, name, self._frozen[key])
        return module.to(self.device)


@dataclass(frozen=True)
class Group:
    """A contiguous part of the flat vectors with one weight decay; `squares` and `steps` are AdamW's."""

    parameter: Tensor
    gradient: Tensor
    momentum: Tensor
    squares: Tensor
    steps: Tensor
    weight_decay: float


@dataclass(frozen=True)
class Optimizer:
    """One of torch's fused optimizers, as a function for each group. As a class it would import torch._dynamo, 2 s at
    the start of every rank.
    """

    updates: Sequence[Callable[..., None]]

    @torch.no_grad()
    def step(self, lr: float, left_out: Tensor | None = None) -> None:
        """Takes one step; none where `left_out` (0-dim float32, on the device) is 1."""
        for update in self.updates:
            update(lr=lr, found_inf=left_out, fused=True, maximize=False)


class FlatNet:
    """A module living in `buffers`, with its optimizer; `scale` is the loss scale (fp16), None in other precisions.

    `own_decay` names parameters that weight decay leaves alone. They come last in the buffer, so
    that each of the optimizer's two groups is one contiguous vector.
    """

    def __init__(self, module: nn.Module, layout: Layout, buffers: Buffers) -> None:
        self.layout = layout
        self._buffers = buffers
        self.params: Params = layout.views(buffers.parameters)
        self.grads: Params = layout.views(buffers.gradients)
        self.momenta: Params = layout.views(buffers.momentum)
        self._parameter = buffers.parameters[: layout.num_bytes]
        self._gradient = buffers.gradients[: layout.num_bytes]
        self._momentum = buffers.momentum[: layout.num_bytes]
        self._squares = buffers.squares[: layout.num_bytes]
        self.gradient = self._gradient.view(torch.float32)
        self.module = buffers.moved(_adopt(module, self.params, self.grads))
        subsample_before_narrow_convs(self.module)
        self.scale = buffers.loss_scale
        if self.scale:
            self.scale.attach(self.module)

    @property
    def device(self) -> torch.device:
        return self._buffers.device

    def with_module(self, module: nn.Module) -> FlatNet:
        """Returns another module of the same layout in the same buffers."""
        return FlatNet(module, self.layout, self._buffers)

    def optimizer(self, *, momentum: float, weight_decay: float, own_decay: Collection[str]) -> Optimizer:
        """Returns SGD over the flat vectors; its momentum lies in the shared buffer (see `reset_momentum`)."""
        updates = []
        for group in self._groups(weight_decay, own_decay):
            momenta = [group.momentum if momentum else None]
            update = partial(sgd, [group.parameter], [group.gradient], momenta, weight_decay=group.weight_decay)
            updates.append(partial(update, momentum=momentum, dampening=0.0, nesterov=False))
        return Optimizer(updates)

    def adamw(
        self, *, beta1: float, beta2: float, eps: float, weight_decay: float, own_decay: Collection[str]
    ) -> Optimizer:
        """Returns AdamW over the flat vectors; all that it keeps lies in the shared buffers, which have `squares`.

        I. Loshchilov, F. Hutter: Decoupled Weight Decay Regularization, ICLR 2019, arXiv:1711.05101, Algorithm 2.
        """
        updates = []
        for group in self._groups(weight_decay, own_decay):
            moments = ([group.momentum], [group.squares])
            update = partial(adamw, [group.parameter], [group.gradient], *moments, [], [group.steps])
            updates.append(
                partial(update, weight_decay=group.weight_decay, beta1=beta1, beta2=beta2, eps=eps, amsgrad=False)
            )
        return Optimizer(updates)

    def _groups(self, weight_decay: float, own_decay: Collection[str]) -> list[Group]:
        split = min((self.layout.offsets[name] for name in own_decay), default=self.layout.num_bytes)
        first = split // torch.float32.itemsize
        flat = (self._parameter, self._gradient, self._momentum, self._squares)
        vectors = [vector.view(torch.float32) for vector in flat]
        groups = []
        for place, (part, decay) in enumerate([(slice(0, first), weight_decay), (slice(first, None), 0.0)]):
            parameter, gradient, momentum, squares = (vector[part] for vector in vectors)
            groups.append(Group(parameter, gradient, momentum, squares, self._buffers.steps[place], decay))
        return [group for group in groups if group.parameter.numel()]

    def outputs(self, outputs: Tensor) -> Tensor:
        """Returns outputs that a method has computed without calling `module`, as `module` would return them: in fp16
        their gradient has to be scaled."""
        return self.scale.outputs(outputs) if self.scale else outputs

    def reset_momentum(self) -> None:
        """Makes the momentum that of a fresh optimizer: SGD's first step on a zero buffer leaves the gradient in it."""
        for kept in (self._momentum, self._squares, self._buffers.steps):
            kept.zero_()

    def is_finite(self) -> Tensor:
        """Returns whether all parameters are finite (0-dim bool, on the device)."""
        return torch.isfinite(self._parameter.view(torch.float32)).all()

    @torch.no_grad()
    def clip_gradient(self, largest_norm: float) -> None:
        """Scales the gradient of the whole net down to this Euclidean norm if it is longer; nothing waits."""
        # As torch.nn.utils.clip_grad_norm_, which would visit every tensor of the net.
        self.gradient.mul_((largest_norm / (torch.linalg.vector_norm(self.gradient) + 1e-6)).clamp(max=1.0))

    def zero_gradient(self) -> None:
        self._gradient.zero_()

    def clear(self) -> None:
        """Zeroes parameters, gradients and what the optimizer keeps, as at the start."""
        for vector in (self._parameter, self._gradient):
            vector.zero_()
        self.reset_momentum()

    def copy_of_parameters(self) -> Tensor:
        """Returns their bytes, uint8 (layout.num_bytes,)."""
        return self._parameter.clone()

    def copy_parameters_to(self, target: Tensor) -> None:
        """Saves the parameters into the first bytes of `target` (uint8)."""
        target[: self.layout.num_bytes].copy_(self._parameter)

    def copy_parameters_from(self, source: Tensor) -> None:
        self._parameter.copy_(source[: self.layout.num_bytes])


def net_layout(parameters: Iterable[tuple[str, Tensor]], own_decay: Collection[str], *, channels_last: bool) -> Layout:
    """Returns the layout of a net's parameters, those that decay by themselves at the end."""
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
