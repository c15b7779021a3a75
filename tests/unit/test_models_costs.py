"""What the small nets cost, by hand."""

from __future__ import annotations

import pytest

from fedmpi import costs
from fedmpi.data.options import DataInfo
from fedmpi.learning.bn import normalizes_single_values
from fedmpi.models import create
from fedmpi.models.nets.classic_options import Vgg16
from fedmpi.models.nets.cnn_options import CnnFemnist, Lenet5
from fedmpi.models.nets.lstm_options import LstmImdb
from fedmpi.models.nets.mlp_options import Mlp
from fedmpi.models.options import ModelOptions


@pytest.mark.parametrize(
    ("options", "info", "macs", "activations"),
    [
        (Mlp(), DataInfo("vector", (561,), 6, 1, 1), 561 * 1024 + 1024 * 512 + 512 * 6, 1536),
        (
            Lenet5(),
            DataInfo("image", (3, 32, 32), 10, 1, 1),
            784 * 6 * 75 + 100 * 16 * 150 + 400 * 120 + 120 * 84 + 84 * 10,
            784 * 6 + 100 * 16 + 120 + 84,
        ),
        (
            CnnFemnist(),
            DataInfo("image", (1, 28, 28), 62, 1, 1),
            784 * 32 * 25 + 196 * 64 * 800 + 3136 * 62,
            784 * 32 + 196 * 64,
        ),
    ],
)
def test_macs(options: ModelOptions, info: DataInfo, macs: int, activations: int) -> None:
    """Outputs times kernel for convs, inputs times outputs for linear layers; ReLU: 1 for each output."""
    measured = costs.measure(create.skeleton(options, info), info.example_shape)
    assert measured.macs == macs
    assert measured.macs_with_norm_and_activations == macs + activations


def test_our_pooling_counts_as_an_average_pooling() -> None:
    """VGG-16 at 32x32 and 10 classes: 1 for each of the ReLU's outputs and of the pooling's 512 inputs."""
    measured = costs.measure(create.skeleton(Vgg16(), DataInfo("image", (3, 32, 32), 10, 1, 1)), (3, 32, 32))
    relus = 2 * 64 * 1024 + 2 * 128 * 256 + 3 * 256 * 64 + 3 * 512 * 16 + 3 * 512 * 4 + 2 * 4096
    assert measured.macs_with_norm_and_activations - measured.macs == relus + 512


def test_nets_on_tokens_and_vectors_normalize_no_single_values() -> None:
    texts, vectors = DataInfo("tokens", (5,), 2, 1, 1, vocabulary_size=9), DataInfo("vector", (5,), 2, 1, 1)
    assert not normalizes_single_values(create.skeleton(LstmImdb(), texts), (5,))
    assert not normalizes_single_values(create.skeleton(Mlp(), vectors), (5,))
