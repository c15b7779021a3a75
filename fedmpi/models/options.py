"""What can be asked of each model. Imports in milliseconds: a config is checked before torch loads.

A model is an options class with `net(info, width)`, which imports its torch module when called,
and one line in `fedmpi.models.NAMES`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal, Protocol

from pydantic import Field

from fedmpi.config.schema import Count, Positive, Section

if TYPE_CHECKING:
    from torch import nn

Blocks = Annotated[tuple[Count, ...], Field(strict=False, min_length=1, max_length=8)]


class Inputs(Protocol):
    """What a model needs to know of the data; `data.DataInfo` has it."""

    @property
    def kind(self) -> str: ...
    @property
    def example_shape(self) -> tuple[int, ...]: ...
    @property
    def num_classes(self) -> int: ...


class ModelOptions(Protocol):
    """What `build` and the methods need of a model's options."""

    name: str

    @property
    def dense_layers(self) -> int: ...
    def net(self, info: Inputs, width: float) -> nn.Module: ...


class ResNet18(Section):
    """CIFAR ResNet-18: 3x3 stem without max-pool, post-activation BasicBlocks, 11,173,962 parameters at 10 classes."""

    name: Literal["resnet18"] = "resnet18"
    """The CIFAR ResNet-18 of FedHM."""
    width: Positive = 1.0
    """Width multiplier: stage i has round(width * 64 * 2^i) channels."""
    blocks: Blocks = (2, 2, 2, 2)
    """BasicBlocks in each stage; every stage but the first halves the side and doubles the channels."""

    @property
    def dense_layers(self) -> int:
        """FedHM's rho: the stem and the first block stay dense."""
        return 3

    def net(self, info: Inputs, width: float) -> nn.Module:
        from fedmpi.models.resnet import ResNet

        return ResNet(info.example_shape[0], info.num_classes, self.blocks, self.width * width)


class ResNet34(ResNet18):
    """CIFAR ResNet-34: as ResNet-18 with (3, 4, 6, 3) blocks, 21,328,292 parameters at 100 classes."""

    name: Literal["resnet34"] = "resnet34"  # type: ignore[assignment]
    """The CIFAR ResNet-34 of FedHM."""
    blocks: Blocks = (3, 4, 6, 3)
    """BasicBlocks in each stage; every stage but the first halves the side and doubles the channels."""

    @property
    def dense_layers(self) -> int:
        """FedHM's rho: the stem and the first two stages stay dense (15 convs)."""
        return 1 + 2 * sum(self.blocks[:2])


class Torchvision(Section):
    """Any classification net of torchvision, initialised as torchvision does, BatchNorm with batch statistics."""

    name: Annotated[str, Field(pattern=r"^torchvision:\w+$")] = "torchvision:resnet50"
    """`torchvision:` and a name that `torchvision.models.list_models()` knows."""

    @property
    def dense_layers(self) -> int:
        """Only the stem stays dense."""
        return 1

    def net(self, info: Inputs, width: float) -> nn.Module:
        from fedmpi.models.zoo import torchvision_net

        return torchvision_net(self.name, info.num_classes, width)
