"""A narrow net is the leading part of a wide one: by hand, per gate, for every model, and with its gradients."""

import math
from itertools import pairwise

import pytest
import torch
from model_inputs import Info
from torch import nn

from fedmpi.models import create
from fedmpi.models.options import (
    AlexNet,
    CnnFemnist,
    Lenet5,
    LstmChar,
    LstmImdb,
    Mlp,
    ModelOptions,
    ResNet18,
    Vgg16,
    VitSmall,
)
from fedmpi.models.surgery import nested
from fedmpi.models.surgery.nested import Part, fan_in_shares
from fedmpi.models.width import Rounding

TEXT = Info("tokens", (5,), 3, 11)
MODELS = [
    (ResNet18(width=0.125, blocks=(1, 1)), Info()),
    (ResNet18(width=0.125, blocks=(1, 1), order="pre"), Info()),
    (Vgg16(width=0.0625, dropout=0.0), Info()),
    (AlexNet(width=0.0625, dropout=0.0), Info()),
    (Lenet5(), Info()),
    (CnnFemnist(width=0.25), Info()),
    (Mlp(hidden=(9, 7)), Info("vector", (6,))),
    (LstmImdb(width=0.0625), TEXT),
    (LstmChar(width=0.25), TEXT),
]
VIT = (VitSmall(embedding=24, heads=2, depth=1), Info())


def parts_of(options: ModelOptions, info: Info, wide: float, narrow: float) -> dict[str, Part]:
    return nested.nested_parts(*(create.skeleton(options, info, width) for width in (wide, narrow)))


def test_a_matrix_by_hand() -> None:
    """The leading 2 x 3 of [[0..3], [4..7], [8..11]]."""
    part = Part((3, 4), (2, 3))
    whole = torch.arange(12).view(3, 4)
    expected = [[0, 1, 2], [4, 5, 6]]
    assert part.of(whole).tolist() == whole[part.region].tolist() == expected
    assert part.of(whole).untyped_storage().data_ptr() == whole.untyped_storage().data_ptr()
    assert not part.is_whole and Part((3, 4), (3, 4)).is_whole


@pytest.mark.parametrize(("layer", "gates"), [(nn.LSTM, 4), (nn.GRU, 3), (nn.RNN, 1)])
def test_gates_by_hand(layer: type[nn.RNNBase], gates: int) -> None:
    """Of 3 inputs and 2 hidden units the leading 2 and 1: row 0 of each gate is rows 0, 2, 4, ... of the stack."""
    wide, narrow = layer(3, 2, num_layers=2), layer(2, 1, num_layers=2)
    parts = nested.nested_parts(nn.Sequential(wide), nn.Sequential(narrow))
    rows = [2 * gate for gate in range(gates)]
    weight = torch.arange(gates * 2 * 3).view(-1, 3)
    expected = [[3 * row, 3 * row + 1] for row in rows]
    assert parts["0.weight_ih_l0"].of(weight).tolist() == weight[parts["0.weight_ih_l0"].region].tolist() == expected
    weight = torch.arange(gates * 2 * 2).view(-1, 2)
    for name in ("0.weight_hh_l0", "0.weight_ih_l1"):
        assert parts[name].of(weight).tolist() == weight[parts[name].region].tolist() == [[2 * row] for row in rows]
    bias = torch.arange(gates * 2)
    assert parts["0.bias_hh_l1"].of(bias).tolist() == bias[parts["0.bias_hh_l1"].region].tolist() == rows


@pytest.mark.parametrize(("options", "info"), MODELS, ids=lambda value: getattr(value, "name", ""))
def test_the_narrow_net_is_the_wide_one_with_zeros_elsewhere(options: ModelOptions, info: Info) -> None:
    """Zero weights, and BatchNorm's bias 0, keep the cut channels at 0 in every layer (in an LSTM: g = tanh 0), so the
    rest sees nothing of them. This fails for any other choice of entries, in one gate, input or flattened map."""
    wide, narrow = create.build(options, info, 0), create.build(options, info, 1, width=0.6)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for name, part in nested.nested_parts(wide, narrow).items():
            kept = torch.randn(part.shape, generator=generator) * math.sqrt(2 / math.prod(part.shape[1:]))
            wide.get_parameter(name).zero_()[part.region] = kept
            narrow.get_parameter(name).copy_(kept)
        batch = torch.randn(6, *info.example_shape, generator=generator)
        if info.kind == "tokens":
            batch = torch.randint(info.vocabulary_size, (6, *info.example_shape), generator=generator)
        torch.testing.assert_close(wide(batch), narrow(batch), rtol=1e-4, atol=1e-5)
        assert narrow(batch).std(0).max() > 0.05


@pytest.mark.parametrize(("options", "info"), [*MODELS, VIT], ids=lambda value: getattr(value, "name", ""))
@pytest.mark.parametrize("rounding", ["round", "ceil"])
def test_nets_are_nested(options: ModelOptions, info: Info, rounding: Rounding) -> None:
    """A part of a part is the part: entries are numbered, so that equal ones are the same ones."""
    widths = (1.0, 0.7, 0.35, 0.1)
    nets = [create.skeleton(options, info, width, rounding) for width in widths]
    for name, parameter in nets[0].named_parameters():
        numbers = torch.arange(parameter.numel()).view(parameter.shape)
        directly = [nested.nested_parts(nets[0], net)[name].of(numbers) for net in nets]
        for (outer, inner), (wide, narrow) in zip(pairwise(directly), pairwise(nets), strict=True):
            assert torch.equal(nested.nested_parts(wide, narrow)[name].of(outer), inner)


def test_gradients_flow_into_the_part() -> None:
    """Ones on the leading entries of each gate, zeros elsewhere; the same for slices."""
    for part in (Part((4, 3), (2, 2)), Part((4, 3), (2, 2), gates=2)):
        weight = torch.randn(4, 3, requires_grad=True)
        part.of(weight).sum().backward()
        expected = torch.zeros(4, 3)
        expected[part.region] = 1
        assert torch.equal(weight.grad, expected) and expected.sum() == 4


def test_shares_of_the_inputs_by_hand() -> None:
    """Hidden layers of 9 and 7 units at width 0.6: 5 and 4; the first layer sees all 6 features."""
    options, info = Mlp(hidden=(9, 7)), Info("vector", (6,))
    shares = fan_in_shares(create.skeleton(options, info), create.skeleton(options, info, 0.6))
    assert list(shares.values()) == [1, 1, 5 / 9, 5 / 9, 4 / 7, 4 / 7]
    names = [name for name, _ in create.skeleton(options, info).named_parameters()]
    assert list(shares) == names


def test_shares_of_a_resnet_leave_the_stem_and_the_norms() -> None:
    options = ResNet18(blocks=(1, 1))
    shares = fan_in_shares(create.skeleton(options, Info()), create.skeleton(options, Info(), 0.25))
    assert shares.pop("conv1.weight") == 1 and set(shares.values()) == {0.25}
    assert not any("bn" in name for name in shares) and {"fc.weight", "fc.bias"} <= set(shares)
