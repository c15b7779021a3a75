"""What a server that keeps dense weights publishes of its factorized layers: factors, and all singular values.

The server factorizes a layer once a round, at the largest r that some tier needs. Smaller factors are prefixes of
these.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from fedmpi.lowrank.factorized import FactorizedLayer
from fedmpi.lowrank.svd import Solver
from fedmpi.tensors import Params, Spec

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
            specs[_names(layer)[-1]] = Spec((min(layer.matrix_shape),))
        return specs

    @property
    def costs(self) -> dict[tuple[str, ...], float]:
        """Returns what `write` makes of each layer, and how long it takes: multiply-accumulates of a client that trains
        as long."""
        costs = {}
        for layer in self.layers.values():
            rows, columns = layer.matrix_shape
            costs[_names(layer)] = float(COST * min(rows, columns) * rows * columns)
        return costs

    def write(self, state: Params, out: Params) -> None:
        """Factorizes into `out` the weights whose factors are there; their shapes say to which r."""
        for layer in [layer for layer in self.layers.values() if _names(layer)[0] in out]:
            names = _names(layer)
            made = layer.decompose(state[f"{layer.name}.weight"], len(out[names[0]]), self.solver)
            for name, value in zip(names, made, strict=True):
                out[name].copy_(value)

    def spectra(self, published: Params) -> Params:
        """Returns the singular values of each layer as they were published, on the CPU; empty where no factors were."""
        names = {layer.name: _names(layer)[-1] for layer in self.layers.values()}
        return {name: published[sigma].cpu() for name, sigma in names.items() if sigma in published}


def _names(layer: FactorizedLayer) -> tuple[str, ...]:
    """Names what is published of a layer: its factors and, for the record, its singular values."""
    return (*layer.factor_names, f"{layer.name}.sigma")
