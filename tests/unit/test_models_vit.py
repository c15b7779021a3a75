"""The vision transformer: its attention against torch's, of low rank, the images that it takes, widths, costs."""

import copy
from dataclasses import replace

import pytest
import torch
from model_inputs import AnyVit, loaded, params, randn
from torch import nn
from torch.nn import functional as F
from torchvision.models.vision_transformer import VisionTransformer

from fedmpi import costs
from fedmpi.data.dataset import DataInfo
from fedmpi.lowrank.factorized import FactorizedLayer
from fedmpi.lowrank.modules import factorize_net, kernel_net
from fedmpi.lowrank.rule import Rule, plan_layers
from fedmpi.models import create
from fedmpi.models.nets.attention import open_attention
from fedmpi.models.surgery import nested

IMAGES = DataInfo("image", (3, 8, 8), 5, 1, 1)
SMALL = AnyVit(embedding=24, heads=3, depth=2)
BATCH = randn(4, 3, 8, 8)
INPUTS = ("query", "key", "value")


def images(*shape: int, num_classes: int = 10) -> DataInfo:
    return DataInfo("image", shape, num_classes, 1, 1)


def filled(net: nn.Module) -> nn.Module:
    """Returns the net with values that show every entry, biases included."""
    generator = torch.Generator().manual_seed(1)
    for parameter in net.parameters():
        nn.init.normal_(parameter, std=0.3, generator=generator)
    return net


@pytest.mark.parametrize("training", [True, False])
def test_the_net_is_torchvisions(training: bool) -> None:
    """Outputs and all gradients; torch's three matrices are the leading, middle and last thirds of one. In eval mode
    without gradients torch computes by other kernels."""
    theirs = filled(VisionTransformer(8, 4, 2, 3, 24, 96, num_classes=5)).train(training)
    ours = open_attention(copy.deepcopy(theirs))
    torch.testing.assert_close(ours(BATCH), theirs(BATCH), rtol=1e-4, atol=1e-5)
    with torch.no_grad():
        torch.testing.assert_close(ours(BATCH), theirs(BATCH), rtol=1e-4, atol=1e-5)
    for net in (ours, theirs):
        F.cross_entropy(net(BATCH), torch.tensor([0, 1, 2, 3])).backward()
    for layer in ("encoder.layers.encoder_layer_0.self_attention", "encoder.layers.encoder_layer_1.self_attention"):
        one, other = ours.get_submodule(layer), theirs.get_submodule(layer)
        for kind in ("weight", "bias"):
            grads = [getattr(one.get_submodule(name), kind).grad for name in INPUTS]
            torch.testing.assert_close(torch.cat(grads), getattr(other, f"in_proj_{kind}").grad, rtol=1e-3, atol=1e-5)
            grad = getattr(one.out, kind).grad
            torch.testing.assert_close(grad, getattr(other.out_proj, kind).grad, rtol=1e-3, atol=1e-5)
    torch.testing.assert_close(ours.conv_proj.weight.grad, theirs.conv_proj.weight.grad, rtol=1e-3, atol=1e-5)


# Of low rank: queries, keys, values and outputs are a matrix each, factorized, counted and run as such.


def planned(dense: nn.Module, **rule: object) -> tuple[FactorizedLayer, ...]:
    return plan_layers(dense, Rule(**rule))


def test_six_matrices_of_a_block_are_factorized() -> None:
    """Not the patches (the stem) and not the classifier (the last linear layer). At a quarter 12 blocks of
    4 * 96 * 768 + (384 + 96) * 1920 = 1,216,512 instead of 1,769,472: 14,706,826 of 21,342,346."""
    of_a_block = (*(f"self_attention.{name}" for name in (*INPUTS, "out")), "mlp.0", "mlp.3")
    dense = create.skeleton(AnyVit(), images(3, 32, 32))
    names = [f"encoder.layers.encoder_layer_{block}.{name}" for block in range(12) for name in of_a_block]
    assert [layer.name for layer in planned(dense)] == names
    low = factorize_net(dense, planned(dense), 0.25)
    assert params(low) == 21_342_346 - 12 * (1_769_472 - 1_216_512) == 14_706_826


