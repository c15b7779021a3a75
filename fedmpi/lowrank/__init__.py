"""Low-rank algebra: SVD, which layers are factorized, factor nets, Frobenius decay, lifting.

Knows no client, no config and no method. Throughout: a factorized layer with m inputs and n
outputs runs as two layers, `u` (m -> r, applied first) and `v` (r -> n, with the bias); the
unrolled weight W (M, N) is approximated by u_matrix (M, r) @ v_matrix (r, N). (PriSM's V runs first,
so that its V is `u` here and its U is `v`.)
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fedmpi.lazy import exports

if TYPE_CHECKING:
    from fedmpi.lowrank.cut import with_whole_stem
    from fedmpi.lowrank.decay import frobenius_decay_
    from fedmpi.lowrank.gates import open_lstms
    from fedmpi.lowrank.kernels import draw_kernels, effective_number, kernel_net, refreshed, singular_values
    from fedmpi.lowrank.layers import FactorizedLayer
    from fedmpi.lowrank.modules import LowRank, factorize_net
    from fedmpi.lowrank.plan import Rule, plan_layers
    from fedmpi.lowrank.recovery import factorize, lift, multiply_back
    from fedmpi.lowrank.svd import compose, truncated_svd

__all__ = [
    "FactorizedLayer",
    "LowRank",
    "Rule",
    "compose",
    "draw_kernels",
    "effective_number",
    "factorize",
    "factorize_net",
    "frobenius_decay_",
    "kernel_net",
    "lift",
    "multiply_back",
    "open_lstms",
    "plan_layers",
    "refreshed",
    "singular_values",
    "truncated_svd",
    "with_whole_stem",
]

__getattr__ = exports(
    __name__,
    {
        "FactorizedLayer": "layers",
        "LowRank": "modules",
        "Rule": "plan",
        "compose": "svd",
        "draw_kernels": "kernels",
        "effective_number": "kernels",
        "factorize": "recovery",
        "factorize_net": "modules",
        "frobenius_decay_": "decay",
        "kernel_net": "kernels",
        "lift": "recovery",
        "multiply_back": "recovery",
        "open_lstms": "gates",
        "plan_layers": "plan",
        "refreshed": "kernels",
        "singular_values": "kernels",
        "truncated_svd": "svd",
        "with_whole_stem": "cut",
    },
)
