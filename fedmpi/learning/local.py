"""A client's local training: epochs of mini-batch SGD or AdamW, with nothing in the loop but the steps.

Per step: one batch out of resident data, forward, backward, the method's regularizer, the optimizer. No
value is read back to the host and nothing but activations is allocated; the losses of all steps
stay on the device and are read once, at the end. Only `on_divergence: upload_last_finite` reads each
loss, because a bad one ends the training.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from itertools import product

import torch
from torch import Tensor
from torch.nn import functional as F

from fedmpi import registry
from fedmpi.config.fields import Task
from fedmpi.config.schema import Train
from fedmpi.data.batches import DeviceData, Draws, batch_bounds
from fedmpi.learning.flat import FlatNet

# The code of arXiv:2111.14655 ends a client's local training at this loss, or at one that is not a number.
LARGEST_LOSS = 1000.0

Loss = Callable[[Tensor, Tensor], Tensor]
Backward = Callable[[FlatNet, Tensor, Tensor, Loss], Tensor]


def token_cross_entropy(logits: Tensor, targets: Tensor) -> Tensor:
    """Returns the mean cross-entropy of the tokens of a batch that have a target.

    `logits` float32 (B, length, classes), `targets` int64 (B, length), -100 where there is none.
    """
    # As rows: torch's kernel for more axes adds up in no fixed order on a GPU.
    return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


_OF_TASK: Mapping[str, Loss] = {
    "token_classification": token_cross_entropy,
    "regression": F.mse_loss,
    "multi_label": F.binary_cross_entropy_with_logits,
}


class MaskedCrossEntropy:
    """Cross-entropy in which logits of classes that the client does not have are overwritten by 0.

    `present` is a bool vector over the classes, or None for plain cross-entropy (arXiv:2010.01264,
    section 3: the constant is 0, not minus infinity, and only in training).
    """

    def __init__(self, present: Tensor | None) -> None:
        self.absent = None if present is None else ~present

    def __call__(self, logits: Tensor, targets: Tensor) -> Tensor:
        if self.absent is not None:
            logits = logits.masked_fill(self.absent, 0.0)
        return F.cross_entropy(logits.float(), targets)


def loss_of(train: Train, task: Task, present: Tensor | None = None) -> Loss:
    """Returns the mean loss of a batch as a function of outputs and targets; `present` are the classes of a client."""
    if train.loss == "auto" and task == "classification":
        return MaskedCrossEntropy(present)
    loss: Loss = _OF_TASK[task] if train.loss == "auto" else registry.import_object(train.loss)

    def mean(outputs: Tensor, targets: Tensor) -> Tensor:
        return loss(outputs.float(), targets).mean()

    return mean


def plain_step(net: FlatNet, inputs: Tensor, targets: Tensor, loss: Loss) -> Tensor:
    """Adds the gradients of one mini-batch's loss to the net's gradient buffer; returns the loss (0-dim)."""
    return gradients(loss(net.module(inputs), targets))


def gradients(value: Tensor) -> Tensor:
    """Adds the gradients of a loss to those of the parameters it was computed with; returns it detached."""
    torch.autograd.backward(value)
    return value.detach()


@dataclass(frozen=True)
class TrainOutcome:
    """`loss` is the mean over all `steps` done, of which fp16 left out `left_out`; `finite` whether every loss was
    finite and, if it is cross-entropy, at most 1000.
    """

    loss: float
    steps: int
    finite: bool
    left_out: int = 0


class LocalTrainer:
    """Trains one net for one client after another; holds what all of them share."""

    def __init__(self, net: FlatNet, data: DeviceData, train: Train, own_decay: list[str]) -> None:
        self.net = net
        self.data = data
        self.train = train
        self._own_decay = [name for name in net.params if name in own_decay]
        self._optimizer_step = net.optimizer(train, self._own_decay)
        is_cross_entropy = train.loss == "auto" and data.info.task in ("classification", "token_classification")
        self._largest_loss = LARGEST_LOSS if is_cross_entropy else math.inf
        self._clips = math.isfinite(train.clip_norm)
        keeps_last = train.on_divergence == "upload_last_finite"
        self._last_finite = torch.empty_like(net.parameter) if keeps_last else None

    def with_net(self, net: FlatNet, batch_size: int) -> LocalTrainer:
        """Returns a trainer of another net in batches of this size, whatever the losses are."""
        other = {"batch_size": batch_size, "drop_last": False, "on_divergence": "fail"}
        return LocalTrainer(net, self.data, self.train.model_copy(update=other), self._own_decay)

    def run(
        self, draws: Draws, lr: float, loss: Loss, backward: Backward, after_backward: Callable[[FlatNet], None]
    ) -> TrainOutcome:
        """Trains on the examples in `draws`, epoch by epoch, from a momentum of zero."""
        net = self.net
        net.module.train()
        net.reset_momentum()
        if net.scale:
            net.scale.reset()
        if self._last_finite is not None:
            self._last_finite.copy_(net.parameter)
        num_left_out = net.scale.num_left_out if net.scale else None
        num_epochs, num_examples = draws.examples.shape
        batches = list(product(range(num_epochs), batches_of(self.train, num_examples)))[: draws.steps]
        losses = torch.zeros(len(batches), device=draws.examples.device)
        for step, (epoch, bounds) in enumerate(batches):
            losses[step] = self.gradient(draws, epoch, bounds, backward, loss)
            if self._last_finite is not None:
                if not bool(losses[step].isfinite() & (losses[step] <= self._largest_loss)):
                    self.restore_last_finite()
                    return outcome_of(losses[: step + 1], num_left_out, self._largest_loss)
                self._last_finite.copy_(net.parameter)
            left_out = net.scale.settle(net.gradient) if net.scale else None
            after_backward(net)
            if self._clips:
                net.clip_gradient(self.train.clip_norm)
            self._optimizer_step(lr, left_out)
        return outcome_of(losses, num_left_out, self._largest_loss)

    def gradient(self, draws: Draws, epoch: int, bounds: tuple[int, int], backward: Backward, loss: Loss) -> Tensor:
        """Computes the gradients of one mini-batch into the net's buffer, which is zeroed first; returns the loss
        (0-dim)."""
        inputs, targets = self.data.train_batch(draws, epoch, *bounds)
        self.net.gradient.zero_()
        dtype = {"bf16": torch.bfloat16, "fp16": torch.float16}.get(self.train.precision)
        with torch.autocast(inputs.device.type, dtype=dtype) if dtype else nullcontext():
            return backward(self.net, inputs, targets, loss)

    def restore_last_finite(self) -> None:
        """Restores the last parameters whose loss was finite (under `upload_last_finite`)."""
        assert self._last_finite is not None
        self.net.parameter.copy_(self._last_finite)


def batches_of(train: Train, num_examples: int) -> list[tuple[int, int]]:
    """Returns where the batches of an epoch on so many examples begin and end. Under `drop_last` those of full size, or
    the only one, if it is smaller.
    """
    bounds = batch_bounds(num_examples, train.batch_size)
    if not train.drop_last:
        return bounds
    whole = [(start, start + train.batch_size) for start, stop in bounds if stop - start >= train.batch_size]
    return whole or bounds[:1]


def num_steps(num_batches: int, epochs: int, steps: int, share: float) -> int:
    """Returns how many steps a client takes whose epoch has so many batches: `share` of `steps`, or of its epochs if
    `steps` is 0; one or more where it has examples.
    """
    whole = (steps or epochs * num_batches) if num_batches else 0
    return max(min(1, whole), round(share * whole))


def step_sizes(train: Train, num_examples: float, share: float = 1.0) -> list[int]:
    """Returns the number of examples in each step of a client that has so many and does `share` of its work."""
    bounds = batches_of(train, round(num_examples))
    steps = num_steps(len(bounds), train.local_epochs, train.local_steps, share)
    sizes = [stop - start for start, stop in bounds]
    return [sizes[step % len(sizes)] for step in range(steps)]


def outcome_of(losses: Tensor, num_left_out: Tensor | None = None, largest_loss: float = LARGEST_LOSS) -> TrainOutcome:
    """Returns the outcome of steps with these losses, float32 (steps,); waits for the device.

    fp16 left out `left_out` of them (0-dim, on the same device).
    """
    # Both in one tensor, because each that crosses to the host is waited for.
    read = losses if num_left_out is None else torch.cat([losses, num_left_out[None]])
    values, counted = read.to("cpu", torch.float64).split([len(losses), len(read) - len(losses)])
    finite = bool((torch.isfinite(values) & (values <= largest_loss)).all())
    return TrainOutcome(float(values.mean()) if len(values) else 0.0, len(values), finite, int(counted.sum()))
