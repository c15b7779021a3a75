"""A narrow net inside a wide one of the same class: which entries of each parameter are the narrow one's.

What methods that cut widths need in `narrow` and `regions`. They are the leading entries along every
dimension, so nets of falling width are nested. An LSTM stacks the weights of its four gates (a GRU
of three) along the first dimension: there it is the leading entries of each gate, so that the same
hidden units stay in all gates, in the recurrent inputs and in the next layer. Heads of
an attention are stacked likewise: a narrow net has the leading numbers of every head, as in HeteroFL's
code for its transformer (src/fed.py), so that all heads stay.
"""

from math import prod

import torch
from torch import Tensor, nn

from fedmpi.errors import ConfigError
from fedmpi.models.nets.attention import INPUTS, Attention


def refuse_unnested(wide: nn.Module, narrow: nn.Module) -> None:
    """Raises `ConfigError` unless `narrow` has `wide`'s parameters, none longer: a user's net may ignore its width."""
    shapes = {name: tuple(parameter.shape) for name, parameter in wide.named_parameters()}
    for name, parameter in narrow.named_parameters():
        wanted = shapes.get(name, ())
        found = tuple(parameter.shape)
        if len(wanted) != len(found) or any(less > more for less, more in zip(found, wanted, strict=True)):
            has = f"has {name} of shape {found}, the wider one " + (f"of {wanted}" if name in shapes else "has none")
            raise ConfigError("model.name", f"a narrower net {has}; expected the same layers, each as wide or narrower")


def nested_parts(wide: nn.Module, narrow: nn.Module) -> dict[str, tuple[slice | Tensor, ...]]:
    """Returns the index of `narrow`'s entries in each parameter of `wide` of which it has a part only.

    Slices, and numbers along an axis with several stacks (int64, on the CPU). Both nets may be on the meta device.
    """
    lengths = {name: parameter.shape for name, parameter in wide.named_parameters()}
    stacks = _stacks(wide)
    parts = {}
    for name, parameter in narrow.named_parameters():
        if parameter.shape == lengths[name]:
            continue
        index: list[slice | Tensor] = [slice(0, length) for length in parameter.shape]
        count, axis = stacks.get(name, (1, 0))
        if count > 1:
            firsts = torch.arange(count)[:, None] * (lengths[name][axis] // count)
            index[axis] = (firsts + torch.arange(parameter.shape[axis] // count)).flatten()
        parts[name] = tuple(index)
    return parts


def fan_in_shares(wide: nn.Module, narrow: nn.Module) -> dict[str, float]:
    """Returns, by weight and bias of convs and linear layers, `narrow`'s inputs as a share of `wide`'s."""
    layers = dict(wide.named_modules())
    return {
        f"{layer}.{name}": prod(part.weight.shape[1:]) / prod(layers[layer].get_parameter("weight").shape[1:])
        for layer, part in narrow.named_modules()
        if isinstance(part, (nn.modules.conv._ConvNd, nn.Linear))
        for name, _ in part.named_parameters(recurse=False)
    }


def _stacks(net: nn.Module) -> dict[str, tuple[int, int]]:
    """Returns how many equal stacks a parameter consists of, and along which axis: the gates of a recurrent layer (4 in
    an LSTM, 3 in a GRU), the heads of an attention, whose inputs' layers write them and whose output reads them."""
    stacks: dict[str, tuple[int, int]] = {}
    for layer, part in net.named_modules():
        if isinstance(part, nn.RNNBase):
            for name, parameter in part.named_parameters(layer, recurse=False):
                stacks[name] = (len(parameter) // part.hidden_size, 0)
        if isinstance(part, Attention):
            for name in INPUTS:
                stacks[f"{layer}.{name}.weight"] = (part.num_heads, 0)
                stacks[f"{layer}.{name}.bias"] = (part.num_heads, 0)
            stacks[f"{layer}.out.weight"] = (part.num_heads, 1)
    return stacks
