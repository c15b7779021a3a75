"""What tests of models give and count: inputs without a data set, and parameters."""

from __future__ import annotations

from dataclasses import dataclass

from torch import nn


@dataclass(frozen=True)
class Info:
    """As a data set's info, for the shapes alone."""

    kind: str = "image"
    example_shape: tuple[int, ...] = (1, 8, 8)
    num_classes: int = 4
    vocabulary_size: int = 11


def params(net: nn.Module) -> int:
    return sum(parameter.numel() for parameter in net.parameters())
