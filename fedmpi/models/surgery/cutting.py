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

from fedmpi.models.surgery.groups import INPUT, Kept, Masks, Structure, follow, kept_entries, num_held, zeroing

Channels = dict[frozenset[str], Tensor | None]
"""Which channels of each space are left; None for all."""


def cut(net: nn.Module, masks: Masks) -> nn.Module:
    """Makes a smaller net whose outputs are those of `net` with pruned parameters at zero, up to float rounding."""
    structure = follow(net)
    small = copy.deepcopy(net)
    zeroing(dict(small.named_parameters()), kept_entries(structure, masks))()
    left = _left(structure, masks)
    for channels in left.values():
        if channels is not None:
            # No layer may be empty; where what is written is never read, one channel of no effect stays.
            channels[0] |= not channels.any()
    for name, axes in _axes(structure, left).items():
        _take(small, name, axes)
    for name in structure.layers:
        layer = small.get_submodule(name)
        sides = ("out_channels", "in_channels") if isinstance(layer, nn.Conv2d) else ("out_features", "in_features")
        for side, size in zip(sides, layer.get_parameter("weight").shape, strict=False):
            setattr(layer, side, size)
    for name, sources in structure.norms.items():
        if (channels := _of(left, sources)) is not None:
            vars(small.get_submodule(name))["num_features"] = int(channels.sum())
    return small


def closed(structure: Structure, masks: Masks) -> dict[str, Tensor]:
    """Takes out of `masks` what the cut net leaves out: the inputs of channels that no layer writes any more, and the
    outputs that no layer reads.
    """
    axes = _axes(structure, _left(structure, masks))
    smaller = dict(masks)
    for name in structure.layers:
        for family, channels in zip((f"out.{name}", f"in.{name}"), axes[f"{name}.weight"], strict=True):
            if channels is not None:
                smaller[family] = masks.get(family, channels) & channels
    return smaller


def num_params(structure: Structure, masks: Masks) -> int:
    """Counts the parameters of the net that `cut` makes with `closed` masks; 0 if they leave a layer no channel."""
    left = _left(structure, masks)
    if any(channels is not None and not channels.any() for channels in left.values()):
        return 0
    return num_held(structure, _axes(structure, left))


def _left(structure: Structure, masks: Masks) -> Channels:
    """Returns the channels that some layer writes and some layer reads."""
    kept = kept_entries(structure, masks)
    left: Channels = {}
    for space in structure.spaces():
        if INPUT in space or space & structure.outputs:
            left[space] = None
            continue
        written = torch.zeros(structure.layers[min(space)].num_outputs, dtype=torch.bool)
        read = torch.zeros_like(written)
        for name, layer in structure.layers.items():
            rows, columns = kept.get(f"{name}.weight", (None, None))
            if name in space:
                written |= True if rows is None else rows.cpu()
            if layer.sources <= space:
                read |= True if columns is None else columns.cpu().view(len(read), -1).any(1)
        left[space] = written & read
    return left


def _axes(structure: Structure, left: Channels) -> Kept:
    """Returns what stays of each parameter and buffer of the layers and norms."""
    axes: Kept = {}
    for name, layer in structure.layers.items():
        outputs = _of(left, frozenset({name}))
        inputs = _of(left, layer.sources)
        if inputs is not None:
            inputs = inputs.repeat_interleave(layer.num_inputs // len(inputs))
        axes |= {f"{name}.weight": (outputs, inputs), f"{name}.bias": (outputs,)}
    for name, sources in structure.norms.items():
        for entry in ("weight", "bias", "running_mean", "running_var"):
            axes[f"{name}.{entry}"] = (_of(left, sources),)
    return axes


def _of(left: Channels, writers: frozenset[str]) -> Tensor | None:
    """Returns what is left of the space that these layers write."""
    return next(channels for space, channels in left.items() if writers <= space)


def _take(net: nn.Module, name: str, axes: tuple[Tensor | None, ...]) -> None:
    """Leaves the entries of a parameter or buffer that `axes` keep."""
    module, _, own = name.rpartition(".")
    tensor = getattr(net.get_submodule(module), own)
    if tensor is not None:
        taken = tensor.detach()
        for axis, keep in enumerate(axes):
            if keep is not None:
                taken = taken.index_select(axis, keep.nonzero().view(-1).to(taken.device))
        setattr(net.get_submodule(module), own, nn.Parameter(taken) if isinstance(tensor, nn.Parameter) else taken)
