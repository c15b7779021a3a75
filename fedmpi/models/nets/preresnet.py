"""The pre-activation ResNets of HeteroFL's code (methods.md 3.3): as those of FedHM, BatchNorm before each conv.

He, Zhang, Ren, Sun, "Identity mappings in deep residual networks", arXiv:1603.05027, as used by
Diao, Ding, Tarokh, "HeteroFL: Computation and communication efficient federated learning for
heterogeneous clients", arXiv:2010.01264: the stem is a bare conv, shortcuts have no BatchNorm, and
one BatchNorm and ReLU stand before the pooling. Initialised as FedHM's.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn

from fedmpi.models.nets.resnet import batch_norm, conv1x1, conv3x3, make_stages, stage_widths
from fedmpi.models.nets.shared import kaiming_normal
from fedmpi.models.width import Width


class PreBlock(nn.Module):
    """BN, ReLU, conv, BN, ReLU, conv, plus the shortcut; (B, m, H, W) -> (B, n, H/stride, W/stride).

    The identity shortcut takes the block's input, a conv in it what the first ReLU gives.
    """

    def __init__(self, in_channels: int, out_channels: int, stride: int) -> None:
        super().__init__()
        self.bn1 = batch_norm(in_channels)
        self.conv1 = conv3x3(in_channels, out_channels, stride)
        self.bn2 = batch_norm(out_channels)
        self.conv2 = conv3x3(out_channels, out_channels, 1)
        self.relu = nn.ReLU(inplace=True)
        changes_shape = stride != 1 or in_channels != out_channels
        self.shortcut = conv1x1(in_channels, out_channels, stride) if changes_shape else None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out = self.relu(self.bn1(x))
        kept = x if self.shortcut is None else self.shortcut(out)
        return self.conv2(self.relu(self.bn2(self.conv1(out)))) + kept


class PreResNet(nn.Module):
    """(B, in_channels, H, W) -> (B, num_classes); `blocks` PreBlocks in each stage."""

    def __init__(self, in_channels: int, num_classes: int, blocks: Sequence[int], width: Width) -> None:
        super().__init__()
        widths = stage_widths(len(blocks), width)
        self.conv1 = conv3x3(in_channels, widths[0], 1)
        self.stages = make_stages(PreBlock, blocks, widths)
        self.bn = batch_norm(widths[-1])
        self.relu = nn.ReLU(inplace=True)
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.fc = nn.Linear(widths[-1], num_classes)
        self.apply(kaiming_normal)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out = self.relu(self.bn(self.stages(self.conv1(x))))
        return self.fc(self.pool(out).flatten(1))
