"""Nets whose factorized layers are two plain layers in a row, and LSTMs whose gates are layers.

FedHM, arXiv:2111.14655, 2.2 and Tables 5, 6: each half of a conv carries the stride, padding and dilation of its own
direction. The bias stays the layer's own, and nothing stands between the two. At full rank that is the dense layer.

PriSM, arXiv:2208.13141, Remark 3.1 (low rank of LSTMs): torch keeps the four gates of a matrix in one tensor. Here each
is a linear layer inside the LSTM; before every forward pass a hook puts their weights together, and torch's own LSTM
runs. As in the authors' code, this saves parameters and messages but no computation.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedmpi.lowrank.factorized import FactorizedLayer
from fedmpi.tensors import copy_of, keep_attributes, linear_of

Half = nn.Linear | nn.Conv2d

GATES = ("i", "f", "g", "o")
"""In the order in which torch stacks them: input, forget, cell and output gate."""
_MATRICES = ("weight_ih_", "weight_hh_")
# Of each order: the axes (0 vertical, 1 horizontal) along which `u` has the geometry of the dense conv, and `v`.
_AXES = {"paper": ((0,), (1,)), "code": ((1,), (0,)), "output": ((0, 1), ())}
_NO_GEOMETRY = {"kernel_size": 1, "stride": 1, "dilation": 1, "padding": 0}


class LowRank(nn.Module):
    """`v(u(x))` and the bias, in place of the conv or linear layer whose weight the factors of rank r approximate.

    `v` has the leading `num_outputs` rows, at most all; the other outputs are zero.
    """

    def __init__(self, layer: FactorizedLayer, dense: Half, r: int, num_outputs: int) -> None:
        super().__init__()
        q = min(num_outputs, layer.out_features)
        u_axes, v_axes = _AXES[layer.unroll_order]
        self.layer = layer
        self.u = _half(dense, layer.in_features, r, u_axes)
        self.v = _half(dense, r, q, v_axes)
        self.bias = dense.bias
        self._num_missing = layer.out_features - q
        # Of an image the channels come third to last, of anything else last.
        self._axes_behind = dense.weight.dim() - 2

    def forward(self, x: Tensor) -> Tensor:
        out = self.v(self.u(x))
        if self._num_missing:
            out = F.pad(out, (0, 0) * self._axes_behind + (0, self._num_missing))
        return out if self.bias is None else out + self.bias.view(-1, *(1,) * self._axes_behind)

    @property
    def weight(self) -> Tensor:
        """Returns the dense weight that the factors stand for: an LSTM and Swin's attention use it past `forward`."""
        v = self.v.weight
        return self.layer.lift(self.u.weight, F.pad(v, (0, 0) * (v.dim() - 1) + (0, self._num_missing)))


def _half(dense: Half, inputs: int, outputs: int, axes: Sequence[int]) -> Half:
    """Makes a layer of zeros, without bias, of the type of `dense` and its geometry along these axes."""
    half: Half
    # On the meta device no random numbers are drawn for values that are about to be replaced.
    if isinstance(dense, nn.Linear):
        half = nn.Linear(inputs, outputs, bias=False, device="meta")
    else:
        geometry: dict[str, Any] = {}
        for name, neutral in _NO_GEOMETRY.items():
            own = getattr(dense, name)
            geometry[name] = tuple(own[axis] if axis in axes else neutral for axis in (0, 1))
        half = nn.Conv2d(inputs, outputs, bias=False, device="meta", **geometry)
    # Not by `to_empty`, which imports sympy on its way from meta: 0.5 s at the start of every rank.
    half.weight = nn.Parameter(torch.zeros(half.weight.shape, dtype=dense.weight.dtype, device=dense.weight.device))
    return half


def factorize_net(net: nn.Module, layers: Iterable[FactorizedLayer], rank_ratio: float) -> nn.Module:
    """Returns a copy of `net` whose `layers` are `LowRank` modules at this rank ratio; at ratio 1 a plain copy."""
    result = copy_of(net)
    for layer in layers if rank_ratio < 1 else ():
        _put_factors(result, layer, layer.r(rank_ratio), layer.out_features)
    return result


def kernel_net(net: nn.Module, sizes: Mapping[str, tuple[int, int]]) -> nn.Module:
    """Returns a copy of `net` whose layers named in `sizes` have (r, q): r principal kernels, of which q rows of `v`
    are held."""
    result = copy_of(net)
    for name, (r, q) in sizes.items():
        _put_factors(result, FactorizedLayer.of(name, result.get_submodule(name), "output"), r, q)
    return result


def _put_factors(net: nn.Module, layer: FactorizedLayer, r: int, num_outputs: int) -> None:
    """Puts a `LowRank` in place of a layer of `net`.

    Dense tensors keep their values, names and devices (meta included); factors hold zeros until they are loaded. State
    keys: `<layer>.u.weight`, `<layer>.v.weight`, `<layer>.bias`.
    """
    dense = net.get_submodule(layer.name)
    assert isinstance(dense, (nn.Linear, nn.Conv2d))
    low = LowRank(layer, dense, r, num_outputs).train(dense.training)
    keep_attributes(low, dense)
    net.set_submodule(layer.name, low)


def open_lstms(net: nn.Module) -> nn.Module:
    """Gives every LSTM of `net` its gates as linear layers, in place; returns `net`.

    `<lstm>.weight_ih_l0` (4 n, m) becomes `<lstm>.ih_l0.i.weight` (n, m), then `f`, `g`, `o`; so do the
    recurrent ones. Biases stay where they are. Whatever takes a gate's place must have a `weight`.
    """
    for lstm in [module for module in net.modules() if isinstance(module, nn.LSTM)]:
        matrices = {name: value for name, value in lstm.named_parameters(recurse=False) if name.startswith(_MATRICES)}
        for name, matrix in matrices.items():
            del lstm._parameters[name]
            gates = map(linear_of, matrix.chunk(len(GATES)))
            lstm.add_module(name.removeprefix("weight_"), nn.ModuleDict(dict(zip(GATES, gates, strict=True))))
        lstm.register_forward_pre_hook(_stack_gates)
        lstm.register_forward_hook(_forget_stacks, always_call=True)
    return net


def _stack_gates(lstm: nn.Module, inputs: object) -> None:
    for name, gates in lstm.named_children():
        weights: list[Any] = [gate.weight for gate in gates.children()]  # a property, where it is computed
        setattr(lstm, f"weight_{name}", torch.cat(weights))


def _forget_stacks(lstm: nn.Module, inputs: object, outputs: object) -> None:
    """Drops results of a pass that has gradients: an LSTM that kept them could not be copied."""
    for name, _ in lstm.named_children():
        setattr(lstm, f"weight_{name}", None)
