"""The CIFAR ResNets of FedHM, at any depth, width, number of classes and input size.

He, Zhang, Ren, Sun, "Deep residual learning for image recognition", arXiv:1512.03385, as used by
Yao et al., "FedHM: Efficient federated learning for heterogeneous models via low-rank
factorization", arXiv:2111.14655. Initialisation: Kaiming normal, fan-in, on every conv and linear
weight; BatchNorm 1 and 0; linear bias as torch does it.

And their pre-activation twins, BatchNorm before each conv, of HeteroFL's code: He, Zhang,
Ren, Sun, "Identity mappings in deep residual networks", arXiv:1603.05027, as used by Diao, Ding, Tarokh,
"HeteroFL: Computation and communication efficient federated learning for heterogeneous clients",
arXiv:2010.01264: the stem is a bare conv, shortcuts have no BatchNorm, and one BatchNorm and ReLU stand
before the pooling. Initialised alike.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Annotated, ClassVar, Literal

import torch
from pydantic import Field
from torch import nn

from fedmpi.config.fields import Count
from fedmpi.config.schema import Config
from fedmpi.errors import counted
from fedmpi.models.nets.shared import Normalized, chained, kaiming_normal
from fedmpi.models.options import Inputs, Multiplier, ScaledNet
from fedmpi.models.width import Width

STEM_WIDTH = 64
# ResNet-152 has 50. Each is a few Python objects for every tier, which alone take seconds for a hundred.
MAX_BLOCKS = 100
Blocks = Annotated[tuple[Count, ...], Field(strict=False, min_length=1, max_length=8)]


def conv(in_channels: int, out_channels: int, kernel: int, stride: int = 1) -> nn.Conv2d:
    return nn.Conv2d(in_channels, out_channels, kernel, stride, kernel // 2, bias=False)


def batch_norm(channels: int) -> nn.BatchNorm2d:
    return nn.BatchNorm2d(channels, track_running_stats=False)


class BasicBlock(nn.Module):
    """conv, BN, ReLU, conv, BN, plus the shortcut, ReLU; (B, m, H, W) -> (B, n, H/stride, W/stride)."""

    def __init__(self, in_channels: int, out_channels: int, stride: int) -> None:
        super().__init__()
        self.conv1 = conv(in_channels, out_channels, 3, stride)
        self.bn1 = batch_norm(out_channels)
        self.conv2 = conv(out_channels, out_channels, 3)
        self.bn2 = batch_norm(out_channels)
        # A module, called twice, so that a count by hooks sees both.
        self.relu = nn.ReLU(inplace=True)
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or in_channels != out_channels:
            self.shortcut = nn.Sequential(conv(in_channels, out_channels, 1, stride), batch_norm(out_channels))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out = self.relu(self.bn1(self.conv1(x)))
        return self.relu(self.bn2(self.conv2(out)) + self.shortcut(x))


class PreBlock(nn.Module):
    """BN, ReLU, conv, BN, ReLU, conv, plus the shortcut; (B, m, H, W) -> (B, n, H/stride, W/stride).

    The identity shortcut takes the block's input, a conv in it what the first ReLU gives.
    """

    def __init__(self, in_channels: int, out_channels: int, stride: int) -> None:
        super().__init__()
        self.bn1 = batch_norm(in_channels)
        self.conv1 = conv(in_channels, out_channels, 3, stride)
        self.bn2 = batch_norm(out_channels)
        self.conv2 = conv(out_channels, out_channels, 3)
        self.relu = nn.ReLU(inplace=True)
        changes_shape = stride != 1 or in_channels != out_channels
        self.shortcut = conv(in_channels, out_channels, 1, stride) if changes_shape else None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out = self.relu(self.bn1(x))
        kept = x if self.shortcut is None else self.shortcut(out)
        return self.conv2(self.relu(self.bn2(self.conv1(out)))) + kept


def resnet(info: Inputs, width: Width, blocks: Sequence[int], *, is_pre: bool) -> nn.Sequential:
    """Makes a net of `blocks` BasicBlocks or PreBlocks in each stage; (B, in_channels, H, W) -> (B, num_classes)."""
    widths = [width.of(STEM_WIDTH * 2**stage) for stage in range(len(blocks))]
    block: Callable[[int, int, int], nn.Module] = PreBlock if is_pre else BasicBlock
    parts: dict[str, nn.Module] = {"conv1": conv(info.example_shape[0], widths[0], 3)}
    if not is_pre:
        parts |= {"bn1": batch_norm(widths[0]), "relu": nn.ReLU(inplace=True)}
    stages = nn.Sequential()
    channels = widths[0]
    for stage, (count, outputs) in enumerate(zip(blocks, widths, strict=True)):
        first = block(channels, outputs, 1 if stage == 0 else 2)
        stages.append(nn.Sequential(first, *(block(outputs, outputs, 1) for _ in range(count - 1))))
        channels = outputs
    parts["stages"] = stages
    if is_pre:
        parts |= {"bn": batch_norm(channels), "relu": nn.ReLU(inplace=True)}
    fc = nn.Linear(channels, info.num_classes)
    return chained(**parts, pool=nn.AdaptiveAvgPool2d(1), flatten=nn.Flatten(), fc=fc).apply(kaiming_normal)


class ResNet18(Normalized, ScaledNet):
    """CIFAR ResNet-18: 3x3 stem without max-pool, post-activation BasicBlocks, 11,173,962 parameters at 10 classes."""

    leading_dense: ClassVar[int] = 3  # the stem and the first block
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

    def problems(self, config: Config) -> Iterator[tuple[str, str]]:
        yield from super().problems(config)
        if sum(self.blocks) > MAX_BLOCKS:
            yield "model.blocks", f"{counted(sum(self.blocks), 'block')}; allowed: at most {MAX_BLOCKS} in all"

    def net(self, info: Inputs, width: Width) -> nn.Module:
        return self.normalized(resnet(info, width.times(self.width), self.blocks, is_pre=self.order == "pre"))


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
