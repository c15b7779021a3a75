"""The multi-layer perceptron: sizes, and what it takes."""

from __future__ import annotations

import pytest
import torch

from fedmpi.data.options import DataInfo
from fedmpi.models import create
from fedmpi.models.nets.mlp_options import Mlp, MlpHar
from fedmpi.models.options import ModelOptions

FEATURES = DataInfo("vector", (561,), 6, 1, 1)


@pytest.mark.parametrize(
    ("options", "width", "expected"),
    [
        (Mlp(), 1, 1_103_366),
        (MlpHar(), 1, 1_103_366),
        (MlpHar(width=0.5), 1, 420_614),
        (MlpHar(), 0.5, 420_614),
        (Mlp(hidden=(300, 100)), 1, 199_306),
        (Mlp(hidden=()), 1, 3_372),
    ],
)
def test_sizes(options: ModelOptions, width: float, expected: int) -> None:
    """methods.md 6.9: 562 * 1024 + 1025 * 512 + 513 * 6. Half: 562 * 512 + 513 * 256 + 257 * 6.

    Hermes's Table 4: 562 * 300 + 301 * 100 + 101 * 6. No hidden layer: 562 * 6.
    """
    net = create.skeleton(options, FEATURES, width)
    assert sum(parameter.numel() for parameter in net.parameters()) == expected


def test_by_hand() -> None:
    """Two inputs, two hidden units, one of which ReLU closes.

    x = (1, 2): hidden (1 * 1 + 2 * 1, 1 * 1 - 2 * 1) = (3, -1), ReLU (3, 0), outputs (2 * 3, 5 * 0 + 1) = (6, 1).
    """
    net = create.build(Mlp(hidden=(2,)), DataInfo("vector", (2,), 2, 1, 1), 0)
    values = ([[1.0, 1], [1, -1]], [0.0, 0], [[2.0, 0], [0, 5]], [0.0, 1])
    for parameter, value in zip(net.parameters(), values, strict=True):
        parameter.data = torch.tensor(value)
    assert net(torch.tensor([[1.0, 2]])).tolist() == [[6, 1]]


def test_an_image_is_flattened_channel_by_channel_however_it_lies_in_memory() -> None:
    net = create.build(Mlp(hidden=(3,)), DataInfo("image", (2, 3, 4), 5, 1, 1), 0)
    x = torch.randn(6, 2, 3, 4)
    flat = net.layers(x.reshape(6, 24))
    assert torch.equal(net(x), flat)
    assert torch.equal(net(x.contiguous(memory_format=torch.channels_last)), flat)
