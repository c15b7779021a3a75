"""Nets whose factorized layers are two plain layers in a row. FedHM, arXiv:2111.14655, 2.2 and Tables 5, 6.

Each half of a conv carries the stride, padding and dilation of its own direction; the bias stays
with the second half and nothing stands between the two. At full rank that is the dense layer.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import nn

from fedmpi.lowrank.factorized import FactorizedLayer
from fedmpi.tensors import copy_of, keep_attributes

Half = nn.Linear | nn.Conv2d


class LowRank(nn.Module):
    """`v(u(x))`: in place of the conv or linear layer whose weight the two factors approximate."""

    def __init__(self, layer: FactorizedLayer, u: Half, v: Half) -> None:
        super().__init__()
        self.layer = layer
        self.u = u
        self.v = v

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.v(self.u(x))

    @property
    def weight(self) -> torch.Tensor:
        """Returns the dense weight that the factors stand for: some nets (Swin's attention) use it past `forward`."""
        return self.layer.lift(self.u.weight, self.v.weight)

    @property
    def bias(self) -> torch.Tensor | None:
        return self.v.bias


def factorize_net(net: nn.Module, layers: Iterable[FactorizedLayer], rank_ratio: float) -> nn.Module:
    """Returns a copy of `net` whose `layers` are `LowRank` modules at this rank ratio; at ratio 1 a plain copy.

    Dense tensors keep their values, names and devices (meta included); factors hold zeros until
    they are loaded, biases excepted. State keys: `<layer>.u.weight`, `<layer>.v.weight`,
    `<layer>.v.bias`.
    """
    result = copy_of(net)
    for layer in layers if rank_ratio < 1 else ():
        dense = result.get_submodule(layer.name)
        assert isinstance(dense, (nn.Linear, nn.Conv2d))
        low = LowRank(layer, *halves(layer, dense, layer.r(rank_ratio), layer.out_features)).train(dense.training)
        if dense.bias is not None:
            low.v.bias = dense.bias
        keep_attributes(low, dense)
        result.set_submodule(layer.name, low)
    return result


def halves(layer: FactorizedLayer, dense: Half, r: int, n: int) -> tuple[Half, Half]:
    """Makes `u`, m -> r, and `v`, r -> n, of zeros and without biases.

    `u` has the geometry of `dense` along the axes of `layer.u_kernel`, `v` the rest of it.
    """
    pair: tuple[Half, Half]
    # On the meta device no random numbers are drawn for values that are about to be replaced.
    if isinstance(dense, nn.Linear):
        u = nn.Linear(layer.in_features, r, bias=False, device="meta")
        pair = u, nn.Linear(r, n, bias=False, device="meta")
    else:
        axes, rest = {"paper": ((0,), (1,)), "code": ((1,), (0,)), "output": ((0, 1), ())}[layer.unroll_order]
        conv = nn.Conv2d(layer.in_features, r, bias=False, device="meta", **_along(dense, axes))
        pair = conv, nn.Conv2d(r, n, bias=False, device="meta", **_along(dense, rest))
    for half in pair:
        # Not by `to_empty`, which imports sympy on its way from meta: 0.5 s at the start of every rank.
        half.weight = nn.Parameter(torch.zeros(half.weight.shape, dtype=dense.weight.dtype, device=dense.weight.device))
    return pair


def _along(dense: nn.Conv2d, axes: Sequence[int]) -> dict[str, Any]:
    """Returns the geometry of `dense` along these axes (0 vertical, 1 horizontal), and none along the others."""

    def keep(pair: Sequence[int], neutral: int) -> tuple[int, int]:
        return (pair[0] if 0 in axes else neutral, pair[1] if 1 in axes else neutral)

    padding = [*map(int, dense.padding)]
    geometry = {"kernel_size": keep(dense.kernel_size, 1), "stride": keep(dense.stride, 1)}
    return {**geometry, "dilation": keep(dense.dilation, 1), "padding": keep(padding, 0)}
