"""Nets as a user of torch expects them: in eval mode, BatchNorm statistics in buffers, no code of fedmpi needed to load
the state.

What training has put in is taken out: hooks of the Scaler, gates of an LSTM as layers of their own. Factorized layers
stay as two layers (`<layer>.u`, then `<layer>.v`), or become the plain layer whose weight is their product.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from fedmpi.export.choices import Form
from fedmpi.learning.bn import batch_norms
from fedmpi.lowrank.gates import GATES
from fedmpi.lowrank.kernels import Kernels
from fedmpi.lowrank.modules import LowRank
from fedmpi.models.nets.lstm import Lstm

_HOOKS = ("_forward_hooks", "_forward_pre_hooks")


def plain(net: nn.Module, statistics: Tensor | None, form: Form) -> nn.Module:
    """`net`, changed in place: `statistics` (num_statistics,) in its BatchNorms (None: it has none), in this form."""
    for part in net.modules():
        _remove_our_hooks(part)
    for part in net.modules():
        if isinstance(part, nn.LSTM):
            _close(part)
    if form == "dense":
        for name, part in [*net.named_modules()]:
            if isinstance(part, (LowRank, Kernels)):
                parent, _, child = name.rpartition(".")
                setattr(net.get_submodule(parent), child, _multiplied_out(part))
    if statistics is not None:
        _put(net, statistics)
    return net.eval().requires_grad_(False)


def with_values(net: nn.Module) -> nn.Module:
    """`net`, whose parameters a method may leave on the meta device, with zeros for those; ties stay."""
    made: dict[int, nn.Parameter] = {}
    for part in net.modules():
        for name, value in part._parameters.items():
            if value is not None and value.is_meta:
                part._parameters[name] = made.setdefault(id(value), nn.Parameter(torch.zeros(value.shape)))
    return net


def factorized_layers(net: nn.Module) -> list[str]:
    """The names of the layers that run as two; an LSTM's gates do not, because their products run."""
    gates = tuple(f"{name}." for name, part in net.named_modules() if isinstance(part, nn.LSTM))
    found = [name for name, part in net.named_modules() if isinstance(part, (LowRank, Kernels))]
    return [name for name in found if not name.startswith(gates)]


def _remove_our_hooks(part: nn.Module) -> None:
    """Those of the user's own net stay: some (torch's spectral norm) compute its weights."""
    for kind in _HOOKS:
        hooks = getattr(part, kind)
        for key in [key for key, hook in hooks.items() if hook.__module__.startswith("fedmpi.")]:
            del hooks[key]


def _close(lstm: nn.LSTM) -> None:
    """Each of its matrices in one tensor again, as torch stacks the gates; the class is torch's own."""
    for name, gates in [*lstm.named_children()]:
        weights = [getattr(gates, gate).weight.detach() for gate in GATES]
        del lstm._modules[name]
        vars(lstm).pop(f"weight_{name}", None)
        setattr(lstm, f"weight_{name}", nn.Parameter(torch.cat(weights)))
    if type(lstm) is Lstm:  # its forward only serves training and counting
        object.__setattr__(lstm, "__class__", nn.LSTM)


def _multiplied_out(layer: LowRank | Kernels) -> nn.Module:
    """The plain layer of the same outputs, up to float rounding."""
    weight, bias, (u, v) = layer.weight.detach(), layer.bias, (layer.u, layer.v)
    n, m = weight.shape[:2]
    dense: nn.Linear | nn.Conv2d
    if isinstance(u, nn.Conv2d) and isinstance(v, nn.Conv2d):
        height, breadth = weight.shape[2:]
        # Along each axis one of the two halves is neutral: 1, and a padding of 0.
        stride, dilation, padding = (
            (max(int(one[0]), int(two[0])), max(int(one[1]), int(two[1])))
            for one, two in ((u.stride, v.stride), (u.dilation, v.dilation), (u.padding, v.padding))
        )
        dense = nn.Conv2d(m, n, (height, breadth), stride, padding, dilation, bias=bias is not None, device="meta")
    else:
        dense = nn.Linear(m, n, bias=bias is not None, device="meta")
    dense.weight = nn.Parameter(weight.clone())
    if bias is not None:
        dense.bias = nn.Parameter(bias.detach().clone())
    return dense


def _put(net: nn.Module, statistics: Tensor) -> None:
    layers = batch_norms(net)
    parts = iter(statistics.split([n for layer in layers for n in (layer.num_features,) * 2]))
    for layer in layers:
        layer.running_mean, layer.running_var = next(parts).clone(), next(parts).clone()
        layer.num_batches_tracked = torch.zeros((), dtype=torch.int64)
        layer.track_running_stats = True
