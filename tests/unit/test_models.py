"""Models: sizes, initialisation, batch statistics, names; perceptrons; width multipliers; LSTMs; GroupNorm."""

import copy
import math
import re

import pytest
import torch
import torchvision
from data_fixtures import refusal
from golden_file import Told
from model_inputs import AnyVit, Info, params, randn
from pydantic import ValidationError
from torch import Tensor, nn
from torch.nn import functional as F

from fedmpi import costs, registry
from fedmpi.config.load import load
from fedmpi.config.schema import Train
from fedmpi.data.dataset import DataInfo
from fedmpi.learning.bn import num_statistics
from fedmpi.learning.flat import Buffers, FlatNet, net_layout
from fedmpi.models import create
from fedmpi.models.nets.cnn import AlexNet, CnnFemnist, CnnHermes, CnnPrism, Lenet5, Vgg16
from fedmpi.models.nets.lstm import Lstm, LstmChar, LstmImdb
from fedmpi.models.nets.mlp import Mlp, MlpHar
from fedmpi.models.nets.resnet import PreBlock, ResNet18, ResNet34
from fedmpi.models.nets.shared import SlicedAvgPool2d, with_group_norm
from fedmpi.models.nets.torchvision_nets import Torchvision
from fedmpi.models.options import Model
from fedmpi.models.width import Width
from fedmpi.running.forecast import forecast

IMAGES = DataInfo("image", (3, 32, 32), 10, 1, 1)


def images(shape: tuple[int, ...] = (3, 32, 32), num_classes: int = 10, kind: str = "image") -> Info:
    return Info(kind, shape, num_classes)


TINY = ResNet18(width=0.125, blocks=(1, 1))
TINY_VIT = AnyVit(embedding=24, heads=3, depth=2)


def torchvisions(name: str) -> Torchvision:
    return Torchvision(name=f"torchvision:{name}")


def texts(num_classes: int = 2, vocabulary_size: int = 11, length: int = 5) -> Info:
    return Info("tokens", (length,), num_classes, vocabulary_size)


