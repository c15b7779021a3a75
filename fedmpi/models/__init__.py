"""Plain torch nets by name. They know nothing of low rank, clients or rounds."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fedmpi.config.schema import Choice
from fedmpi.lazy import exports
from fedmpi.models.options import Inputs, ModelOptions, ResNet18, ResNet34, Torchvision

if TYPE_CHECKING:
    from fedmpi.models.create import build, skeleton
    from fedmpi.models.norm import use_batch_statistics

__all__ = [
    "NAMES",
    "Inputs",
    "ModelOptions",
    "ResNet18",
    "ResNet34",
    "Torchvision",
    "build",
    "skeleton",
    "use_batch_statistics",
]

NAMES: dict[str, Choice] = {
    "resnet18": Choice(ResNet18, "CIFAR ResNet-18 (FedHM): 3x3 stem, no max-pool, BatchNorm with batch statistics"),
    "resnet34": Choice(ResNet34, "CIFAR ResNet-34 (FedHM): 3x3 stem, no max-pool, BatchNorm with batch statistics"),
    "torchvision:": Choice(Torchvision, "any classification net of torchvision by its name, as torchvision:resnet50"),
}

__getattr__ = exports(__name__, {"build": "create", "skeleton": "create", "use_batch_statistics": "norm"})
