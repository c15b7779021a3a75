"""What is done to nets: narrow ones in wide ones, rolling windows, the Scaler, channel groups, nets that are cut."""

import copy
import math
import re
from collections.abc import Callable
from itertools import pairwise

import mynets
import pytest
import torch
from data_fixtures import refusal
from model_inputs import AnyVit, Info, randn
from torch import Tensor, nn
from torch.nn.utils.parametrizations import weight_norm

from fedmpi.models import create
from fedmpi.models.nets.cnn import AlexNet, CnnFemnist, CnnHermes, CnnPrism, Lenet5, Vgg16
from fedmpi.models.nets.lstm import LstmChar, LstmImdb
from fedmpi.models.nets.mlp import Mlp
from fedmpi.models.nets.resnet import ResNet18
from fedmpi.models.options import Inputs, Model
from fedmpi.models.surgery import cutting, groups, nested
from fedmpi.models.surgery.groups import crossed
from fedmpi.models.surgery.nested import fan_in_shares
from fedmpi.models.surgery.rolling import Axis, rolling_axes
from fedmpi.models.surgery.scaler import add_scaler
from fedmpi.models.width import Rounding, Width

TEXT = Info("tokens", (5,), 3, 11)
MODELS = [
    (ResNet18(width=0.125, blocks=(1, 1)), Info()),
    (ResNet18(width=0.125, blocks=(1, 1), order="pre"), Info()),
    (Vgg16(width=0.0625), Info()),
    (AlexNet(width=0.0625), Info()),
    (Lenet5(), Info()),
    (CnnFemnist(width=0.25), Info()),
    (Mlp(hidden=(9, 7)), Info("vector", (6,))),
    (LstmImdb(width=0.0625), TEXT),
    (LstmChar(width=0.25), TEXT),
]
VIT = (AnyVit(embedding=24, heads=2, depth=1), Info())


def test_a_matrix_by_hand() -> None:
    """The leading 2 x 3 of [[0..3], [4..7], [8..11]]."""
    parts = nested.nested_parts(nn.Linear(4, 3), nn.Linear(3, 2))
    assert torch.arange(12).view(3, 4)[parts["weight"]].tolist() == [[0, 1, 2], [4, 5, 6]]
    assert nested.nested_parts(nn.Linear(4, 3), nn.Linear(4, 3)) == {}


@pytest.mark.parametrize(("layer", "gates"), [(nn.LSTM, 4), (nn.GRU, 3), (nn.RNN, 1)])
def test_gates_by_hand(layer: type[nn.RNNBase], gates: int) -> None:
    """Of 3 inputs and 2 hidden units the leading 2 and 1: row 0 of each gate is rows 0, 2, 4, ... of the stack."""
    wide, narrow = layer(3, 2, num_layers=2), layer(2, 1, num_layers=2)
    parts = nested.nested_parts(nn.Sequential(wide), nn.Sequential(narrow))
    rows = [2 * gate for gate in range(gates)]
    weight = torch.arange(gates * 2 * 3).view(-1, 3)
    expected = [[3 * row, 3 * row + 1] for row in rows]
    assert weight[parts["0.weight_ih_l0"]].tolist() == expected
    weight = torch.arange(gates * 2 * 2).view(-1, 2)
    for name in ("0.weight_hh_l0", "0.weight_ih_l1"):
        assert weight[parts[name]].tolist() == [[2 * row] for row in rows]
    bias = torch.arange(gates * 2)
    assert bias[parts["0.bias_hh_l1"]].tolist() == rows


@pytest.mark.parametrize(("options", "info"), MODELS, ids=lambda value: getattr(value, "name", ""))
def test_the_narrow_net_is_the_wide_one_with_zeros_elsewhere(options: Model, info: Info) -> None:
    """Zero weights, and BatchNorm's bias 0, keep the cut channels at 0 in every layer (in an LSTM: g = tanh 0), so the
    rest sees nothing of them. This fails for any other choice of entries, in one gate, input or flattened map."""
    wide, narrow = create.build(options, info, 0).eval(), create.build(options, info, 1, width=0.6).eval()
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        parts = nested.nested_parts(wide, narrow)
        for name, value in narrow.named_parameters():
            kept = torch.randn(value.shape, generator=generator) * math.sqrt(2 / math.prod(value.shape[1:]))
            wide.get_parameter(name).zero_()[parts.get(name, ...)] = kept
            value.copy_(kept)
        batch = torch.randn(6, *info.example_shape, generator=generator)
        if info.kind == "tokens":
            batch = torch.randint(info.vocabulary_size, (6, *info.example_shape), generator=generator)
        torch.testing.assert_close(wide(batch), narrow(batch), rtol=1e-4, atol=1e-5)
        assert narrow(batch).std(0).max() > 0.05


