"""What depends on whether targets are classes, numbers or labels: the loss, and what a test counts.

A score is a mean over examples, so each batch adds its points, and an exact sum makes the score the same on any ranks.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from fedmpi import registry
from fedmpi.config.schema import Train
from fedmpi.data.dataset import DataInfo, Task
from fedmpi.errors import ConfigError, UnknownError, UserError, as_one_line
from fedmpi.learning.local import Loss, MaskedCrossEntropy

_OF_TASK: Mapping[str, Loss] = {"regression": F.mse_loss, "multi_label": F.binary_cross_entropy_with_logits}
_EXAMPLES = 4


def loss_of(train: Train, task: Task, present: Tensor | None = None) -> Loss:
    """Returns the mean loss of a batch as a function of outputs and targets; `present` are the classes of a client."""
    if train.loss == "auto" and task == "classification":
        return MaskedCrossEntropy(present)
    loss: Loss = _OF_TASK[task] if train.loss == "auto" else registry.import_object(train.loss)

    def mean(outputs: Tensor, targets: Tensor) -> Tensor:
        return loss(outputs.float(), targets).mean()

    return mean


@dataclass(frozen=True)
class Scoring:
    """How a net is tested: its loss, and points that make its score, the accuracy (of each label) or r2."""

    task: Task
    loss: Loss
    """The mean over a batch."""
    unit: float = 1.0
    """What the points are divided by beside the number of examples: labels, or the variance of the test's targets."""

    @classmethod
    def of(cls, train: Train, task: Task, test_targets: np.ndarray) -> Scoring:
        """Returns the scoring of nets that are tested with such targets, (N,) or (N, outputs)."""
        unit = 1.0
        if task == "multi_label":
            unit = float(test_targets.shape[1])
        elif task == "regression":
            unit = float(test_targets.var(axis=0, dtype=np.float64).sum())
        return cls(task, loss_of(train, task), unit)

    @property
    def name(self) -> str:
        """Returns the score's key in records."""
        return "r2" if self.task == "regression" else "accuracy"

    def points(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Counts classes or labels that are right, or adds up squared errors; float64 (), on the device."""
        if self.task == "classification":
            return (outputs.argmax(1) == targets).sum().double()
        if self.task == "multi_label":
            return ((outputs > 0) == (targets > 0)).sum().double()
        return (outputs.double() - targets).square().sum()

    def of_batch(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Returns the points of a batch and the sum of its losses, float64 (2,), on the device."""
        if isinstance(self.loss, MaskedCrossEntropy):
            loss = F.cross_entropy(outputs, targets, reduction="sum").double()
        else:
            loss = self.loss(outputs, targets).double() * len(targets)
        return torch.stack([self.points(outputs, targets), loss])

    def score(self, points: float, num_examples: int) -> float:
        """Returns the share of classes or labels that are right; of numbers 1 - the mean squared error / variance."""
        share = points / (num_examples * self.unit)
        return 1 - share if self.task == "regression" else share


def check_loss(train: Train, info: DataInfo) -> None:
    """Tries the user's loss on random outputs. Raises `ConfigError` unless it gives a number, or one for each example,
    with gradients.
    """
    if train.loss == "auto":
        return
    outputs = torch.randn(_EXAMPLES, info.num_classes, generator=torch.Generator().manual_seed(0), requires_grad=True)
    is_class = info.task == "classification"
    targets = torch.zeros(_EXAMPLES, dtype=torch.int64) if is_class else torch.zeros(_EXAMPLES, info.num_classes)
    try:
        value = registry.import_object(train.loss)(outputs, targets)
    except UnknownError as error:
        raise ConfigError("train.loss", f"{error}; allowed: auto, package.module:function") from None
    except UserError:
        raise
    except (Exception, SystemExit) as error:  # whatever the user's code does
        raise ConfigError("train.loss", f"{train.loss} failed on {_EXAMPLES} examples: {as_one_line(error)}") from error
    is_loss = isinstance(value, Tensor) and value.shape in ((), (_EXAMPLES,)) and value.requires_grad
    if not is_loss or not math.isfinite(value.detach().mean()):
        given = f"{tuple(value.shape)}" if isinstance(value, Tensor) else type(value).__name__
        expected = f"a finite tensor () or ({_EXAMPLES},) with gradients"
        raise ConfigError("train.loss", f"{train.loss} gives {given} for {_EXAMPLES} examples; expected {expected}")
