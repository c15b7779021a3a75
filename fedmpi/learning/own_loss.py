"""Tries the loss function of a user (`train.loss`)."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from fedmpi import registry
from fedmpi.config.schema import Train
from fedmpi.errors import ConfigError, users_code

if TYPE_CHECKING:
    from fedmpi.data.dataset import DataInfo

_EXAMPLES = 4


def check_loss(train: Train, info: DataInfo) -> None:
    """Tries the user's loss on random outputs. Raises `ConfigError` unless it gives a number, or one for each example,
    with gradients.
    """
    if train.loss == "auto":
        return
    shape = (_EXAMPLES, *info.output_shape)
    outputs = torch.randn(shape, generator=torch.Generator().manual_seed(0), requires_grad=True)
    is_class = info.task in ("classification", "token_classification")
    targets = torch.zeros(shape[:-1], dtype=torch.int64) if is_class else torch.zeros(shape)
    with users_code("train.loss", f"{train.loss} failed on {_EXAMPLES} examples", ConfigError):
        value = registry.import_object(train.loss)(outputs, targets)  # that it can be imported is checked before
    is_loss = isinstance(value, Tensor) and value.shape in ((), (_EXAMPLES,)) and value.requires_grad
    if not is_loss or not math.isfinite(value.detach().mean()):
        given = f"{tuple(value.shape)}" if isinstance(value, Tensor) else type(value).__name__
        expected = f"a finite tensor () or ({_EXAMPLES},) with gradients"
        raise ConfigError("train.loss", f"{train.loss} gives {given} for {_EXAMPLES} examples; expected {expected}")
