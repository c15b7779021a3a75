"""Windows of channels that roll round a net: which entries of each parameter a narrow net has at an offset.

S. Alam, L. Liu, M. Yan, M. Zhang, FedRolex, NeurIPS 2022, arXiv:2212.01548, eq. 3. Of K channels a narrow net has
k: those of numbers offset, offset + 1, ..., offset + k - 1, modulo K. Layers that write and read one another's channels
(an addition ties branches together, too) have the same K and k, so the same offset gives all of them the same
channels; a linear layer behind a flattened image reads the columns of all places of each channel.
"""

from dataclasses import dataclass

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from fedmpi.models.surgery.groups import INPUT, Index, Layer, Structure, follow


@dataclass(frozen=True)
class Axis:
    """An axis of a parameter: `narrow` of its `wide` channels are held, each of which has `block` entries in a row."""

    wide: int
    narrow: int
    block: int = 1

    def window(self, offset: int) -> Index:
        """Returns the entries held at this offset: a slice, or where the window wraps around their numbers (int64)."""
        if self.narrow == self.wide:
            return slice(None)
        first = offset % self.wide
        if first + self.narrow <= self.wide:
            return slice(first * self.block, (first + self.narrow) * self.block)
        channels = (first + torch.arange(self.narrow)) % self.wide
        return (channels[:, None] * self.block + torch.arange(self.block)).flatten()


def rolling_axes(wide: nn.Module, narrow: nn.Module) -> dict[str, tuple[Axis, ...]]:
    """Returns the leading axes of each parameter of which `narrow` has less than `wide` (both on any device).

    Raises `ConfigError` for a net whose channels cannot be followed.
    """
    structure = follow(wide, (_BatchNorm, nn.GroupNorm))
    blocks: dict[str, tuple[int, ...]] = {}
    for name, layer in structure.layers.items():
        blocks |= {f"{name}.weight": (1, _entries_per_channel(structure, layer)), f"{name}.bias": (1,)}
    for name, norm in structure.norms.items():
        blocks |= dict.fromkeys((f"{name}.weight", f"{name}.bias"), (_entries_per_channel(structure, norm),))
    found = {}
    for name, parameter in narrow.named_parameters():
        lengths = structure.shapes[name]
        if tuple(parameter.shape) != lengths:
            axes = zip(lengths, parameter.shape, blocks[name], strict=False)
            found[name] = tuple(Axis(length // block, held // block, block) for length, held, block in axes)
    return found


def _entries_per_channel(structure: Structure, layer: Layer) -> int:
    """Returns how many inputs in a row belong to one channel: sources that write together share channels, an input is
    never narrowed."""
    writers = layer.sources - {INPUT}
    return layer.num_inputs // structure.layers[min(writers)].num_outputs if writers else 1
