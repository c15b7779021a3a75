"""What a page shows beside a run's files: the singular values of the server's layers."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from fedmpi.federation.tiers import Tier
from fedmpi.lowrank.factorized import FactorizedLayer
from fedmpi.pages.facts import Spectra
from fedmpi.tensors import Params


def spectra(
    layers: Mapping[str, FactorizedLayer], tiers: Sequence[Tier], server: Params, most_products: float = math.inf
) -> Spectra | None:
    """The singular values of every layer whose dense weight the server keeps, with the r of each low-rank tier.

    None where there is no such layer, or where decomposing all of them would take more than so many products.
    """
    dense = {name: layer for name, layer in layers.items() if f"{name}.weight" in server}
    products = sum(math.prod(layer.matrix_shape) * min(layer.matrix_shape) for layer in dense.values())
    if not dense or products > most_products:
        return None
    matrices = {name: layer.unroll(server[f"{name}.weight"]).double().cpu() for name, layer in dense.items()}
    values = {name: np.linalg.svd(matrix.numpy(), compute_uv=False) for name, matrix in matrices.items()}
    low = [tier for tier in tiers if tier.capacity < 1]
    return Spectra(values, {t.name: {name: layer.r(t.capacity) for name, layer in dense.items()} for t in low})