@pytest.mark.parametrize(("options", "info"), [*MODELS, VIT], ids=lambda value: getattr(value, "name", ""))
@pytest.mark.parametrize("rounding", ["round", "ceil"])
def test_nets_are_nested(options: Model, info: Info, rounding: Rounding) -> None:
    """A part of a part is the part: entries are numbered, so that equal ones are the same ones."""
    widths = (1.0, 0.7, 0.35, 0.1)
    nets = [create.skeleton(options, info, width, rounding) for width in widths]
    for name, parameter in nets[0].named_parameters():
        numbers = torch.arange(parameter.numel()).view(parameter.shape)
        directly = [numbers[nested.nested_parts(nets[0], net).get(name, ...)] for net in nets]
        for (outer, inner), (wide, narrow) in zip(pairwise(directly), pairwise(nets), strict=True):
            assert torch.equal(outer[nested.nested_parts(wide, narrow).get(name, ...)], inner)


def test_shares_of_the_inputs_by_hand() -> None:
    """Hidden layers of 9 and 7 units at width 0.6: 5 and 4; the first layer sees all 6 features."""
    options, info = Mlp(hidden=(9, 7)), Info("vector", (6,))
    shares = fan_in_shares(create.skeleton(options, info), create.skeleton(options, info, 0.6))
    assert list(shares.values()) == [1, 1, 5 / 9, 5 / 9, 4 / 7, 4 / 7]
    names = [name for name, _ in create.skeleton(options, info).named_parameters()]
    assert list(shares) == names


# A rolling window: by hand, and in every net whose channels can be followed a narrow net of its own.


NETS = [*MODELS[:2], *MODELS[3:5], (Mlp(hidden=(9, 7)), Info())]


def numbers(axis: Axis, offset: int) -> list[int]:
    return torch.arange(axis.wide * axis.block)[axis.window(offset)].tolist()


def test_windows_by_hand() -> None:
    """3 of 5 channels: 0 1 2, then 1 2 3, ...; offset 3 wraps around to 0, and offset 5 is offset 0."""
    windows = [numbers(Axis(5, 3), offset) for offset in range(6)]
    assert windows == [[0, 1, 2], [1, 2, 3], [2, 3, 4], [3, 4, 0], [4, 0, 1], [0, 1, 2]]
    assert numbers(Axis(3, 3), 2) == [0, 1, 2]


@pytest.mark.parametrize("offset", [0, 1, 6, 7])
@pytest.mark.parametrize(("options", "info"), NETS, ids=lambda value: getattr(value, "name", ""))
def test_a_window_is_a_net_of_its_own(options: Model, info: Info, offset: int) -> None:
    """It computes what the wide net does whose other entries are zeros; BatchNorm takes statistics of each channel."""
    wide, narrow = create.build(options, info, 0).eval(), create.build(options, info, 0, 0.6).eval()
    axes = rolling_axes(wide, narrow)
    for name, value in wide.named_parameters():
        held = crossed([axis.window(offset) for axis in axes.get(name, ())])
        kept: Tensor = value.detach()[held].clone()
        narrow.get_parameter(name).data.copy_(kept)
        value.data.zero_()[held] = kept
    x = randn(4, *info.example_shape)
    assert axes and torch.allclose(wide(x), narrow(x), rtol=0, atol=1e-5)


# HeteroFL's Scaler: a larger eps is the division, by hand and against a literal one; and when it is off.


RATE = 0.25


