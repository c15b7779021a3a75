"""What a server that keeps dense weights publishes of its factorized layers: factors, and all singular values.

The server factorizes a layer once a round, at the largest r that some tier needs. Smaller factors are prefixes of
these.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from fedmpi.lowrank.factorized import FactorizedLayer
from fedmpi.lowrank.svd import Solver
from fedmpi.tensors import Params, Spec

SPECTRA = "spectra"
"""All layers' singular values in a row, published for the record."""
COST = 6
"""On one core the factors of an (M, N) matrix take as long as training of COST min(M, N) M N multiply-accumulates of a
forward pass: measured 7 on an AMD EPYC, about 5 on an Intel Xeon."""


@dataclass(frozen=True)
class PublishedFactors:
    """The factors of these layers, computed by `solver`."""

    layers: Mapping[str, FactorizedLayer]
    solver: Solver

    def specs(self, rank_ratio: float) -> dict[str, Spec]:
        """Returns names and shapes of the factors."""
        specs = {}
        for layer in self.layers.values():
            r = layer.r(rank_ratio)
            for name, shape in zip(layer.factor_names, (layer.u_shape(r), layer.v_shape(r)), strict=True):
                specs[name] = Spec(shape, channels_last=len(shape) == 4)
        return {**specs, SPECTRA: Spec((sum(self._full_ranks),))}

    @property
    def _full_ranks(self) -> list[int]:
        return [min(layer.matrix_shape) for layer in self.layers.values()]

    def write(self, state: Params, out: Params) -> None:
        """Factorizes the weights of a state into `out`, whose shapes say to which r."""
        for layer, values in zip(self.layers.values(), out[SPECTRA].split_with_sizes(self._full_ranks), strict=True):
            r = len(out[layer.factor_names[0]])
            *factors, sigma = layer.decompose(state[f"{layer.name}.weight"], r, self.solver)
            for name, factor in zip(layer.factor_names, factors, strict=True):
                out[name].copy_(factor)
            values.copy_(sigma)

    @property
    def costs(self) -> dict[str, float]:
        """Returns what `write` gives, and how long each takes: multiply-accumulates of a client that trains as long."""
        costs = {SPECTRA: 0.0}
        for layer in self.layers.values():
            u, v = layer.factor_names
            costs[u] = float(COST * min(layer.matrix_shape) * math.prod(layer.matrix_shape))
            costs[v] = 0.0  # comes with u
        return costs

    def is_in(self, published: Collection[str]) -> bool:
        """Returns whether there are factors among these tensors."""
        return SPECTRA in published

    def spectra(self, published: Params) -> Params:
        """Returns the singular values of each layer as they were published, on the CPU; empty where no factors were."""
        if SPECTRA not in published:
            return {}
        return dict(zip(self.layers, published[SPECTRA].cpu().split_with_sizes(self._full_ranks), strict=True))