FEATURES, IMAGENET = Info("vector", (561,), 6), images((3, 224, 224), 1000)
SIZES = [
    # HeteroFL counts parameters by its own code; FedHM prints millions.
    (ResNet18(), images(), 11_173_962),
    (ResNet34(), images(num_classes=100), 21_328_292),
    (ResNet18(width=0.62), images(), 4_293_347),
    (ResNet18(width=0.5), images(), 2_797_610),
    (ResNet18(width=0.35), images(), 1_373_160),
    (ResNet34(width=0.64), images(num_classes=100), 8_769_303),
    (ResNet34(width=0.5), images(num_classes=100), 5_349_636),
    (ResNet34(width=0.4), images(num_classes=100), 3_423_974),
    # Pre-activation. Less: BN of the stem and of the shortcuts 2 (128 + 256 + 512), and a first block's bn1 has half
    # the channels, 2 (64 + 128 + 256). More: the last BN.
    (ResNet18(order="pre"), images(), 11_173_962 - 128 - 1792 - 896 + 1024),
    # VGG-16: 54 classes more are 54 * 4097, two channels less are 2 * 9 * 64 less. AlexNet
    # with 62 classes and one channel: 938 * 4097 and 2 * 121 * 64 less. LeNet-5 with one: 2 * 25 * 6 less.
    (Vgg16(), images(), 134_301_514),
    (Vgg16(), images((3, 28, 28), 64), 134_522_752),
    (Vgg16(), images((1, 28, 28), 64), 134_521_600),
    (AlexNet(), IMAGENET, 61_100_840),
    (AlexNet(), images(num_classes=1000), 61_100_840),
    (AlexNet(), images((1, 28, 28), 62), 57_242_366),
    (Lenet5(), images(), 62_006),
    (Lenet5(), images((1, 28, 28)), 61_706),
    (CnnHermes(), images((1, 28, 28), 62), 201_438),
    (CnnFemnist(), images((1, 28, 28), 62), 246_590),
    # 64 of 5 x 5 + 64, 64 of 64 x 3 x 3 + 64, and 64 x 7 x 7 inputs: 1,664 + 36,928 + 3,137 x 62.
    (CnnPrism(), images((1, 28, 28), 62), 1_664 + 36_928 + 194_494),
    # Half. LeNet-5: 3 and 8 channels, 200-60-42-10. Hermes: 5 and 10, 250-256-62. FEMNIST: 16 and 32.
    (Lenet5(width=0.5), images(), 228 + 608 + 12_060 + 2_562 + 430),
    (CnnHermes(width=0.5), images(num_classes=62), 380 + 1_260 + 250 * 256 + 256 + 257 * 62),
    (CnnFemnist(width=0.5), images(num_classes=62), 1_216 + 12_832 + (64 * 32 + 1) * 62),
    # 562 * 1024 + 1025 * 512 + 513 * 6, half of it, Hermes's Table 4, and no hidden layer.
    (Mlp(), FEATURES, 1_103_366),
    (MlpHar(), FEATURES, 1_103_366),
    (MlpHar(width=0.5), FEATURES, 562 * 512 + 513 * 256 + 257 * 6),
    (Mlp(hidden=(300, 100)), FEATURES, 562 * 300 + 301 * 100 + 101 * 6),
    (Mlp(hidden=()), FEATURES, 562 * 6),
    # 1001 * 64 + 4 * 256 * (64 + 256 + 2) + 4 * 256 * (2 * 256 + 2) + 257; four classes: 3 * 257 more.
    # Half: 1001 * 32 + 4 * 128 * (32 + 128 + 2) + 4 * 128 * (2 * 128 + 2) + 129.
    (LstmImdb(), texts(2, 1001), 920_385),
    (LstmImdb(), texts(4, 1001), 921_156),
    (LstmImdb(width=0.5), texts(2, 1001), 247_201),
    # 8 V + 4 * 256 * (8 + 256 + 2) + 4 * 256 * (2 * 256 + 2) + 257 V. With one bias for each gate 2 * 4 * 256 less:
    # 820,522 at 90 symbols; McMahan et al. print 866,578, which is that at 258 and 3 * 256 peepholes in each layer.
    *((LstmChar(), texts(v, v, 80), 265 * v + 272_384 + 526_336) for v in (80, 90, 258)),
    # Patches, class token, positions; in each block two norms, four d x d layers, a perceptron; norm and classifier. Of
    # the last: 48 * 24 + 24, 24, 5 * 24, 2 (96 + 4 * 600 + 2,400 + 2,328), 48, 24 * 5 + 5.
    (AnyVit(), images(), 21_342_346),
    (AnyVit(), images(num_classes=100), 21_376_996),
    (AnyVit(), images((1, 28, 28), 62), 21_344_318),
    (AnyVit(patch=8), images((3, 64, 64)), 21_397_642),
    (AnyVit(width=0.5), images(), 5_362_762),
    (TINY_VIT, images((3, 8, 8), 5), 15_941),
    # As torchvision's documentation prints them.
    (torchvisions("resnet50"), IMAGENET, 25_557_032),
    (torchvisions("mobilenet_v2"), IMAGENET, 3_504_872),
    (torchvisions("densenet121"), IMAGENET, 7_978_856),
    (torchvisions("vgg16"), IMAGENET, 138_357_544),
    (torchvisions("vit_b_16"), IMAGENET, 86_567_656),
]


@pytest.mark.parametrize(("options", "info", "expected"), SIZES, ids=str)
def test_sizes(options: Model, info: Info, expected: int) -> None:
    """The same width asked for by the caller (HeteroFL's tiers) gives the same net."""
    assert params(create.skeleton(options, info)) == expected
    if (width := getattr(options, "width", 1)) != 1:
        assert params(create.skeleton(type(options)(), info, width)) == expected


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


