"""Models: sizes, initialisation, batch statistics, names."""

from __future__ import annotations

import math
import subprocess
import sys

import pytest
import torch
from model_inputs import Info, params
from torch import nn

from fedmpi import registry
from fedmpi.errors import ConfigError
from fedmpi.models import create
from fedmpi.models.nets.lstm_options import LstmImdb
from fedmpi.models.nets.mlp_options import Mlp
from fedmpi.models.nets.resnet_options import ResNet18, ResNet34
from fedmpi.models.nets.torchvision_options import Torchvision
from fedmpi.models.options import ModelOptions
from fedmpi.models.surgery.norm import use_batch_statistics


def images(shape: tuple[int, ...] = (3, 32, 32), num_classes: int = 10, kind: str = "image") -> Info:
    return Info(kind, shape, num_classes)


TINY = ResNet18(width=0.125, blocks=(1, 1))


@pytest.mark.parametrize(
    ("options", "num_classes", "expected"),
    [
        (ResNet18(), 10, 11_173_962),
        (ResNet34(), 100, 21_328_292),
        (ResNet18(width=0.62), 10, 4_293_347),
        (ResNet18(width=0.5), 10, 2_797_610),
        (ResNet18(width=0.35), 10, 1_373_160),
        (ResNet34(width=0.64), 100, 8_769_303),
        (ResNet34(width=0.5), 100, 5_349_636),
        (ResNet34(width=0.4), 100, 3_423_974),
    ],
)
def test_sizes_of_the_papers(options: ModelOptions, num_classes: int, expected: int) -> None:
    """methods.md 1 and 3.6; the same width asked for by the caller (HeteroFL's tiers) gives the same net."""
    info = images(num_classes=num_classes)
    assert params(create.skeleton(options, info)) == expected
    plain = type(options)()
    assert params(create.skeleton(plain, info, width=options.width)) == expected


@pytest.mark.parametrize(
    ("options", "num_classes", "post", "pre"),
    [
        (ResNet18, 10, {1: "11.17", 0.62: "4.29", 0.5: "2.80", 0.35: "1.37"}, {}),
        (ResNet34, 100, {1: "21.33", 0.64: "8.77", 0.5: "5.35", 0.4: "3.42"}, {}),
        (ResNet34, 200, {0.64: "8.80", 0.5: "5.38", 0.4: "3.44"}, {0.5: "5.37"}),
    ],
)
def test_pre_activation_has_the_same_two_decimals_but_once(
    options: type[ResNet18], num_classes: int, post: dict[float, str], pre: dict[float, str]
) -> None:
    """methods.md 3.6: in millions, pre-activation gives what post-activation does, except 5.38 of Tiny ImageNet."""
    info = images(num_classes=num_classes)
    for width, expected in post.items():
        sizes = [params(create.skeleton(options(order=order), info, width)) / 1e6 for order in ("post", "pre")]
        assert [f"{size:.2f}" for size in sizes] == [expected, pre.get(width, expected)]


@pytest.mark.parametrize(("width", "expected"), [(0.62, [40, 79, 159, 317]), (0.35, [22, 45, 90, 179])])
def test_widths_are_rounded(width: float, expected: list[int]) -> None:
    net = create.skeleton(ResNet18(width=width), images())
    assert [stage[-1].conv2.out_channels for stage in net.stages] == expected


@pytest.mark.parametrize("shape", [(1, 8, 8), (3, 32, 32), (3, 64, 64), (2, 5, 7)])
def test_any_input_and_number_of_classes(shape: tuple[int, int, int]) -> None:
    net = create.build(TINY, images(shape, 7), seed=0)
    assert net(torch.randn(4, *shape)).shape == (4, 7)


def test_shortcuts_only_where_shape_changes() -> None:
    net = create.skeleton(ResNet34(), images())
    convs = [name for name, module in net.named_modules() if isinstance(module, nn.Conv2d) and "shortcut" in name]
    assert convs == ["stages.1.0.shortcut.0", "stages.2.0.shortcut.0", "stages.3.0.shortcut.0"]


def test_initialisation_is_kaiming_normal_fan_in() -> None:
    """std = sqrt(2 / fan_in); the sample deviation of k values is within 5 std / sqrt(2 k) of it (5 sigma)."""
    net = create.build(ResNet18(width=0.25), images(), seed=3)
    for module in net.modules():
        if isinstance(module, (nn.Conv2d, nn.Linear)):
            weight = module.weight
            std = math.sqrt(2 / weight[0].numel())
            assert abs(weight.std().item() - std) < 5 * std / math.sqrt(2 * weight.numel())
        if isinstance(module, nn.BatchNorm2d):
            assert (module.weight == 1).all() and (module.bias == 0).all()
    assert net.fc.bias.abs().max() <= 1 / math.sqrt(net.fc.in_features)


