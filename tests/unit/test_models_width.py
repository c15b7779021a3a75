"""Width multipliers: what becomes of fractions, and that they are rounded once."""

from __future__ import annotations

import pytest
from torch import nn

from fedmpi.data.options import DataInfo
from fedmpi.models import create
from fedmpi.models.nets.cnn_options import Lenet5
from fedmpi.models.nets.resnet_options import ResNet18
from fedmpi.models.width import Rounding, Width

IMAGES = DataInfo("image", (3, 32, 32), 10, 1, 1)


@pytest.mark.parametrize(
    ("channels", "factor", "rounded", "ceiled"),
    [(64, 0.62, 40, 40), (128, 0.62, 79, 80), (64, 0.35, 22, 23), (512, 0.4, 205, 205), (64, 1.0, 64, 64)],
)
def test_of(channels: int, factor: float, rounded: int, ceiled: int) -> None:
    """39.68; 79.36; 22.4; 204.8; 64."""
    assert Width(factor).of(channels) == rounded
    assert Width(factor, "ceil").of(channels) == ceiled


def test_errors_of_floats_do_not_make_a_channel() -> None:
    """In floats 0.07 * 100 is 7.000000000000001."""
    assert 0.07 * 100 > 7
    assert Width(0.07, "ceil").of(100) == 7
    assert Width(0.0701, "ceil").of(100) == 8


@pytest.mark.parametrize("rounding", ["round", "ceil"])
def test_one_channel_at_least(rounding: Rounding) -> None:
    assert Width(0.001, rounding).of(64) == 1


@pytest.mark.parametrize(("rounding", "expected"), [("round", [15, 31]), ("ceil", [16, 32])])
def test_a_tier_has_a_share_of_the_models_own_channels(rounding: Rounding, expected: list[int]) -> None:
    """0.35 of 64 and 128 are 22.4 and 44.8, so 22 and 45; 0.7 of those 15.4 and 31.49 (of 22.4: 15.68)."""
    net = create.skeleton(ResNet18(width=0.35, blocks=(1, 1)), IMAGES, 0.7, rounding)
    assert [stage[-1].conv2.out_channels for stage in net.stages] == expected


@pytest.mark.parametrize("rounding", ["round", "ceil"])
def test_all_of_a_net_is_the_net(rounding: Rounding) -> None:
    """22.4 channels are 22, also where a tier's fractions are rounded up."""
    net = create.skeleton(ResNet18(width=0.35, blocks=(1, 1)), IMAGES, 1.0, rounding)
    assert [stage[-1].conv2.out_channels for stage in net.stages] == [22, 45]


def test_build_and_skeleton_round_alike() -> None:
    options = Lenet5()
    net = create.build(options, IMAGES, 0, 0.3, "ceil")
    assert [module.out_channels for module in net.modules() if isinstance(module, nn.Conv2d)] == [2, 5]
    shapes = {name: value.shape for name, value in net.state_dict().items()}
    skeleton = create.skeleton(options, IMAGES, 0.3, "ceil")
    assert {name: value.shape for name, value in skeleton.state_dict().items()} == shapes
