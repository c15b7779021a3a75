"""Options of the CIFAR ResNets."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field

from fedmpi.config.schema import Count
from fedmpi.models.options import Inputs, Model, Multiplier
from fedmpi.models.width import Width

if TYPE_CHECKING:
    from torch import nn

# ResNet-152 has 50. Each is a few Python objects for every tier, which alone take seconds for a hundred.
MAX_BLOCKS = 100
Blocks = Annotated[tuple[Count, ...], Field(strict=False, min_length=1, max_length=8)]


class ResNet18(Model):
    """CIFAR ResNet-18: 3x3 stem without max-pool, post-activation BasicBlocks, 11,173,962 parameters at 10 classes."""

    name: str = "resnet18"
    """CIFAR ResNet-18 (FedHM): 3x3 stem, no max-pool, BatchNorm with batch statistics."""
    width: Multiplier = 1.0
    """Width multiplier: stage i has round(width * 64 * 2^i) channels."""
    blocks: Blocks = (2, 2, 2, 2)
    """BasicBlocks in each stage; every stage but the first halves the side and doubles the channels."""
    order: Literal["post", "pre"] = "post"
    """`post`: BatchNorm and ReLU after each conv. `pre`: before it, as in HeteroFL's code (no BatchNorm in shortcuts,
    one before the pooling).
    """

    @property
    def dense_layers(self) -> int:
        """FedHM's rho: the stem and the first block stay dense."""
        return 3

    def problems(self, config: object) -> Iterator[tuple[str, str]]:
        if sum(self.blocks) > MAX_BLOCKS:
            yield "model.blocks", f"{sum(self.blocks)} blocks; allowed: at most {MAX_BLOCKS} in all"

    def net(self, info: Inputs, width: Width) -> nn.Module:
        from fedmpi.models.nets.preresnet import PreResNet
        from fedmpi.models.nets.resnet import ResNet

        net = ResNet if self.order == "post" else PreResNet
        return net(info.example_shape[0], info.num_classes, self.blocks, width.times(self.width))


class ResNet34(ResNet18):
    """CIFAR ResNet-34: as ResNet-18 with (3, 4, 6, 3) blocks, 21,328,292 parameters at 100 classes."""

    name: str = "resnet34"
    """CIFAR ResNet-34 (FedHM): 3x3 stem, no max-pool, BatchNorm with batch statistics."""
    blocks: Blocks = (3, 4, 6, 3)
    """BasicBlocks in each stage; every stage but the first halves the side and doubles the channels."""

    @property
    def dense_layers(self) -> int:
        """FedHM's rho: the stem and the first two stages stay dense (15 convs)."""
        return 1 + 2 * sum(self.blocks[:2])
