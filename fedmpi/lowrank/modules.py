"""Nets whose factorized layers are two plain layers in a row. FedHM, arXiv:2111.14655, 2.2 and Tables 5, 6.

Each half of a conv carries the stride, padding and dilation of its own direction. The bias stays the layer's own, and
nothing stands between the two. At full rank that is the dense layer.
"""

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedmpi.lowrank.factorized import FactorizedLayer
from fedmpi.tensors import copy_of, keep_attributes

Half = nn.Linear | nn.Conv2d


class LowRank(nn.Module):
    """`v(u(x))` and the bias, in place of the conv or linear layer whose weight the factors of rank r approximate.

    `v` has the leading `num_outputs` rows, at most all; the other outputs are zero.
    """

    def __init__(self, layer: FactorizedLayer, dense: Half, r: int, num_outputs: int) -> None:
        super().__init__()
        q = min(num_outputs, layer.out_features)
        self.layer = layer
        self.u, self.v = halves(layer, dense, r, q)
        self.bias = dense.bias
        self._num_missing = layer.out_features - q
        # Of an image the channels come third to last, of anything else last.
        self._behind_outputs = (0, 0) * (dense.weight.dim() - 2)

    def forward(self, x: Tensor) -> Tensor:
        out = self.v(self.u(x))
        if self._num_missing:
            out = F.pad(out, (*self._behind_outputs, 0, self._num_missing))
        if self.bias is None:
            return out
        return out + self.bias.view(-1, *(1,) * (len(self._behind_outputs) // 2))

    @property
    def weight(self) -> Tensor:
        """Returns the dense weight that the factors stand for: an LSTM and Swin's attention use it past `forward`."""
        v = self.v.weight
        return self.layer.lift(self.u.weight, F.pad(v, (0, 0) * (v.dim() - 1) + (0, self._num_missing)))


def factorize_net(net: nn.Module, layers: Iterable[FactorizedLayer], rank_ratio: float) -> nn.Module:
    """Returns a copy of `net` whose `layers` are `LowRank` modules at this rank ratio; at ratio 1 a plain copy."""
    result = copy_of(net)
    for layer in layers if rank_ratio < 1 else ():
        put_factors(result, layer, layer.r(rank_ratio), layer.out_features)
    return result


def put_factors(net: nn.Module, layer: FactorizedLayer, r: int, num_outputs: int) -> None:
    """Puts a `LowRank` in place of a layer of `net`.

    Dense tensors keep their values, names and devices (meta included); factors hold zeros until they are loaded. State
    keys: `<layer>.u.weight`, `<layer>.v.weight`, `<layer>.bias`.
    """
    dense = net.get_submodule(layer.name)
    assert isinstance(dense, (nn.Linear, nn.Conv2d))
    low = LowRank(layer, dense, r, num_outputs).train(dense.training)
    keep_attributes(low, dense)
    net.set_submodule(layer.name, low)


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
