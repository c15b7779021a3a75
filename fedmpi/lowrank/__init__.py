"""Low-rank algebra: SVD, which layers are factorized, factor nets, Frobenius decay, lifting.

Knows no client, no config and no method. Throughout: a factorized layer with m inputs and n
outputs runs as two layers, `u` (m -> r, applied first) and `v` (r -> n, with the bias); the
unrolled weight W (M, N) is approximated by u_matrix (M, r) @ v_matrix (r, N).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fedmpi.lazy import exports

if TYPE_CHECKING:
    from fedmpi.lowrank.decay import frobenius_decay_
    from fedmpi.lowrank.layers import FactorizedLayer
    from fedmpi.lowrank.modules import LowRank, factorize_net
    from fedmpi.lowrank.plan import Rule, plan_layers
    from fedmpi.lowrank.recovery import factorize, lift
    from fedmpi.lowrank.svd import compose, truncated_svd

__all__ = [
    "FactorizedLayer",
    "LowRank",
    "Rule",
    "compose",
    "factorize",
    "factorize_net",
    "frobenius_decay_",
    "lift",
    "plan_layers",
    "truncated_svd",
]

__getattr__ = exports(
    __name__,
    {
        "FactorizedLayer": "layers",
        "LowRank": "modules",
        "Rule": "plan",
        "compose": "svd",
        "factorize": "recovery",
        "factorize_net": "modules",
        "frobenius_decay_": "decay",
        "lift": "recovery",
        "plan_layers": "plan",
        "truncated_svd": "svd",
    },
)
