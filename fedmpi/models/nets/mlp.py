"""A multi-layer perceptron. Initialisation: torch's default."""

import math
from collections.abc import Sequence
from typing import Annotated, ClassVar

from pydantic import Field
from torch import nn

from fedmpi.config.fields import Count
from fedmpi.models.nets.shared import chained, linear_layers
from fedmpi.models.options import Inputs, ScaledNet
from fedmpi.models.width import Width


def perceptron(info: Inputs, width: Width, hidden: Sequence[int]) -> nn.Sequential:
    """Makes a net (B, ...) -> (B, num_classes) of hidden layers with ReLU; it flattens its inputs."""
    layers = linear_layers(math.prod(info.example_shape), map(width.of, hidden), info.num_classes)
    return chained(flatten=nn.Flatten(), layers=layers)


class Mlp(ScaledNet):
    kinds: ClassVar[tuple[str, ...]] = ("image", "vector")
    leading_dense: ClassVar[int] = 0  # there is no stem
    make: ClassVar = perceptron
    name: str = "mlp"
    """A multi-layer perceptron on vectors or flattened images."""
    hidden: Annotated[tuple[Count, ...], Field(strict=False, max_length=8)] = (1024, 512)
    """Sizes of the hidden layers; none is multinomial logistic regression."""


class MlpHar(Mlp):
    """The MLP of Hermes's activity recognition: 1,103,366 parameters at 561 features and 6 classes."""

    name: str = "mlp_har"
    """Hermes's perceptron for activity recognition: `mlp` with hidden layers of 1024 and 512."""
