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

from fedmpi.models.surgery.groups import Masks, Structure, follow, kept_entries, norm_entries, num_held, region, zeroing
from fedmpi.models.surgery.narrowing import resize
from fedmpi.tensors import select

Channels = dict[frozenset[str], Tensor]
"""Which channels of each space are left; spaces that stay whole are not in it."""


def cut(net: nn.Module, masks: Masks) -> nn.Module:
    """Makes a smaller net whose outputs are those of `net` with pruned parameters at zero, up to float rounding."""
    structure = follow(net)
    small = copy.deepcopy(net)
    parameters = dict(small.named_parameters())
    zeroing(parameters, kept_entries(structure, masks))()
    channels_left = _left(structure, masks)
    for channels in channels_left.values():
        # No layer may be empty; where what is written is never read, one channel of no effect stays.
        channels[0] |= not channels.any()
    left = _masks_of(structure, channels_left)
    for name, axes in kept_entries(structure, left).items():
        owner, _, own = name.rpartition(".")
        value = select(parameters[name].detach(), region(axes))
        setattr(small.get_submodule(owner), own, nn.Parameter(value))
    for name in structure.layers:
        layer = small.get_submodule(name)
        resize(layer, *layer.get_parameter("weight").shape[:2])
    for name, norm in structure.norms.items():
        module = small.get_submodule(name)
        if (entries := norm_entries(left, norm)) is not None:
            resize(module, int(entries.sum()), int(entries.sum()))
            for statistic, values in [*module.named_buffers(recurse=False)]:
                if values.dim():
                    setattr(module, statistic, select(values, entries))
    return small


def closed(structure: Structure, masks: Masks) -> dict[str, Tensor]:
    """Takes out of `masks` what the cut net leaves out: the inputs of channels that no layer writes any more, and the
    outputs that no layer reads.
    """
    smaller = dict(masks)
    for family, channels in _masks_of(structure, _left(structure, masks)).items():
        smaller[family] = masks.get(family, channels) & channels
    return smaller


def num_params(structure: Structure, masks: Masks) -> int:
    """Counts the parameters of the net that `cut` makes with `closed` masks; 0 if they leave a layer no channel."""
    left = _left(structure, masks)
    if not all(channels.any() for channels in left.values()):
        return 0
    return num_held(structure, kept_entries(structure, _masks_of(structure, left)))


def _left(structure: Structure, masks: Masks) -> Channels:
    """Returns the channels that some layer writes and some layer reads."""
    fixed = structure.fixed()
    whole = torch.tensor(True)
    left: Channels = {}
    for space in structure.spaces:
        if space <= fixed:
            continue
        written = torch.zeros(structure.layers[min(space)].num_outputs, dtype=torch.bool)
        read = torch.zeros_like(written)
        for name, layer in structure.layers.items():
            if name in space:
                written |= masks.get(f"out.{name}", whole).cpu()
            if layer.sources <= space:
                columns = masks.get(f"in.{name}", whole.expand(layer.num_inputs))
                read |= columns.cpu().view(len(read), -1).any(1)
        left[space] = written & read
    return left


def _masks_of(structure: Structure, left: Channels) -> dict[str, Tensor]:
    """Returns what is left of the outputs and the inputs of each layer; those of spaces that stay whole are absent."""
    masks = {}
    for name, layer in structure.layers.items():
        sides = {f"out.{name}": ({name}, layer.num_outputs), f"in.{name}": (layer.sources, layer.num_inputs)}
        for family, (writers, length) in sides.items():
            for space, channels in left.items():
                if writers <= space:
                    masks[family] = channels.repeat_interleave(length // len(channels))
    return masks