@pytest.mark.nightly
@pytest.mark.parametrize("name", torchvision.models.list_models(module=torchvision.models))
def test_every_classification_net_of_torchvision_plans(name: str) -> None:
    """On the least pictures that it takes: those that cut them into windows of fixed sizes want 224 pixels."""
    side = 224 if name.startswith(("vit_", "maxvit_")) else 96
    words = f"model.name=torchvision:{name}", "data.name=synthetic", f"data.shape=[3,{side},{side}]"
    (tier,) = forecast(load(None, [*words, "method.name=fedavg"]), 1).tiers
    assert tier.params > 300_000 and tier.macs > 1_000_000


@pytest.mark.parametrize("options", [TINY, torchvisions("resnet18")])
def test_batch_statistics_in_training_and_evaluation(options: Model) -> None:
    """No buffers; train and eval give the same output, and it depends on the other examples of the batch."""
    net = create.build(options, images(), seed=0)
    assert not list(net.buffers())
    x = torch.randn(4, 3, 32, 32)
    with torch.no_grad():
        trained, evaluated, part = net.train()(x), net.eval()(x), net(x[:2])
    assert torch.equal(trained, evaluated)
    assert not torch.allclose(evaluated[:2], part, atol=1e-3)


def test_torchvision_errors_say_what_to_write(told: Told) -> None:
    with pytest.raises(ValidationError, match="as 'torchvision:resnet"):
        torchvisions("resnet51")
    told(refusal(lambda: create.skeleton(Torchvision(), images(), width=0.5)))


@pytest.mark.parametrize(
    ("options", "kind", "message"),
    [
        (TINY, "tokens", "'resnet18' takes images, the data are of kind 'tokens'"),
        (Torchvision(), "vector", "takes images, the data are of kind 'vector'; set model.name=mlp, or your own"),
        (Mlp(), "tokens", "'mlp' takes images and vectors, the data are of kind 'tokens'"),
        (LstmImdb(), "image", "'lstm_imdb' takes tokens, the data are of kind 'image'"),
    ],
)
def test_data_of_another_kind_are_refused(options: Model, kind: str, message: str) -> None:
    assert re.search(message, refusal(lambda: create.build(options, images(kind=kind), seed=0)))


def test_dense_layers_by_default() -> None:
    """ResNet-18 stem + first block, ResNet-34 stem + two stages; other CNNs the stem."""
    resnets = {"resnet18": 3, "resnet34": 15}
    without_stem = {"mlp": 0, "mlp_har": 0, "lstm_imdb": 0, "lstm_char": 0}
    for name, options in registry.built_in("model"):
        assert options().dense_layers == (resnets | without_stem).get(name, 1)


def test_a_perceptron_by_hand() -> None:
    """Two inputs, two hidden units, one of which ReLU closes.

    x = (1, 2): hidden (1 * 1 + 2 * 1, 1 * 1 - 2 * 1) = (3, -1), ReLU (3, 0), outputs (2 * 3, 5 * 0 + 1) = (6, 1).
    """
    net = create.build(Mlp(hidden=(2,)), DataInfo("vector", (2,), 2, 1, 1), 0)
    values = ([[1.0, 1], [1, -1]], [0.0, 0], [[2.0, 0], [0, 5]], [0.0, 1])
    for parameter, value in zip(net.parameters(), values, strict=True):
        parameter.data = torch.tensor(value)
    assert net(torch.tensor([[1.0, 2]])).tolist() == [[6, 1]]


@pytest.mark.parametrize(
    ("channels", "factor", "rounded", "ceiled"),
    [
        (64, 0.62, 40, 40),
        (128, 0.62, 79, 80),
        (64, 0.35, 22, 23),
        (512, 0.4, 205, 205),
        (64, 1.0, 64, 64),
        (100, 0.07, 7, 7),
        (100, 0.0701, 7, 8),
    ],
)
def test_channels_at_a_width(channels: int, factor: float, rounded: int, ceiled: int) -> None:
    """Fractions are rounded once: 39.68; 79.36; 22.4; 204.8; in floats 0.07 * 100 is 7.000000000000001."""
    assert Width(factor).of(channels) == rounded
    assert Width(factor, "ceil").of(channels) == ceiled


