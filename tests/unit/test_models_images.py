"""VGG-16, AlexNet, LeNet-5 and the small CNNs: the papers' sizes, and what becomes of images of other sizes."""

from __future__ import annotations

import pytest
import torch
from model_inputs import params
from torch import nn

from fedmpi import registry
from fedmpi.data.options import DataInfo
from fedmpi.models import create
from fedmpi.models.nets.classic_options import AlexNet, Vgg16
from fedmpi.models.nets.cnn_options import CnnFemnist, CnnHermes, Lenet5
from fedmpi.models.nets.shared import SlicedAvgPool2d
from fedmpi.models.options import ModelOptions


def images(shape: tuple[int, int, int], num_classes: int = 10) -> DataInfo:
    return DataInfo("image", shape, num_classes, 1, 1)


@pytest.mark.parametrize(
    ("options", "shape", "num_classes", "expected"),
    [
        (Vgg16(), (3, 32, 32), 10, 134_301_514),
        (Vgg16(), (3, 28, 28), 64, 134_522_752),
        (Vgg16(), (1, 28, 28), 64, 134_521_600),
        (AlexNet(), (3, 224, 224), 1000, 61_100_840),
        (AlexNet(), (3, 32, 32), 1000, 61_100_840),
        (AlexNet(), (1, 28, 28), 62, 57_242_366),
        (Lenet5(), (3, 32, 32), 10, 62_006),
        (Lenet5(), (1, 28, 28), 10, 61_706),
        (CnnHermes(), (1, 28, 28), 62, 201_438),
        (CnnFemnist(), (1, 28, 28), 62, 246_590),
    ],
)
def test_sizes_of_the_papers(
    options: ModelOptions, shape: tuple[int, int, int], num_classes: int, expected: int
) -> None:
    """methods.md 6.9, 5.8, 12.6. VGG-16: 54 classes more are 54 * 4097, two channels less are 2 * 9 * 64 less.

    AlexNet with 62 classes and one channel: 938 * 4097 and 2 * 121 * 64 less. LeNet-5 with one: 2 * 25 * 6 less.
    """
    assert params(create.skeleton(options, images(shape, num_classes))) == expected


@pytest.mark.parametrize(
    ("options", "num_classes", "expected"),
    [
        (Lenet5(width=0.5), 10, 228 + 608 + 12_060 + 2_562 + 430),
        (CnnHermes(width=0.5), 62, 380 + 1_260 + 250 * 256 + 256 + 257 * 62),
        (CnnFemnist(width=0.5), 62, 1_216 + 12_832 + (64 * 32 + 1) * 62),
    ],
)
def test_half_the_width(options: ModelOptions, num_classes: int, expected: int) -> None:
    """At 3x32x32. LeNet-5: 3 and 8 channels, 200-60-42-10. Hermes: 5 and 10, 250-256-62. FEMNIST: 16 and 32."""
    assert params(create.skeleton(options, images((3, 32, 32), num_classes))) == expected


@pytest.mark.parametrize(("name", "stem", "last"), [("vgg16", 32, 2048), ("alexnet", 32, 2048)])
def test_width_leaves_inputs_and_classes(name: str, stem: int, last: int) -> None:
    net = create.skeleton(registry.options("model", name)(), images((3, 32, 32), 7), 0.5)
    convs = [module for module in net.modules() if isinstance(module, nn.Conv2d)]
    assert (convs[0].in_channels, convs[0].out_channels) == (3, stem)
    assert (net.classifier[-1].in_features, net.classifier[-1].out_features) == (last, 7)


IMAGE_NETS = [name for name, options in registry.built_in("model") if "image" in options.kinds and name[-1] != ":"]


