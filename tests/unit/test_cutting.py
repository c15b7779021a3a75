"""Channel groups of every net, and nets that are really cut: their outputs against those of the masked nets."""

from collections.abc import Callable
from types import SimpleNamespace

import mynets
import pytest
import torch
from model_inputs import AnyVit
from torch import Tensor, nn
from torch.nn.utils.parametrizations import weight_norm

from fedmpi.errors import ConfigError
from fedmpi.models import create
from fedmpi.models.nets.cnn import CnnFemnist, CnnHermes, CnnPrism, Lenet5, Vgg16
from fedmpi.models.nets.lstm import LstmImdb
from fedmpi.models.nets.mlp import Mlp
from fedmpi.models.nets.resnet import ResNet18
from fedmpi.models.options import Model
from fedmpi.models.surgery import cutting, groups

GREY, COLOUR = (1, 8, 8), (3, 32, 32)
NETS = {
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
    info = SimpleNamespace(kind=kind, example_shape=shape, num_classes=10, vocabulary_size=50)
    net = create.build(options, info, 0).double()
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
@pytest.mark.parametrize("name", NETS)
def test_a_cut_net_gives_the_outputs_of_the_masked_one(name: str, axes: tuple[str, ...]) -> None:
    """In float64, relative to the largest logit: sums of up to 1e4 terms in another order, 1e-16 each."""
    options, shape = NETS[name]
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
    net = build(*NETS["resnet"])
    structure = groups.follow(net)
    stream = next(space for space in structure.spaces() if "conv1" in space)
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
    with pytest.raises(ConfigError, match=reason):
        groups.follow(make())
