"""Dense weight -> factors (the server publishes) and factors -> dense weight (the server aggregates)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import torch

from fedmpi.lowrank.factorized import FactorizedLayer
from fedmpi.lowrank.svd import Solver, compose, truncated_svd


def factorize(
    layer: FactorizedLayer, weight: torch.Tensor, r: int, solver: Solver = "gram"
) -> tuple[torch.Tensor, torch.Tensor]:
    """Dense weight (n, m, kh, kw) or (n, m) -> (u_weight, v_weight) at rank r, contiguous."""
    u, v = truncated_svd(layer.unroll(weight), r, solver)
    return layer.u_weight(u), layer.v_weight(v)


def lift(layer: FactorizedLayer, u_weight: torch.Tensor, v_weight: torch.Tensor) -> torch.Tensor:
    """(u_weight, v_weight) at any rank -> the dense weight (n, m, kh, kw) or (n, m) they stand for, contiguous."""
    return layer.fold(compose(layer.u_matrix(u_weight), layer.v_matrix(v_weight)))


def multiply_back(
    layers: Iterable[FactorizedLayer], factors: Mapping[str, torch.Tensor], out: Mapping[str, torch.Tensor]
) -> None:
    """Fills a dense net's parameters from those of its factorized twin, at any rank."""
    weights = {f"{layer.name}.weight": layer for layer in layers}
    for name, target in out.items():
        layer = weights.get(name)
        if layer is None:
            target.copy_(factors[name])
        else:
            target.copy_(lift(layer, factors[f"{layer.name}.u.weight"], factors[f"{layer.name}.v.weight"]))