class Literal(nn.Module):
    """x / rate, then the layer."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x / RATE)


def norm_net(norm: nn.Module) -> nn.Sequential:
    return nn.Sequential(nn.Conv2d(1, 4, 3), norm, nn.ReLU(), nn.Flatten(), nn.Linear(4 * 36, 3)).double()


def gradients(net: nn.Module, x: Tensor) -> list[Tensor]:
    (net(x) ** 2).sum().backward()
    return [parameter.grad for parameter in net.parameters()]


@pytest.mark.parametrize(
    "norm",
    [
        nn.BatchNorm2d(4, eps=0.1, track_running_stats=False),
        nn.InstanceNorm2d(4, eps=0.1, affine=True),
        nn.GroupNorm(2, 4, eps=0.1),
        nn.LayerNorm((6, 6), eps=0.1),
    ],
)
def test_a_larger_eps_is_the_division(norm: nn.Module) -> None:
    """Forward and backward, with an eps that matters; float64, so only rounding is left."""
    x = torch.randn(5, 1, 8, 8, generator=torch.Generator().manual_seed(0)).double()
    plain, literal = norm_net(copy.deepcopy(norm)), norm_net(copy.deepcopy(norm))
    literal.load_state_dict(plain.state_dict())
    scaled = add_scaler(copy.deepcopy(plain), RATE)
    literal[1] = Literal(literal[1])
    torch.testing.assert_close(scaled(x), literal(x), rtol=1e-12, atol=1e-12)
    assert not torch.allclose(scaled(x), plain(x), rtol=1e-3)
    for ours, theirs in zip(gradients(scaled, x), gradients(literal, x), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-12)


def test_without_norm_layers_it_stands_after_all_but_the_last() -> None:
    """Weights 2, 3, 5 and biases 1: ((1 * 2 + 1) / 0.25 * 3 + 1) / 0.25 * 5 + 1 = 741."""
    net = nn.Sequential(nn.Linear(1, 1), nn.ReLU(), nn.Linear(1, 1), nn.ReLU(), nn.Linear(1, 1))
    for layer, weight in zip((net[0], net[2], net[4]), (2.0, 3.0, 5.0), strict=True):
        nn.init.constant_(layer.weight, weight)
        nn.init.constant_(layer.bias, 1.0)
    one = torch.ones(1, 1)
    assert net(one).item() == ((1 * 2 + 1) * 3 + 1) * 5 + 1 == 51
    assert add_scaler(net, RATE)(one).item() == 741
    assert net.eval()(one).item() == 51


# Channel groups of every net, and nets that are really cut: their outputs against those of the masked nets.


class FlatNorm(Model):
    name: str = "flat_norm"

    def net(self, info: Inputs, width: Width) -> nn.Module:
        """A BatchNorm of numbers of a flattened image: one for each place of each channel."""
        hidden = (nn.Flatten(), nn.BatchNorm1d(4 * 36), nn.ReLU(), nn.Linear(4 * 36, 20), nn.ReLU())
        return nn.Sequential(nn.Conv2d(1, 4, 3), *hidden, nn.Linear(20, info.num_classes))


GREY, COLOUR = (1, 8, 8), (3, 32, 32)
CUT_NETS = {
    "norm behind a flattening": (FlatNorm(), GREY),
    "resnet": (ResNet18(width=0.125, blocks=(2, 1, 1)), COLOUR),
    "pre-activation": (ResNet18(width=0.125, blocks=(2, 1, 1), order="pre"), GREY),
    "mlp": (Mlp(hidden=(20, 12)), GREY),
    "lenet5": (Lenet5(), GREY),
    "cnn_hermes": (CnnHermes(), (1, 28, 28)),
    "cnn_femnist": (CnnFemnist(width=0.25), GREY),
    "cnn_prism": (CnnPrism(width=0.25), GREY),
    "vgg16": (Vgg16(width=0.03), GREY),
}


def build(options: Model, shape: tuple[int, ...], kind: str = "image") -> nn.Module:
    """The net in float64, with norms that are neither 1 nor 0, so that nothing is equal by chance."""
    net = create.build(options, Info(kind, shape, 10, 50), 0).double()
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for value in net.parameters():
            if value.dim() == 1:
                value += 0.5 * torch.rand(value.shape, generator=generator, dtype=torch.float64)
    return net.eval()


def drawn_masks(structure: groups.Structure, axes: tuple[str, ...], share: float = 0.5) -> dict[str, Tensor]:
    """Some groups of every family but the classes' outputs; at least one stays."""
    generator, masks = torch.Generator().manual_seed(2), {}
    for name, layer in structure.layers.items():
        for axis in axes:
            if axis == "in" or name not in structure.outputs:
                mask = torch.rand(layer.num_outputs if axis == "out" else layer.num_inputs, generator=generator) < share
                mask[int(torch.randint(len(mask), (), generator=generator))] = True
                masks[f"{axis}.{name}"] = mask
    return masks


