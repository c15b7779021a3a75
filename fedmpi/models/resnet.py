"""The CIFAR ResNets of FedHM (methods.md 1), at any depth, width, number of classes and input size.

He, Zhang, Ren, Sun, "Deep residual learning for image recognition", arXiv:1512.03385, as used by
Yao et al., "FedHM: Efficient federated learning for heterogeneous models via low-rank
factorization", arXiv:2111.14655. Initialisation: Kaiming normal, fan-in, on every conv and linear
weight; BatchNorm 1 and 0; linear bias as torch does it.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn

STEM_WIDTH = 64


def scaled_width(channels: int, width: float) -> int:
    """Channels at a width multiplier. `round`, not `int`: only it gives the papers' sizes (methods.md 3.6)."""
    return max(1, round(channels * width))


def conv3x3(in_channels: int, out_channels: int, stride: int) -> nn.Conv2d:
    return nn.Conv2d(in_channels, out_channels, 3, stride, 1, bias=False)


class BasicBlock(nn.Module):
    """conv, BN, ReLU, conv, BN, plus the shortcut, ReLU; (B, m, H, W) -> (B, n, H/stride, W/stride)."""

    def __init__(self, in_channels: int, out_channels: int, stride: int) -> None:
        super().__init__()
        self.conv1 = conv3x3(in_channels, out_channels, stride)
        self.bn1 = nn.BatchNorm2d(out_channels, track_running_stats=False)
        self.conv2 = conv3x3(out_channels, out_channels, 1)
        self.bn2 = nn.BatchNorm2d(out_channels, track_running_stats=False)
        # A module, called twice, so that whoever counts by hooks sees both.
        self.relu = nn.ReLU(inplace=True)
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or in_channels != out_channels:
            self.shortcut = nn.Sequential(
                nn.Conv2d(in_channels, out_channels, 1, stride, bias=False),
                nn.BatchNorm2d(out_channels, track_running_stats=False),
            )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out = self.relu(self.bn1(self.conv1(x)))
        return self.relu(self.bn2(self.conv2(out)) + self.shortcut(x))


class ResNet(nn.Module):
    """(B, in_channels, H, W) -> (B, num_classes); `blocks` BasicBlocks in each stage."""

    def __init__(self, in_channels: int, num_classes: int, blocks: Sequence[int], width: float) -> None:
        super().__init__()
        widths = [scaled_width(STEM_WIDTH * 2**stage, width) for stage in range(len(blocks))]
        self.conv1 = conv3x3(in_channels, widths[0], 1)
        self.bn1 = nn.BatchNorm2d(widths[0], track_running_stats=False)
        self.relu = nn.ReLU(inplace=True)
        self.stages = nn.Sequential()
        channels = widths[0]
        for stage, (count, out_channels) in enumerate(zip(blocks, widths), 1):
            strides = [1 if stage == 1 else 2] + [1] * (count - 1)
            ins = [channels] + [out_channels] * (count - 1)
            self.stages.append(nn.Sequential(*(BasicBlock(i, out_channels, s) for i, s in zip(ins, strides))))
            channels = out_channels
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.fc = nn.Linear(channels, num_classes)
        self.apply(_initialise)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out = self.stages(self.relu(self.bn1(self.conv1(x))))
        return self.fc(self.pool(out).flatten(1))


def _initialise(module: nn.Module) -> None:
    if isinstance(module, (nn.Conv2d, nn.Linear)):
        nn.init.kaiming_normal_(module.weight)