def test_at_full_rank_the_net_is_the_dense_one() -> None:
    """FedHM's factors and PriSM's kernels; what is lifted is the weight."""
    dense = filled(create.build(SMALL, IMAGES, 0))
    layers = planned(dense, overrides={"*": 10**6})
    low = loaded(factorize_net(dense, layers, 0.5), dense, layers)
    query = "encoder.layers.encoder_layer_0.self_attention.query"
    assert {"conv_proj", "heads.head", query} <= {layer.name for layer in layers}
    kernels = planned(dense, unroll="output")
    sizes = {layer.name: (min(layer.matrix_shape), layer.out_features) for layer in kernels}
    drawn = loaded(kernel_net(dense, sizes), dense, kernels)
    for other in (low, drawn):
        torch.testing.assert_close(other(BATCH), dense(BATCH), rtol=1e-5, atol=1e-5)
    for layer in layers:
        place = low.get_submodule(layer.name)
        back = layer.lift(place.u.weight, place.v.weight)
        torch.testing.assert_close(back, dense.get_parameter(f"{layer.name}.weight"), rtol=1e-5, atol=1e-5)


# Widths.


def test_a_narrow_net_has_the_leading_numbers_of_every_head_by_hand() -> None:
    """Two heads of 2 numbers, of which one each stays: rows 0 and 2 of queries, columns 0 and 2 of the output."""
    options = AnyVit(embedding=4, heads=2, depth=1)
    parts = nested.nested_parts(create.skeleton(options, IMAGES), create.skeleton(options, IMAGES, 0.5))
    layer = "encoder.layers.encoder_layer_0.self_attention"
    matrix, vector = torch.arange(16).view(4, 4), torch.arange(4)
    expected = {
        **{f"{name}.weight": [[0, 1], [8, 9]] for name in INPUTS},
        **{f"{name}.bias": [0, 2] for name in INPUTS},
        "out.weight": [[0, 2], [4, 6]],
        "out.bias": [0, 1],
    }
    for name, entries in expected.items():
        whole = matrix if name.endswith("weight") else vector
        assert whole[parts[f"{layer}.{name}"]].tolist() == entries
    assert parts["class_token"] == (slice(0, 1), slice(0, 1), slice(0, 2))


def test_the_narrow_net_is_the_wide_one_with_zeros_elsewhere() -> None:
    """Without norms (they see zeros, too) and with the wide net's queries enlarged by what its larger heads divide
    more: zeros then stay zeros in every layer. This fails for any other choice of entries, or of heads."""
    nets = [create.build(SMALL, IMAGES, seed, width) for seed, width in enumerate((1.0, 0.5))]
    for net in nets:
        for name in [name for name, part in net.named_modules() if isinstance(part, nn.LayerNorm)]:
            net.set_submodule(name, nn.Identity())
    wide, narrow = nets
    parts = nested.nested_parts(wide, narrow)
    with torch.no_grad():
        for (name, value), whole in zip(filled(narrow).named_parameters(), wide.parameters(), strict=True):
            enlarged = (8 / 4) ** 0.5 if ".query." in name else 1.0
            whole.zero_()[parts.get(name, ...)] = value * enlarged
        torch.testing.assert_close(wide(BATCH), narrow(BATCH), rtol=1e-4, atol=1e-4)
        assert narrow(BATCH).std(0).max() > 0.05


@pytest.mark.parametrize(
    ("options", "info", "tokens", "d", "hidden", "depth"),
    [(AnyVit(), images(3, 32, 32), 65, 384, 1536, 12), (SMALL, replace(IMAGES, num_classes=10), 5, 24, 96, 2)],
)
def test_macs_by_hand(options: AnyVit, info: DataInfo, tokens: int, d: int, hidden: int, depth: int) -> None:
    """A block: four layers, products of queries and keys and of their weights and values, the perceptron; norms count
    2 and GELU 1 for each output. 1.42 billion at 32x32."""
    block = 4 * tokens * d * d + 2 * tokens * tokens * d + 2 * tokens * d * hidden
    macs = (tokens - 1) * 48 * d + depth * block + d * 10
    measured = costs.measure(create.skeleton(options, info), info.example_shape)
    assert measured.macs == macs
    norms_and_activations = depth * (2 * 2 * tokens * d + tokens * hidden) + 2 * tokens * d
    assert measured.macs_with_norm_and_activations == macs + norms_and_activations
    if d == 384:
        assert macs == 1_420_309_248