@pytest.mark.parametrize("axes", [("out",), ("in",), ("out", "in")], ids=str)
@pytest.mark.parametrize("name", CUT_NETS)
def test_a_cut_net_gives_the_outputs_of_the_masked_one(name: str, axes: tuple[str, ...]) -> None:
    """In float64, relative to the largest logit: sums of up to 1e4 terms in another order, 1e-16 each."""
    options, shape = CUT_NETS[name]
    net = build(options, shape)
    structure = groups.follow(net)
    masks = drawn_masks(structure, axes)
    small = cutting.cut(net, masks)
    inputs = torch.randn(5, *shape, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    with torch.no_grad():
        whole = net(inputs)
        groups.zeroing(dict(net.named_parameters()), groups.kept_entries(structure, masks))()
        masked, cut = net(inputs), small(inputs)
    scale = float(masked.abs().max())
    assert float((cut - masked).abs().max()) < 1e-11 * scale
    assert float((whole - masked).abs().max()) > 1e-3 * scale, "the masks change nothing here"
    sizes = [sum(value.numel() for value in one.parameters()) for one in (small, net)]
    assert sizes[0] < 0.8 * sizes[1]


def test_a_perceptron_by_hand() -> None:
    """2 -> 3 -> 2 without hidden unit 1: of 9 + 8 numbers, the masks keep 6 + 8 and the cut net 6 + 6."""
    net = nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 2))
    masks = {"out.0": torch.tensor([True, False, True])}
    structure = groups.follow(net)
    assert structure.outputs == {"2"} and structure.layers["2"].sources == {"0"}
    assert structure.num_params == 17
    assert groups.num_held(structure, groups.kept_entries(structure, masks)) == 14
    small = cutting.cut(net, masks)
    assert torch.equal(small[0].weight, net[0].weight[[0, 2]]) and torch.equal(small[0].bias, net[0].bias[[0, 2]])
    assert torch.equal(small[2].weight, net[2].weight[:, [0, 2]]) and torch.equal(small[2].bias, net[2].bias)
    assert (small[0].out_features, small[2].in_features) == (2, 2)


def test_what_additions_tie_together_stays_in_step() -> None:
    """The stream of a ResNet's first stage has channels as long as one of its writers keeps them, zeros elsewhere."""
    net = build(*CUT_NETS["resnet"])
    structure = groups.follow(net)
    stream = next(space for space in structure.spaces if "conv1" in space)
    assert stream == {"conv1", "stages.0.0.conv2", "stages.0.1.conv2"}
    first, second = torch.arange(8) < 2, torch.arange(8) >= 5
    masks = {"out.conv1": first, "out.stages.0.0.conv2": second, "out.stages.0.1.conv2": first}
    small = cutting.cut(net, masks)
    assert small.conv1.weight.shape[0] == small.stages[0][1].conv1.weight.shape[1] == 5
    assert small.bn1.weight.tolist() == [*net.bn1.weight[:2].tolist(), 0, 0, 0]
    assert small.stages[0][0].bn2.bias.tolist() == [0, 0, *net.stages[0][0].bn2.bias[5:].tolist()]


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda: mynets.Joins(4, GREY), "it calls cat"),
        (lambda: nn.Sequential(nn.Conv2d(4, 4, 3, groups=4)), "0 is a grouped convolution"),
        (lambda: nn.Sequential(weight_norm(nn.Linear(4, 4))), "0 computes its weight from other parameters"),
        (lambda: nn.Sequential(nn.Conv2d(4, 4, 3), nn.GroupNorm(2, 4)), "1 is a GroupNorm"),
        (lambda: build(LstmImdb(), (20,), "tokens"), r"lstm \(of type Lstm\) mixes them; take another model"),
        (lambda: build(AnyVit(depth=1), GREY), r"self_attention \(of type Attention\) mixes them; take another model"),
    ],
)
def test_nets_whose_channels_cannot_be_followed(make: Callable[[], nn.Module], reason: str) -> None:
    assert re.search(reason, refusal(lambda: groups.follow(make())))
