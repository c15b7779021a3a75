"""A multi-layer perceptron. Initialisation: torch's default."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import nn

from fedmpi.models.nets.shared import linear_layers
from fedmpi.models.options import Inputs
from fedmpi.models.width import Width


class Mlp(nn.Module):
    """(B, ...) flattened -> (B, num_classes), through hidden layers with ReLU."""

    def __init__(self, info: Inputs, width: Width, hidden: Sequence[int]) -> None:
        super().__init__()
        sizes = [width.of(size) for size in hidden]
        self.layers = linear_layers(math.prod(info.example_shape), sizes, info.num_classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layers(x.flatten(1))
