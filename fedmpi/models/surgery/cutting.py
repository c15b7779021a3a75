"""A pruned net made really smaller: masked channels are cut out of its weights, its outputs stay.

Li, Sun, Li, Pu, Li, Chen, "Hermes: An efficient federated learning framework for heterogeneous
mobile clients", MobiCom 2021, section 5.7: what a client deploys. Channels that additions tie
together are kept where any of their layers writes them and any layer reads them; a layer that has
pruned such a channel keeps zeros for it, so the cut net may hold more numbers than the masks keep,
and fewer where a layer reads channels that nobody writes.
"""

import copy

import torch
from torch import Tensor, nn

from fedmpi.models.surgery.groups import INPUT, Kept, Layer, Masks, Structure, follow, kept_entries, num_held, zeroing

Channels = dict[frozenset[str], Tensor | None]
"""Which channels of each space are left; None for all."""


def cut(net: nn.Module, masks: Masks) -> nn.Module:
    """Makes a smaller net whose outputs are those of `net` with pruned parameters at zero, up to float rounding."""
    structure = follow(net)
    small = copy.deepcopy(net)
    kept = kept_entries(structure, masks)
    zeroing(dict(small.named_parameters()), kept)()
    left = {space: _left(structure, kept, space) for space in structure.spaces()}
    for channels in left.values():
        if channels is not None:
            # No layer may be empty; where what is written is never read, one channel of no effect stays.
            channels[0] |= not channels.any()
    for name, layer in structure.layers.items():
        _cut_layer(small.get_submodule(name), _of(left, frozenset({name})), _inputs(left, layer))
    for name, sources in structure.norms.items():
        _cut_norm(small.get_submodule(name), _of(left, sources))
    return small


def closed(structure: Structure, masks: Masks) -> dict[str, Tensor]:
    """Takes out of `masks` what the cut net leaves out: the inputs of channels that no layer writes any more, and the
    outputs that no layer reads.
    """
    kept = kept_entries(structure, masks)
    left = {space: _left(structure, kept, space) for space in structure.spaces()}
    smaller = dict(masks)
    for name, layer in structure.layers.items():
        for family, channels in ((f"out.{name}", _of(left, frozenset({name}))), (f"in.{name}", _inputs(left, layer))):
            if channels is not None:
                smaller[family] = masks.get(family, channels) & channels
    return smaller


def num_params(structure: Structure, masks: Masks) -> int:
    """Counts the parameters of the net that `cut` makes with `closed` masks; 0 if they leave a layer no channel."""
    kept = kept_entries(structure, masks)
    left = {space: _left(structure, kept, space) for space in structure.spaces()}
    if not all(channels is None or bool(channels.any()) for channels in left.values()):
        return 0
    axes: Kept = {}
    for name, layer in structure.layers.items():
        outputs = _of(left, frozenset({name}))
        axes |= {f"{name}.weight": (outputs, _inputs(left, layer)), f"{name}.bias": (outputs,)}
    for name, sources in structure.norms.items():
        axes |= dict.fromkeys((f"{name}.weight", f"{name}.bias"), (_of(left, sources),))
    return num_held(structure, axes)


def _inputs(left: Channels, layer: Layer) -> Tensor | None:
    """Returns which inputs of a layer read a channel that is left; None for all."""
    channels = _of(left, layer.sources)
    return None if channels is None else channels.repeat_interleave(layer.num_inputs // len(channels))


def _of(left: Channels, writers: frozenset[str]) -> Tensor | None:
    """Returns what is left of the space that these layers write."""
    return next(channels for space, channels in left.items() if writers <= space)


def _left(structure: Structure, kept: Kept, space: frozenset[str]) -> Tensor | None:
    if INPUT in space or space & structure.outputs:
        return None
    size = structure.layers[min(space)].num_outputs
    written = torch.zeros(size, dtype=torch.bool)
    read = torch.zeros(size, dtype=torch.bool)
    for name, layer in structure.layers.items():
        rows, columns = kept.get(f"{name}.weight", (None, None))
        if name in space:
            written |= True if rows is None else rows.cpu()
        if layer.sources <= space:
            read |= True if columns is None else columns.cpu().view(size, -1).any(1)
    return written & read


def _cut_layer(module: nn.Module, outputs: Tensor | None, inputs: Tensor | None) -> None:
    _take(module, "weight", outputs, inputs)
    _take(module, "bias", outputs)
    names = ("out_channels", "in_channels") if isinstance(module, nn.Conv2d) else ("out_features", "in_features")
    for axis, name in enumerate(names):
        setattr(module, name, module.get_parameter("weight").shape[axis])


def _cut_norm(module: nn.Module, entries: Tensor | None) -> None:
    if entries is not None:
        vars(module)["num_features"] = int(entries.sum())
        for name in ("weight", "bias", "running_mean", "running_var"):
            _take(module, name, entries)


def _take(module: nn.Module, name: str, *axes: Tensor | None) -> None:
    """Leaves the entries of a parameter or buffer that `axes` keep."""
    tensor = getattr(module, name)
    if tensor is None:
        return
    taken = tensor.detach()
    for axis, keep in enumerate(axes):
        if keep is not None:
            taken = taken.index_select(axis, keep.nonzero().view(-1).to(taken.device))
    setattr(module, name, nn.Parameter(taken) if isinstance(tensor, nn.Parameter) else taken)
