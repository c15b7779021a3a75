"""Nets whose factorized layers are two plain layers in a row. FedHM, arXiv:2111.14655, 2.2 and Tables 5, 6.

Each half of a conv carries the stride, padding and dilation of its own direction; the bias stays
with the second half and nothing stands between the two. At full rank that is the dense layer.
"""

from __future__ import annotations

import copy
from collections.abc import Collection, Iterable, Sequence
from typing import Any

import torch
from torch import nn

from fedmpi.lowrank.factorized import FactorizedLayer
from fedmpi.lowrank.lifting import lift

Half = nn.Linear | nn.Conv2d


class LowRank(nn.Module):
    """`v(u(x))`: in place of the conv or linear layer whose weight the two factors approximate."""

    def __init__(self, layer: FactorizedLayer, u: Half, v: Half) -> None:
        super().__init__()
        self.layer, self.u, self.v = layer, u, v

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.v(self.u(x))

    @property
    def weight(self) -> torch.Tensor:
        """The dense weight that the factors stand for: some nets (Swin's attention) use it past `forward`."""
        return lift(self.layer, self.u.weight, self.v.weight)

    @property
    def bias(self) -> torch.Tensor | None:
        return self.v.bias


def factorize_net(net: nn.Module, layers: Iterable[FactorizedLayer], rank_ratio: float) -> nn.Module:
    """A copy of `net` whose `layers` are `LowRank` modules at this rank ratio; at ratio 1 a plain copy.

    Dense tensors keep their values, names and devices (meta included); factors hold zeros until
    they are loaded, biases excepted. State keys: `<layer>.u.weight`, `<layer>.v.weight`,
    `<layer>.v.bias`.
    """
    result = copy.deepcopy(net)
    if rank_ratio >= 1:
        return result
    for layer in layers:
        parent_name, _, child_name = layer.name.rpartition(".")
        parent = result.get_submodule(parent_name)
        setattr(parent, child_name, _low_rank(layer, getattr(parent, child_name), layer.r(rank_ratio)))
    return result


def _low_rank(layer: FactorizedLayer, dense: nn.Module, r: int) -> LowRank:
    assert isinstance(dense, (nn.Linear, nn.Conv2d))
    n = layer.out_features
    halves: tuple[Half, Half]
    halves = linear_halves(dense, r, n) if isinstance(dense, nn.Linear) else conv_halves(layer, dense, r, n)
    for half in halves:
        fill_with_zeros(half, dense)
    module = LowRank(layer, *halves).train(dense.training)
    if dense.bias is not None:
        module.v.bias = dense.bias
    return module


def fill_with_zeros(half: Half, dense: Half) -> None:
    """Gives a layer that was made on the meta device its weight: zeros, of the type and on the device of `dense`'s."""
    # Not by `to_empty`, which imports sympy on its way from meta: 0.5 s at the start of every rank.
    half.weight = nn.Parameter(torch.zeros(half.weight.shape, dtype=dense.weight.dtype, device=dense.weight.device))


def linear_halves(dense: nn.Linear, r: int, n: int) -> tuple[nn.Linear, nn.Linear]:
    """m -> r and r -> n, without biases and without values."""
    # On the meta device no random numbers are drawn for values that are about to be replaced.
    first = nn.Linear(dense.in_features, r, bias=False, device="meta")
    return first, nn.Linear(r, n, bias=False, device="meta")


def conv_halves(layer: FactorizedLayer, dense: nn.Conv2d, r: int, n: int) -> tuple[nn.Conv2d, nn.Conv2d]:
    """m -> r with the geometry of `dense` along the axes of `layer.u_kernel`, r -> n with the rest of it."""
    axes = {"paper": (0,), "code": (1,), "output": (0, 1)}[layer.unroll_order]
    rest = tuple(axis for axis in (0, 1) if axis not in axes)
    first = nn.Conv2d(dense.in_channels, r, bias=False, device="meta", **_along(dense, axes))
    return first, nn.Conv2d(r, n, bias=False, device="meta", **_along(dense, rest))


def _along(dense: nn.Conv2d, axes: Collection[int]) -> dict[str, Any]:
    """The geometry of `dense` along these axes (0 vertical, 1 horizontal), and no geometry along the others."""

    def keep(pair: Sequence[int], neutral: int) -> tuple[int, int]:
        return (pair[0] if 0 in axes else neutral, pair[1] if 1 in axes else neutral)

    return {
        "kernel_size": keep(dense.kernel_size, 1),
        "stride": keep(dense.stride, 1),
        "padding": keep([*map(int, dense.padding)], 0),
        "dilation": keep(dense.dilation, 1),
    }