def test_build_depends_on_the_seed_alone_and_leaves_the_global_generator() -> None:
    torch.manual_seed(1)
    before = torch.get_rng_state()
    first = create.build(TINY, images(), seed=5).state_dict()
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(2)
    again, other = create.build(TINY, images(), seed=5).state_dict(), create.build(TINY, images(), seed=6).state_dict()
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert not torch.equal(first["conv1.weight"], other["conv1.weight"])


def test_skeleton_has_the_names_and_shapes_of_build_and_no_values() -> None:
    built, shapes = create.build(TINY, images(), seed=0).state_dict(), create.skeleton(TINY, images()).state_dict()
    assert {name: tensor.shape for name, tensor in built.items()} == {n: t.shape for n, t in shapes.items()}
    assert all(tensor.is_meta for tensor in shapes.values())


@pytest.mark.parametrize("options", [TINY, Torchvision(name="torchvision:resnet18")])
def test_batch_statistics_in_training_and_evaluation(options: ModelOptions) -> None:
    """No buffers; train and eval give the same output, and it depends on the other examples of the batch."""
    net = create.build(options, images(), seed=0)
    assert not list(net.buffers())
    x = torch.randn(4, 3, 32, 32)
    with torch.no_grad():
        trained, evaluated, part = net.train()(x), net.eval()(x), net(x[:2])
    assert torch.equal(trained, evaluated)
    assert not torch.allclose(evaluated[:2], part, atol=1e-3)


def test_use_batch_statistics_takes_the_buffers_of_any_net() -> None:
    net = nn.Sequential(nn.Conv1d(1, 2, 3), nn.BatchNorm1d(2), nn.Sequential(nn.BatchNorm3d(4, affine=False)))
    assert use_batch_statistics(net) is net
    assert not list(net.buffers())


@pytest.mark.parametrize("name", ["resnet50", "googlenet", "mobilenet_v2", "densenet121"])
def test_torchvision_by_name(name: str) -> None:
    options = Torchvision(name=f"torchvision:{name}")
    net = create.skeleton(options, images((3, 64, 64), 11))
    assert net(torch.empty(2, 3, 64, 64, device="meta")).shape == (2, 11)
    assert options.dense_layers == 1


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("resnet50", 25_557_032),
        ("mobilenet_v2", 3_504_872),
        ("densenet121", 7_978_856),
        ("vgg16", 138_357_544),
        ("vit_b_16", 86_567_656),
    ],
)
def test_sizes_of_torchvisions_nets(name: str, expected: int) -> None:
    """As torchvision's documentation prints them, at ImageNet's 1,000 classes."""
    options = Torchvision(name=f"torchvision:{name}")
    assert params(create.skeleton(options, images((3, 224, 224), 1000))) == expected


def test_torchvision_errors_say_what_to_write() -> None:
    with pytest.raises(ConfigError, match=r"no classification net 'resnet51'\. Did you mean 'torchvision:resnet"):
        create.skeleton(Torchvision(name="torchvision:resnet51"), images())
    with pytest.raises(ConfigError, match=r"asked for width 0\.5, allowed is 1"):
        create.skeleton(Torchvision(), images(), width=0.5)


@pytest.mark.parametrize(
    ("options", "kind", "message"),
    [
        (TINY, "tokens", "'resnet18' takes images, the data are of kind 'tokens'"),
        (Torchvision(), "vector", "'torchvision:resnet50' takes images, the data are of kind 'vector'"),
        (Mlp(), "tokens", "'mlp' takes images and vectors, the data are of kind 'tokens'"),
        (LstmImdb(), "image", "'lstm_imdb' takes tokens, the data are of kind 'image'"),
    ],
)
def test_data_of_another_kind_are_refused(options: ModelOptions, kind: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        create.build(options, images(kind=kind), seed=0)


def test_dense_layers_by_default() -> None:
    """methods.md 2.3: ResNet-18 stem + first block, ResNet-34 stem + two stages; other CNNs the stem."""
    resnets = {"resnet18": 3, "resnet34": 15}
    without_stem = {"mlp": 0, "mlp_har": 0, "lstm_imdb": 0, "lstm_char": 0}
    for name, options in registry.built_in("model"):
        assert options().dense_layers == (resnets | without_stem).get(name, 1)


def test_options_load_without_torch() -> None:
    code = (
        "import sys; from fedmpi import registry; list(registry.built_in('model')); assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