@pytest.mark.parametrize("name", IMAGE_NETS)
@pytest.mark.parametrize("shape", [(1, 8, 8), (1, 28, 28), (3, 32, 32), (2, 40, 70)])
def test_every_net_takes_any_image_and_trains_all_of_itself(name: str, shape: tuple[int, int, int]) -> None:
    net = create.build(registry.options("model", name)(), images(shape, 7), 0, 0.2).eval()
    assert not list(net.buffers())
    logits = net(torch.randn(3, *shape, generator=torch.Generator().manual_seed(0)))
    assert logits.shape == (3, 7)
    logits.square().sum().backward()
    assert all(parameter.grad is not None and parameter.grad.any() for parameter in net.parameters())


@pytest.mark.parametrize(
    ("options", "side", "least"),
    [(Vgg16(width=0.1), 8, 32), (Lenet5(), 28, 32), (Lenet5(), 8, 32), (CnnHermes(), 8, 28)],
)
def test_small_images_are_surrounded_by_zeros(options: ModelOptions, side: int, least: int) -> None:
    small, large = (create.build(options, images((1, n, n)), 0).eval() for n in (side, least))
    x = torch.randn(2, 1, side, side)
    padded = torch.zeros(2, 1, least, least)
    start = (least - side) // 2
    padded[:, :, start : start + side, start : start + side] = x
    with torch.no_grad():
        assert torch.equal(small(x), large(padded))


@pytest.mark.parametrize(("side", "factor"), [(8, 8), (28, 3), (32, 2), (62, 2), (63, 1)])
def test_alexnet_repeats_pixels_until_there_are_63(side: int, factor: int) -> None:
    options = AlexNet(width=0.05)
    small, large = (create.build(options, images((1, n, n)), 0).eval() for n in (side, side * factor))
    assert isinstance(large.enlarge, nn.Identity)
    x = torch.randn(2, 1, side, side)
    with torch.no_grad():
        assert torch.equal(small(x), large(x.repeat_interleave(factor, 2).repeat_interleave(factor, 3)))


@pytest.mark.parametrize("sides", [(1, 1), (2, 3), (5, 13), (7, 7), (14, 21)])
@pytest.mark.parametrize("k", [6, 7])
def test_sliced_pooling_is_adaptive_average_pooling(sides: tuple[int, int], k: int) -> None:
    """Forward and backward, in float64."""
    x = torch.randn(2, 3, *sides, dtype=torch.float64, requires_grad=True)
    ours, theirs = SlicedAvgPool2d(k)(x), nn.AdaptiveAvgPool2d(k)(x)
    assert torch.allclose(ours, theirs)
    direction = torch.randn_like(theirs)
    gradients = [torch.autograd.grad(pooled, x, direction)[0] for pooled in (ours, theirs)]
    assert torch.allclose(*gradients)


def test_a_single_pixel_is_repeated() -> None:
    assert torch.equal(SlicedAvgPool2d(7)(torch.full((1, 2, 1, 1), 0.3)), torch.full((1, 2, 7, 7), 0.3))


@pytest.mark.parametrize("options", [Vgg16, AlexNet])
def test_dropout_is_an_option(options: type[Vgg16]) -> None:
    net = create.skeleton(options(dropout=0.25), images((1, 8, 8)))
    assert [module.p for module in net.modules() if isinstance(module, nn.Dropout)] == [0.25, 0.25]
    assert options().dropout == 0.5


def test_vgg16_begins_where_it_can_learn() -> None:
    """Its logits differ between images; at torch's default initial values, 16 layers leave less than 1e-7."""
    net = create.build(Vgg16(width=0.125), images((1, 8, 8)), 0).eval()
    with torch.no_grad():
        assert net(torch.randn(16, 1, 8, 8)).std(0).mean() > 0.01


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU: which kernels are deterministic there")
@pytest.mark.parametrize("name", IMAGE_NETS)
def test_every_net_trains_on_deterministic_kernels(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    net = create.build(registry.options("model", name)(), images((3, 40, 70)), 0, 0.05).cuda()
    torch.use_deterministic_algorithms(True)
    try:
        net(torch.randn(3, 3, 40, 70, device="cuda")).square().sum().backward()
    finally:
        torch.use_deterministic_algorithms(False)
