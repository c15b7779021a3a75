"""Layers as sums of principal kernels, of which a client holds some. PriSM, arXiv:2208.13141, 3.2.

At full rank R = min(M, N) a layer is the sum of R kernels of rank one, most important first: filter i of `u` and column
i of `v`, the square root of sigma_i in both (`unroll_order` "output"). A client holds r of them, and of `v` the leading
q rows.

Differences from the paper: sigma is not a parameter of its own but merged, as in the authors' code.
"""

from collections.abc import Iterable

import torch
from torch import Tensor

from fedmpi.lowrank.factorized import FactorizedLayer


def refreshed(layer: FactorizedLayer, u: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """Returns the factors of the same product with orthogonal kernels, most important first; float64 in between."""
    new_u, new_v, _ = layer.decompose(layer.lift(u.double(), v.double()), min(layer.matrix_shape))
    return new_u.to(u.dtype), new_v.to(v.dtype)


def singular_values(u: Tensor, v: Tensor) -> Tensor:
    """Returns sigma (R,) of orthogonal kernels, as |u_i| |v_i|."""
    return u.flatten(1).norm(dim=1) * v.flatten(1).norm(dim=0)


def effective_number(sigma: Tensor) -> float:
    """Returns how many kernels a layer needs: 1 / sum p_i^2 with p = sigma / sum sigma (the authors' code; 4.3 prints
    an entropy)."""
    return 1.0 / float((sigma.double() / sigma.double().sum()).square().sum())


def use_of_kernels(sigma: Tensor, counts: Tensor) -> dict[str, object]:
    """Notes for a record how many kernels a layer needs, and how many clients each one had, `counts` (R,)."""
    needed = effective_number(sigma)
    return {
        "effective_kernels": round(needed, 3),
        "effective_share": round(needed / len(sigma), 4),
        "clients_per_kernel": [int(counts.min()), round(float(counts.mean()), 3), int(counts.max())],
        "clients_of_kernel": counts.int().tolist(),
        "share_untrained": round(float((counts == 0).double().mean()), 4),
    }


def draw_kernels(
    sigma: Iterable[Tensor], sizes: Iterable[int], kappa: float, generator: torch.Generator
) -> list[Tensor]:
    """Draws for each layer r kernels without replacement, p_i = sigma_i^kappa / sum (eq. 2), in order; int64 on the
    CPU.

    Each kernel has an exponential clock of rate sigma_i^kappa, and the r that ring first are taken: the same as drawing
    one after another, each time in proportion to what is left (Efraimidis and Spirakis, "Weighted random sampling with
    a reservoir", 2006). In logarithms, so that no power overflows; kernels of sigma 0 come last.
    """
    drawn = []
    for values, r in zip(sigma, sizes, strict=True):
        clocks = torch.empty(len(values), dtype=torch.float64).exponential_(generator=generator)
        times = clocks.log() - torch.special.xlogy(kappa, values.double())
        drawn.append(times.topk(r, largest=False).indices.sort().values)
    return drawn
