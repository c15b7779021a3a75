"""A rolling window: by hand, and in every net whose channels can be followed a narrow net of its own."""

import pytest
import torch
from model_inputs import Info, randn
from torch import Tensor

from fedmpi.errors import ConfigError
from fedmpi.models import create
from fedmpi.models.options import AlexNet, Lenet5, LstmImdb, Mlp, ModelOptions, ResNet18, VitSmall
from fedmpi.models.surgery.rolling import Axis, crossed, rolling_axes

NETS = [
    (ResNet18(width=0.125, blocks=(1, 1)), Info()),
    (ResNet18(width=0.125, blocks=(2, 1), order="pre"), Info()),
    (AlexNet(width=0.0625, dropout=0.0), Info()),
    (Lenet5(), Info()),
    (Mlp(hidden=(9, 7)), Info()),
]


def numbers(axis: Axis, offset: int) -> list[int]:
    return torch.arange(axis.wide * axis.block)[axis.window(offset)].tolist()


def test_windows_by_hand() -> None:
    """3 of 5 channels: 0 1 2, then 1 2 3, ...; offset 3 wraps around to 0, and offset 5 is offset 0."""
    windows = [numbers(Axis(5, 3), offset) for offset in range(6)]
    assert windows == [[0, 1, 2], [1, 2, 3], [2, 3, 4], [3, 4, 0], [4, 0, 1], [0, 1, 2]]
    assert numbers(Axis(3, 3), 2) == [0, 1, 2]


def test_a_flattened_image_has_its_places_in_a_row() -> None:
    """2 of 3 channels with 4 places each."""
    assert numbers(Axis(3, 2, 4), 1) == [4, 5, 6, 7, 8, 9, 10, 11]
    assert numbers(Axis(3, 2, 4), 2) == [8, 9, 10, 11, 0, 1, 2, 3]


@pytest.mark.parametrize("offset", [0, 1, 6, 7])
@pytest.mark.parametrize(("options", "info"), NETS, ids=lambda value: getattr(value, "name", ""))
def test_a_window_is_a_net_of_its_own(options: ModelOptions, info: Info, offset: int) -> None:
    """It computes what the wide net does whose other entries are zeros; BatchNorm takes statistics of each channel."""
    wide, narrow = create.build(options, info, 0), create.build(options, info, 0, 0.6)
    axes = rolling_axes(wide, narrow)
    for name, value in wide.named_parameters():
        held = crossed([axis.window(offset) for axis in axes.get(name, ())])
        kept: Tensor = value.detach()[held].clone()
        narrow.get_parameter(name).data.copy_(kept)
        value.data.zero_()[held] = kept
    x = randn(4, *info.example_shape)
    assert axes and torch.allclose(wide(x), narrow(x), rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    ("options", "info"), [(LstmImdb(), Info("tokens", (5,), 2)), (VitSmall(embedding=24, heads=2, depth=1), Info())]
)
def test_nets_that_cannot_be_followed_are_refused(options: ModelOptions, info: Info) -> None:
    with pytest.raises(ConfigError, match=r"model\.name"):
        rolling_axes(create.skeleton(options, info), create.skeleton(options, info, 0.5))