# VGG-16, AlexNet, the small CNNs and pre-activation ResNets: the papers' sizes, images of other sizes.


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
    ("options", "shape", "side"),
    [
        (Vgg16(width=0.1), (1, 8, 8), 32),
        *((Lenet5(), shape, 32) for shape in ((1, 28, 28), (1, 8, 8))),
        (CnnHermes(), (1, 8, 8), 28),
        *((TINY_VIT, shape, side) for shape, side in (((3, 8, 8), 8), ((1, 8, 11), 12), ((2, 9, 3), 12))),
    ],
)
def test_small_images_are_surrounded_by_zeros(options: Model, shape: tuple[int, ...], side: int) -> None:
    """Up to a square, of a vision transformer of whole patches."""
    small, large = (create.build(options, images(of), 0).eval() for of in (shape, (shape[0], side, side)))
    canvas, image = torch.zeros(2, shape[0], side, side), torch.randn(2, *shape)
    top, left = (side - shape[1]) // 2, (side - shape[2]) // 2
    canvas[:, :, top : top + shape[1], left : left + shape[2]] = image
    with torch.no_grad():
        assert torch.equal(small(image), large(canvas))


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


@pytest.mark.parametrize(("stride", "expected"), [(1, [-1.0, 6.0]), (2, [0.0, 8.0])])
def test_heterofls_pre_activation_block_by_hand(stride: int, expected: list[float]) -> None:
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


# LSTMs: their mathematics, two classes as one output, and life in a flat buffer.


SMALL = LstmImdb(width=0.03)  # 2 and 8 units
ON_A_GPU = pytest.param("cuda", marks=pytest.mark.gpu("cuDNN would move the weights out of the buffer"))


def tokens(seed: int = 0, length: int = 5) -> Tensor:
    return torch.randint(0, 11, (3, length), generator=torch.Generator().manual_seed(seed))


def by_steps(net: nn.Module, words: Tensor) -> Tensor:
    """The last output of the upper layer: i, f, o = sigmoid, g = tanh, c = f c + i g, h = o tanh(c)."""
    inputs = net.embedding(words).unbind(1)
    for layer in range(2):
        h = c = torch.zeros(len(words), net.lstm.hidden_size)
        outputs = []
        for x in inputs:
            from_x, from_h, bias_x, bias_h = (
                getattr(net.lstm, f"{name}_l{layer}") for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
            )
            i, f, g, o = (x @ from_x.T + bias_x + h @ from_h.T + bias_h).chunk(4, 1)
            c = f.sigmoid() * c + i.sigmoid() * g.tanh()
            h = o.sigmoid() * c.tanh()
            outputs.append(h)
        inputs = outputs
    return inputs[-1]


@pytest.mark.parametrize("num_classes", [2, 3])
def test_the_net_step_by_step(num_classes: int) -> None:
    net = create.build(SMALL, texts(num_classes), 0)
    logits = net(tokens())
    expected = net.fc(by_steps(net, tokens()))
    if num_classes == 2:
        assert logits[:, 0].tolist() == [0, 0, 0]
        logits = logits[:, 1:]
    assert torch.allclose(logits, expected, atol=1e-6)


@pytest.mark.parametrize("device", ["cpu", ON_A_GPU])
def test_trains_in_a_flat_buffer(device: str) -> None:
    """Two steps of SGD on the flat vectors equal two on a plain copy; the net computes with what the buffer holds."""
    plain = create.build(SMALL, texts(), 0)
    layout = net_layout(plain.named_parameters(), (), channels_last=True)
    flat = FlatNet(copy.deepcopy(plain), layout, Buffers(layout.num_bytes, device))
    for name, parameter in plain.named_parameters():
        flat.params[name].copy_(parameter.detach())
    sgd = flat.optimizer(Train(momentum=0, weight_decay=0), ())
    labels = torch.tensor([0, 1, 1])
    for step in range(2):
        flat.gradient.zero_()
        with torch.backends.cudnn.flags(enabled=True, allow_tf32=False):
            F.cross_entropy(flat.module(tokens(step).to(device)), labels.to(device)).backward()
        sgd(1.0)
        plain.zero_grad()
        F.cross_entropy(plain(tokens(step)), labels).backward()
        for parameter in plain.parameters():
            parameter.data -= parameter.grad
    for name, parameter in plain.named_parameters():
        assert torch.allclose(flat.params[name].cpu(), parameter, atol=1e-5)
    flat.parameter.zero_()
    assert not flat.module(tokens().to(device)).any()


