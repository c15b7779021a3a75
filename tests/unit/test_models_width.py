"""Width multipliers: what becomes of fractions, and that they are rounded once."""

from __future__ import annotations

import pytest
from torch import nn

from fedmpi import models
from fedmpi.data.options import DataInfo

IMAGES = DataInfo("image", (3, 32, 32), 10, 1, 1)


@pytest.mark.parametrize(
    ("channels", "factor", "rounded", "ceiled"),
    [(64, 0.62, 40, 40), (128, 0.62, 79, 80), (64, 0.35, 22, 23), (512, 0.4, 205, 205), (64, 1.0, 64, 64)],
)
def test_of(channels: int, factor: float, rounded: int, ceiled: int) -> None:
    """39.68; 79.36; 22.4; 204.8; 64."""
    assert models.Width(factor).of(channels) == rounded
    assert models.Width(factor, "ceil").of(channels) == ceiled


def test_errors_of_floats_do_not_make_a_channel() -> None:
    """In floats 0.07 * 100 is 7.000000000000001."""
    assert 0.07 * 100 > 7
    assert models.Width(0.07, "ceil").of(100) == 7
    assert models.Width(0.0701, "ceil").of(100) == 8


@pytest.mark.parametrize("rounding", ["round", "ceil"])
def test_one_channel_at_least(rounding: models.Rounding) -> None:
    assert models.Width(0.001, rounding).of(64) == 1


@pytest.mark.parametrize(("rounding", "expected"), [("round", [20, 41]), ("ceil", [21, 41])])
def test_the_models_and_the_tiers_width_are_rounded_once(rounding: models.Rounding, expected: list[int]) -> None:
    """0.4 * 0.8 of 64 and 128: 20.48 and 40.96. Twice: 25.6, 26, 20.8, 21 by `round`; 51.2, 52, 41.6, 42 by `ceil`."""
    net = models.skeleton(models.ResNet18(width=0.4, blocks=(1, 1)), IMAGES, 0.8, rounding)
    assert [stage[-1].conv2.out_channels for stage in net.stages] == expected


def test_build_and_skeleton_round_alike() -> None:
    options = models.Lenet5()
    net = models.build(options, IMAGES, 0, 0.3, "ceil")
    assert [module.out_channels for module in net.modules() if isinstance(module, nn.Conv2d)] == [2, 5]
    shapes = {name: value.shape for name, value in net.state_dict().items()}
    skeleton = models.skeleton(options, IMAGES, 0.3, "ceil")
    assert {name: value.shape for name, value in skeleton.state_dict().items()} == shapes
