"""Attention of low rank: queries, keys, values and outputs are a matrix each, factorized, counted and run as such."""

import torch
from model_inputs import AnyVit, loaded, params, randn
from torch import nn

from fedmpi.data.dataset import DataInfo
from fedmpi.lowrank.factorized import FactorizedLayer
from fedmpi.lowrank.modules import factorize_net, kernel_net
from fedmpi.lowrank.rule import Rule, plan_layers
from fedmpi.models import create

IMAGES = DataInfo("image", (3, 8, 8), 5, 1, 1)
D, HIDDEN, DEPTH, TOKENS = 24, 96, 2, 5
SMALL = AnyVit(embedding=D, heads=3, depth=DEPTH)
ATTENTION = "encoder.layers.encoder_layer_0.self_attention"
OF_A_BLOCK = tuple(
    """
    self_attention.query self_attention.key self_attention.value self_attention.out mlp.0 mlp.3
""".split()
)


def net() -> nn.Module:
    """With values that show every entry, biases included."""
    built, generator = create.build(SMALL, IMAGES, 0), torch.Generator().manual_seed(1)
    for parameter in built.parameters():
        nn.init.normal_(parameter, std=0.3, generator=generator)
    return built


def planned(dense: nn.Module, **rule: object) -> tuple[FactorizedLayer, ...]:
    return plan_layers(dense, Rule(**rule))


def test_six_matrices_of_a_block_are_factorized() -> None:
    """Not the patches (the stem) and not the classifier (the last linear layer)."""
    names = [f"encoder.layers.encoder_layer_{block}.{name}" for block in range(DEPTH) for name in OF_A_BLOCK]
    assert [layer.name for layer in planned(create.skeleton(SMALL, IMAGES))] == names


def test_vit_small_at_a_quarter() -> None:
    """12 blocks of 4 * 96 * 768 + (384 + 96) * 1920 = 1,216,512 instead of 1,769,472: 14,706,826 of 21,342,346."""
    dense = create.skeleton(AnyVit(), DataInfo("image", (3, 32, 32), 10, 1, 1))
    low = factorize_net(dense, planned(dense), 0.25)
    assert params(low) == 21_342_346 - 12 * (1_769_472 - 1_216_512) == 14_706_826


def test_at_full_rank_the_net_is_the_dense_one() -> None:
    """FedHM's factors and PriSM's kernels; what is lifted is the weight."""
    dense = net()
    layers = planned(dense, overrides={"*": 10**6})
    low = loaded(factorize_net(dense, layers, 0.5), dense, layers)
    assert {"conv_proj", "heads.head", f"{ATTENTION}.query"} <= {layer.name for layer in layers}
    kernels = planned(dense, unroll="output")
    sizes = {layer.name: (min(layer.matrix_shape), layer.out_features) for layer in kernels}
    drawn = loaded(kernel_net(dense, sizes), dense, kernels)
    for other in (low, drawn):
        torch.testing.assert_close(other(randn(4, 3, 8, 8)), dense(randn(4, 3, 8, 8)), rtol=1e-5, atol=1e-5)
    for layer in layers:
        place = low.get_submodule(layer.name)
        back = layer.lift(place.u.weight, place.v.weight)
        torch.testing.assert_close(back, dense.get_parameter(f"{layer.name}.weight"), rtol=1e-5, atol=1e-5)
