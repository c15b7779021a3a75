"""VGG-16, AlexNet, the small CNNs and pre-activation ResNets: the papers' sizes, images of other sizes."""

import pytest
import torch
from torch import nn

from fedmpi import registry
from fedmpi.data.dataset import DataInfo
from fedmpi.models import create
from fedmpi.models.nets.resnet import PreBlock
from fedmpi.models.nets.shared import SlicedAvgPool2d
from fedmpi.models.options import AlexNet, CnnHermes, Lenet5, ModelOptions, ResNet18, Vgg16


def images(shape: tuple[int, int, int], num_classes: int = 10) -> DataInfo:
    return DataInfo("image", shape, num_classes, 1, 1)


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


@pytest.mark.gpu("which kernels are deterministic there")
@pytest.mark.parametrize("name", IMAGE_NETS)
def test_every_net_trains_on_deterministic_kernels(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    net = create.build(registry.options("model", name)(), images((3, 40, 70)), 0, 0.05).cuda()
    torch.use_deterministic_algorithms(True)
    try:
        net(torch.randn(3, 3, 40, 70, device="cuda")).square().sum().backward()
    finally:
        torch.use_deterministic_algorithms(False)


# HeteroFL's pre-activation ResNets (methods.md 3.3).


IMAGES = DataInfo("image", (3, 32, 32), 10, 1, 1)


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
