"""A multi-layer perceptron. Initialisation: torch's default."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import nn

from fedmpi.models.nets.shared import linear_layers


class Mlp(nn.Module):
    """(B, ...) flattened -> (B, num_classes), through hidden layers with ReLU."""

    def __init__(self, shape: tuple[int, ...], num_classes: int, hidden: Sequence[int]) -> None:
        super().__init__()
        self.layers = linear_layers(math.prod(shape), hidden, num_classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layers(x.flatten(1))
