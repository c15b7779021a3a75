"""A multi-layer perceptron. Initialisation: torch's default."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Annotated, ClassVar

import torch
from pydantic import Field
from torch import nn

from fedmpi.config.fields import Count
from fedmpi.models.nets.shared import linear_layers
from fedmpi.models.options import Inputs, ScaledNet
from fedmpi.models.width import Width


class Perceptron(nn.Module):
    """(B, ...) flattened -> (B, num_classes), through hidden layers with ReLU."""

    def __init__(self, info: Inputs, width: Width, hidden: Sequence[int]) -> None:
        super().__init__()
        sizes = [width.of(size) for size in hidden]
        self.layers = linear_layers(math.prod(info.example_shape), sizes, info.num_classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layers(x.flatten(1))


class Mlp(ScaledNet):
    kinds: ClassVar[tuple[str, ...]] = ("image", "vector")
    leading_dense: ClassVar[int] = 0  # there is no stem
    make: ClassVar = Perceptron
    name: str = "mlp"
    """A multi-layer perceptron on vectors or flattened images."""
    hidden: Annotated[tuple[Count, ...], Field(strict=False, max_length=8)] = (1024, 512)
    """Sizes of the hidden layers; none is multinomial logistic regression."""


class MlpHar(Mlp):
    """The MLP of Hermes's activity recognition: 1,103,366 parameters at 561 features and 6 classes."""

    name: str = "mlp_har"
    """Hermes's perceptron for activity recognition: `mlp` with hidden layers of 1024 and 512."""