def test_costs_are_those_of_torchs_own_lstm() -> None:
    """On the meta device ours computes all steps at once; torch takes them one by one, and both are counted.

    A token: 4 * 8 * (2 + 8) and 4 * 8 * (8 + 8) MACs; five of them, twice the embedding's values and
    2 layers * 6 * 8 of the LSTM; two weight matrices and two biases in each layer.
    """
    ours, theirs = (nn.Sequential(kind(2, 8, 2, batch_first=True, device="meta")) for kind in (Lstm, nn.LSTM))
    assert costs.measure(ours, (5, 2)) == costs.measure(theirs, (5, 2))
    macs = 5 * 4 * 8 * (10 + 16)
    params = 4 * 8 * (10 + 16) + 2 * 2 * 32
    assert costs.measure(ours, (5, 2)) == costs.Costs(params, macs, macs, 4 * 5 * 2 * 6 * 8)


# GroupNorm in place of BatchNorm.


def test_four_groups_by_hand() -> None:
    """Channels 1, 3 | 2, 8 | 0, 4 | 5, 7 of one pixel: each group's mean is 2, 5, 2 and 6, its deviation 1, 3, 2, 1."""
    net = with_group_norm(nn.Sequential(nn.BatchNorm2d(8, eps=0.0)))
    x = torch.tensor([1.0, 3.0, 2.0, 8.0, 0.0, 4.0, 5.0, 7.0]).view(1, 8, 1, 1)
    assert net(x).flatten().tolist() == pytest.approx([-1, 1] * 4)


@pytest.mark.parametrize(
    ("options", "info", "size", "norms"),
    [
        (ResNet18(norm="group"), images(), 11_173_962, 20),
        (ResNet18(norm="group", order="pre"), images(), 11_172_170, 17),
        (ResNet34(norm="group"), images(num_classes=100), 21_328_292, 36),
        (Torchvision(name="torchvision:resnet18", norm="group"), Info(num_classes=1000), 11_689_512, 20),
    ],
)
def test_it_has_the_parameters_of_batch_norm(options: Model, info: Info, size: int, norms: int) -> None:
    """Two numbers a channel, either way: the stem's norm, two in each block, and (post) one in each of 3 shortcuts."""
    net = create.skeleton(options, info)
    found = [part for part in net.modules() if isinstance(part, nn.GroupNorm)]
    assert params(net) == size and len(found) == norms and {part.num_groups for part in found} == {4}
    assert not list(net.buffers()) and num_statistics(net) == 0


@pytest.mark.parametrize("order", ["post", "pre"])
def test_an_example_does_not_see_its_batch(order: str) -> None:
    """As it does with BatchNorm."""
    x = randn(4, 1, 8, 8)
    for norm, is_alone in (("group", True), ("batch", False)):
        net = create.build(ResNet18(width=0.125, blocks=(1, 1), order=order, norm=norm), Info(), 0)
        together, alone = net(x), torch.cat([net(example[None]) for example in x])
        assert together.shape == (4, 4) and torch.allclose(together, alone, atol=1e-5) == is_alone


@pytest.mark.parametrize(
    ("options", "width", "said"),
    [
        (ResNet18(norm="group"), 0.35, "22 channels of bn1 equally; choose another width, or batch$"),
        (Torchvision(name="torchvision:vgg16", norm="group"), 1.0, "no BatchNorm"),
    ],
)
def test_groups_that_are_refused(options: Model, width: float, said: str) -> None:
    assert re.search(f"model.norm.*{said}", refusal(lambda: create.skeleton(options, images(), width)))
