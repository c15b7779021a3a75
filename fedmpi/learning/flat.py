"""A net whose parameters and gradients are views of flat buffers.

A rank simulates one client at a time, so the nets of all tiers share three buffers as large as the
largest of them: parameters, gradients, momentum (AdamW has a fourth, of squares). Loading a client is copying into the
first, resetting the optimizer is zeroing the third, and a step is a handful of operations on whole vectors,
however many layers the net has. Nothing is allocated once a rank has started.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.adamw import adamw
from torch.optim.sgd import sgd

from fedmpi.config.schema import Train
from fedmpi.learning.loss_scale import LossScale
from fedmpi.strided import subsample_before_narrow_convs
from fedmpi.tensors import Layout, Params, frozen_values, put_buffer, renew_parameters, specs_of


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


class FlatNet:
    """A module living in `buffers`, with its optimizer; `scale` is the loss scale (fp16), None in other precisions.

    `params` and `grads` are tensors by name, `parameter` and `gradient` all of them as one vector, float32. Parameters
    that weight decay leaves alone (`own_decay`) come last, so that each of the optimizer's two groups is contiguous.
    """

    def __init__(self, module: nn.Module, layout: Layout, buffers: Buffers) -> None:
        def vector(buffer: Tensor) -> Tensor:
            return buffer[: layout.num_bytes].view(torch.float32)

        self.layout = layout
        self._buffers = buffers
        self.params: Params = layout.views(buffers.parameters)
        self.grads: Params = layout.views(buffers.gradients)
        self.parameter = vector(buffers.parameters)
        self.gradient = vector(buffers.gradients)
        self._momentum = vector(buffers.momentum)
        self._squares = vector(buffers.squares)
        # Values are not kept, ties between layers are.
        renew_parameters(module, lambda name, _: self.params[name])
        for name, value in module.named_parameters():
            value.grad = self.grads[name]
        self.module = buffers.moved(module)
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

    def optimizer(self, train: Train, own_decay: Collection[str]) -> Callable[[float, Tensor | None], None]:
        """Returns the step of SGD or AdamW over the flat vectors, as a function of the rate and of whether it is left
        out (0-dim float32 on the device, 1: yes). What it keeps lies in the shared buffers (see `reset_momentum`).

        I. Loshchilov, F. Hutter: Decoupled Weight Decay Regularization, ICLR 2019, arXiv:1711.05101, Algorithm 2.
        """
        split = min((self.layout.offsets[name] for name in own_decay), default=self.layout.num_bytes)
        first = split // torch.float32.itemsize
        # torch's fused optimizers as functions: as classes they would import torch._dynamo, 2 s at each rank's start.
        updates: list[Callable[..., None]] = []
        for group, (part, decay) in enumerate([(slice(0, first), train.weight_decay), (slice(first, None), 0.0)]):
            vectors = ([self.parameter[part]], [self.gradient[part]])
            momentum = [self._momentum[part]]
            if not vectors[0][0].numel():
                continue
            if train.optimizer == "adamw":
                kept: Any = (momentum, [self._squares[part]], [], [self._buffers.steps[group]])
                update = partial(adamw, *vectors, *kept, beta1=0.9, beta2=0.999, eps=1e-8, amsgrad=False)
            else:
                kept = momentum if train.momentum else [None]
                update = partial(sgd, *vectors, kept, momentum=train.momentum, dampening=0.0, nesterov=False)
            updates.append(partial(update, weight_decay=decay, fused=True, maximize=False))

        @torch.no_grad()
        def step(lr: float, left_out: Tensor | None = None) -> None:
            for update in updates:
                update(lr=lr, found_inf=left_out)

        return step

    def outputs(self, outputs: Tensor) -> Tensor:
        """Returns outputs that a method has computed without calling `module`, as `module` would return them: in fp16
        their gradient has to be scaled."""
        return self.scale.outputs(outputs) if self.scale else outputs

    def reset_momentum(self) -> None:
        """Makes the momentum that of a fresh optimizer: SGD's first step on a zero buffer leaves the gradient in it."""
        for kept in (self._momentum, self._squares, self._buffers.steps):
            kept.zero_()

    @torch.no_grad()
    def clip_gradient(self, largest_norm: float) -> None:
        """Scales the gradient of the whole net down to this Euclidean norm if it is longer; nothing waits."""
        # As torch.nn.utils.clip_grad_norm_, which would visit every tensor of the net.
        self.gradient.mul_((largest_norm / (torch.linalg.vector_norm(self.gradient) + 1e-6)).clamp(max=1.0))


def net_layout(parameters: Iterable[tuple[str, Tensor]], own_decay: Collection[str], *, channels_last: bool) -> Layout:
    """Returns the layout of a net's parameters, those that decay by themselves at the end."""
    specs = specs_of(parameters, channels_last=channels_last)
    return Layout.of(dict(sorted(specs.items(), key=lambda item: item[0] in own_decay)))
