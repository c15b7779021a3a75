"""HeteroFL's pre-activation ResNets (methods.md 3.3)."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from fedmpi.data.options import DataInfo
from fedmpi.models import create
from fedmpi.models.nets.preresnet import PreBlock
from fedmpi.models.nets.resnet_options import ResNet18

IMAGES = DataInfo("image", (3, 32, 32), 10, 1, 1)
PRE = ResNet18(order="pre")


def test_sizes() -> None:
    """Post-activation has 11,173,962. Less: BN of the stem 128 and of the shortcuts 2 (128 + 256 + 512), and a first
    block's bn1 has half the channels, 2 (64 + 128 + 256). More: the last BN, 2 * 512."""
    net = create.skeleton(PRE, IMAGES)
    assert sum(p.numel() for p in net.parameters()) == 11_173_962 - 128 - 1792 - 896 + 1024 == 11_172_170


def test_where_the_norms_are() -> None:
    net = create.skeleton(PRE, IMAGES)
    norms = [name for name, module in net.named_modules() if isinstance(module, nn.BatchNorm2d)]
    blocks = [f"stages.{stage}.{block}.bn{i}" for stage in range(4) for block in range(2) for i in (1, 2)]
    assert norms == [*blocks, "bn"]
    shortcuts = [name for name, module in net.named_modules() if name.endswith("shortcut")]
    assert shortcuts == ["stages.1.0.shortcut", "stages.2.0.shortcut", "stages.3.0.shortcut"]


@pytest.mark.parametrize(("stride", "expected"), [(1, [-1.0, 6.0]), (2, [0.0, 8.0])])
def test_block_by_hand(stride: int, expected: list[float]) -> None:
    """Two examples of one pixel, x = (-1, 3), kernels that are a number in the middle: conv1 2, conv2 3, shortcut 5.

    bn1 (mean 1, deviation 2): (-1, 1); ReLU: (0, 1); conv1: (0, 2); bn2 (mean 1, deviation 1): (-1, 1);
    ReLU: (0, 1); conv2: (0, 3). Plus x: (-1, 6). Plus 5 times what the first ReLU gave: (0, 8).
    """
    block = PreBlock(1, 1, stride)
    for conv, value in ((block.conv1, 2.0), (block.conv2, 3.0), (block.shortcut, 5.0)):
        if conv is not None:
            middle = conv.kernel_size[0] // 2
            conv.weight.data.zero_()[0, 0, middle, middle] = value
    with torch.no_grad():
        out = block(torch.tensor([-1.0, 3.0]).reshape(2, 1, 1, 1)).flatten()
    assert out.tolist() == pytest.approx(expected, abs=1e-4)  # BatchNorm's eps of 1e-5


def test_the_stem_is_bare_and_a_norm_stands_before_the_pooling() -> None:
    """With tanh for its stages the net is fc(pool(relu(bn(tanh(conv1(x))))))."""
    info = DataInfo("image", (1, 8, 8), 3, 1, 1)
    net = create.build(ResNet18(order="pre", width=0.0625, blocks=(1,)), info, 0)
    x = torch.randn(4, 1, 8, 8)
    net.stages = nn.Tanh()
    with torch.no_grad():
        stem = net.conv1(x).tanh()
        normed = (stem - stem.mean((0, 2, 3), keepdim=True)) / (stem.var((0, 2, 3), False, keepdim=True) + 1e-5).sqrt()
        assert torch.allclose(net(x), net.fc(normed.relu().mean((2, 3))), atol=1e-5)
