"""What tests of models give and count: inputs without a data set, parameters, nets that hold a dense one's factors."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from fedmpi.lowrank.factorized import FactorizedLayer
from fedmpi.lowrank.modules import factorize_net
from fedmpi.lowrank.rule import Rule, plan_layers
from fedmpi.models.nets.vit import VitSmall


@dataclass(frozen=True)
class Info:
    """As a data set's info, for the shapes alone."""

    kind: str = "image"
    example_shape: tuple[int, ...] = (1, 8, 8)
    num_classes: int = 4
    vocabulary_size: int = 11
    examples: Tensor | None = None


class AnyVit(VitSmall):
    """Options of `vit_small` with its sizes, for small nets."""

    patch: int = 4
    embedding: int = 384
    depth: int = 12
    heads: int = 6


def params(net: nn.Module) -> int:
    return sum(parameter.numel() for parameter in net.parameters())


def randn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def loaded(factors: nn.Module, dense: nn.Module, layers: tuple[FactorizedLayer, ...]) -> nn.Module:
    """A factorized copy of `dense`, holding the factors of its weights: what a client does with what is published."""
    for layer in layers:
        place, weight = factors.get_submodule(layer.name), dense.get_parameter(f"{layer.name}.weight").detach()
        place.u.weight.data, place.v.weight.data, _ = layer.decompose(weight, len(place.u.weight))
    return factors


def at_full_rank(dense: nn.Module, rule: Rule) -> nn.Module:
    """The factor net at the full rank of every layer, holding the factors of `dense`."""
    full = {layer.name: min(layer.matrix_shape) for layer in plan_layers(dense, rule)}
    layers = plan_layers(dense, Rule(rule.dense_layers, rule.unroll, full))
    return loaded(factorize_net(dense, layers, 0.5), dense, layers)
