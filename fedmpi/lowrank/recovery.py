"""Dense weight -> factors (the server publishes) and factors -> dense weight (the server aggregates)."""

from __future__ import annotations

import torch

from fedmpi.lowrank.layers import FactorizedLayer
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
