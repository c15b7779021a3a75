"""The channel groups of a net: which layer writes a channel, which norm scales it, what goes when it is pruned.

`follow` reads a net (torch.fx, so no input is needed) made of convs, linear layers, BatchNorm and
channel-wise operations, branches added. A group of layer L is one of its outputs (conv: a filter,
linear: a row, called `out.L`) or one of its inputs (a channel, a column: `in.L`). `Masks` hold a
bool per group, True where it is kept; a family that is absent is whole. A pruned output takes its
bias along, and a norm's entry goes when all layers that write its channel have pruned it: then the
channel is exactly zero from there on, and `surgery.cutting` can leave it out.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.nn.modules.batchnorm import _BatchNorm

from fedmpi.errors import ConfigError, one_line, type_in_words
from fedmpi.models.nets.attention import Attention

Index = slice | Tensor
Masks = Mapping[str, Tensor]
Kept = dict[str, tuple[Tensor | None, ...]]
"""Of each parameter that lost something, its leading axes: a bool per index (False: pruned), None for a whole axis."""

INPUT = "input"
"""What writes the channels of the net's input, as if it were a layer."""

# Operations that work on each channel alone and give zeros for zeros.
CHANNEL_WISE = (
    *(nn.Identity, nn.Flatten, nn.ReLU, nn.ReLU6, nn.LeakyReLU, nn.GELU, nn.SiLU, nn.Hardswish, nn.Tanh, nn.Dropout),
    *(nn.Dropout2d, nn.MaxPool2d, nn.AvgPool2d, nn.AdaptiveAvgPool2d, nn.AdaptiveMaxPool2d, nn.ZeroPad2d, nn.Upsample),
)
CHANNEL_WISE_NAMES = {
    *("flatten", "relu", "relu_", "relu6", "leaky_relu", "gelu", "silu", "hardswish", "tanh", "dropout", "max_pool2d"),
    *("avg_pool2d", "adaptive_avg_pool2d", "contiguous"),
}
# What flattens all axes but the first, if it is given two sizes.
FLATTENING = {"view", "reshape"}
ADDITIONS = {"add", "iadd", "add_"}


@dataclass(frozen=True)
class Layer:
    """A conv, linear or norm layer; `sources` write the channels that it reads, each an equal share of its inputs."""

    num_outputs: int
    num_inputs: int
    sources: frozenset[str]


@dataclass
class Structure:
    """What `follow` found: convs and linear layers, and norms, in the order of use."""

    shapes: dict[str, tuple[int, ...]]
    """The shape of every parameter."""
    layers: dict[str, Layer] = field(default_factory=dict)
    norms: dict[str, Layer] = field(default_factory=dict)
    added: list[frozenset[str]] = field(default_factory=list)
    """Layers whose outputs meet in an addition, channel by channel."""
    outputs: frozenset[str] = frozenset()
    """The layers that write the net's output: their outputs are the classes."""

    @property
    def num_params(self) -> int:
        return sum(map(math.prod, self.shapes.values()))

    @cached_property
    def spaces(self) -> list[frozenset[str]]:
        """Groups layers by the space of channels that they write: those that additions tie together share one."""
        spaces: list[frozenset[str]] = []
        for tied in [frozenset({INPUT}), *(frozenset({name}) for name in self.layers), *self.added]:
            touched = [space for space in spaces if space & tied]
            spaces = [space for space in spaces if not space & tied] + [tied.union(*touched)]
        return spaces

    def fixed(self) -> frozenset[str]:
        """Returns what writes the data's channels or the classes', or is added to them: the cut net has them all."""
        return frozenset().union(*(space for space in self.spaces if space & {INPUT, *self.outputs}))


class _Tracer(fx.Tracer):
    """Looks into modules with parameters only; what has none is one operation."""

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return super().is_leaf_module(m, module_qualified_name) or not any(True for _ in m.parameters())


def follow(net: nn.Module, norms: tuple[type[nn.Module], ...] = (_BatchNorm,)) -> Structure:
    """Returns the structure of `net` (on any device), in which these layers normalize and scale channels.

    Raises `ConfigError` where its channels cannot be followed.
    """
    found = Structure({name: tuple(value.shape) for name, value in net.named_parameters()})
    modules = dict(net.named_modules())
    _refuse_mixing(net, modules)
    written: dict[fx.Node, frozenset[str]] = {}
    try:
        graph = _Tracer().trace(net)
    except Exception as error:  # whatever the net's own code does with inputs that have no values
        raise _refusal(one_line(f"torch.fx cannot trace it: {error}")) from error
    for node in graph.nodes:
        sources = [written[argument] for argument in node.all_input_nodes if argument in written]
        if node.op == "placeholder":
            written[node] = frozenset({INPUT})
        elif node.op == "output":
            found.outputs = frozenset().union(*sources)
        elif node.op == "call_module" and not sources:
            raise _refusal(f"{node.target} reads no inputs of the net")
        elif node.op == "call_module":
            written[node] = _pass_module(found, node, modules[str(node.target)], sources[0], norms)
        elif node.op != "get_attr" and not _gives_shapes(node, written):
            written[node] = _pass_function(found, node, sources)
    return found


def _refuse_mixing(net: nn.Module, modules: Mapping[str, nn.Module]) -> None:
    if len([*net.named_parameters(remove_duplicate=False)]) > len([*net.parameters()]):
        raise _refusal("two of its layers share a parameter")
    for name, module in modules.items():
        if isinstance(module, (Attention, nn.RNNBase)):
            raise _refusal(f"{name} (of type {type(module).__name__}) mixes them; take another model, or method")


def _pass_module(
    found: Structure, node: fx.Node, module: nn.Module, sources: frozenset[str], norms: tuple[type[nn.Module], ...]
) -> frozenset[str]:
    """Returns which layers write the channels that this module gives; notes it if it is a layer or a norm."""
    name = str(node.target)
    if isinstance(module, (nn.Conv2d, nn.Linear)):
        if getattr(module, "groups", 1) != 1:
            raise _refusal(f"{name} is a grouped convolution")
        if "weight" not in {**module._parameters, **module._buffers}:
            raise _refusal(f"{name} computes its weight from other parameters")
        outputs, inputs = module.weight.shape[:2]
        found.layers[name] = Layer(outputs, inputs, sources)
        return frozenset({name})
    if isinstance(module, norms):
        size: Any = module.num_channels if isinstance(module, nn.GroupNorm) else module.num_features
        found.norms[name] = Layer(size, size, sources)
        return sources
    if isinstance(module, CHANNEL_WISE):
        return sources
    raise _refusal(f"{name} is {type_in_words(module)}")


def _name(node: fx.Node) -> str:
    return node.target if isinstance(node.target, str) else getattr(node.target, "__name__", str(node.target))


def _gives_shapes(node: fx.Node, written: Mapping[fx.Node, object]) -> bool:
    """Knows `x.size(0)`, `x.shape` and an item of either."""
    first = node.args[0] if node.args else None
    is_shape = _name(node) == "size" or (_name(node) == "getattr" and node.args[1:] == ("shape",))
    return is_shape or (_name(node) == "getitem" and isinstance(first, fx.Node) and first not in written)


def _pass_function(found: Structure, node: fx.Node, sources: list[frozenset[str]]) -> frozenset[str]:
    name = _name(node)
    if name in ADDITIONS and len(sources) == 2:
        found.added.append(sources[0] | sources[1])
        return sources[0] | sources[1]
    # All numbers of an example in a row, or a mean over the places of images.
    is_flattening = name in FLATTENING and len(node.args) == 3
    is_mean = name == "mean" and node.args[1:2] in (((2, 3),), ([2, 3],))
    if len(sources) == 1 and (name in CHANNEL_WISE_NAMES or is_flattening or is_mean):
        return sources[0]
    raise _refusal(f"it calls {name}")


def _refusal(reason: str) -> ConfigError:
    through = "convs, linear layers, BatchNorm, element-wise operations and additions"
    return ConfigError("model.name", f"channels can be followed through {through}, but {reason}")


def kept_entries(structure: Structure, masks: Masks) -> Kept:
    """Returns which entries of each parameter these masks keep; parameters that they leave whole are left out."""
    kept: Kept = {}
    for name in structure.layers:
        rows = masks.get(f"out.{name}")
        kept |= {f"{name}.weight": (rows, masks.get(f"in.{name}")), f"{name}.bias": (rows,)}
    for name, norm in structure.norms.items():
        entries = norm_entries(masks, norm)
        kept |= {f"{name}.weight": (entries,), f"{name}.bias": (entries,)}
    return {name: axes for name, axes in kept.items() if name in structure.shapes and any(map(_lost, axes))}


def _lost(axis: Tensor | None) -> bool:
    return axis is not None and not bool(axis.all())


def norm_entries(masks: Masks, norm: Layer) -> Tensor | None:
    """Returns the entries of a norm whose channels at least one writer keeps; None for all."""
    families = [masks.get(f"out.{writer}") for writer in sorted(norm.sources)]
    present = [family for family in families if family is not None]
    if len(present) < len(families):
        return None
    channels = torch.stack(present).any(0)
    return channels.repeat_interleave(norm.num_inputs // len(channels))


def num_held(structure: Structure, kept: Kept) -> int:
    """Counts the parameters that are left."""
    total = 0
    for name, shape in structure.shapes.items():
        axes = kept.get(name, ())
        lengths = [length if axis is None else int(axis.sum()) for length, axis in zip(shape, axes, strict=False)]
        total += math.prod((*lengths, *shape[len(lengths) :]))
    return total


def region(axes: tuple[Tensor | None, ...]) -> tuple[Index, ...]:
    """Returns the entries that these axes keep, as an index of the parameter: its shape there is a smaller, dense
    tensor's."""
    return crossed([slice(None) if axis is None else axis.nonzero().view(-1) for axis in axes])


def crossed(indices: Sequence[Index]) -> tuple[Index, ...]:
    """Returns an index of a tensor whose leading axes have these entries; at most the first two of them are numbers."""
    if len(indices) > 1 and isinstance(indices[0], Tensor) and isinstance(indices[1], Tensor):
        return indices[0][:, None], indices[1][None, :], *indices[2:]
    return tuple(indices)


def zeroing(tensors: Mapping[str, Tensor], kept: Kept) -> Callable[[], None]:
    """Returns a function that zeroes what is pruned of `tensors`, as often as it is called; it allocates nothing."""
    steps = [
        (tensors[name], axis, (~keep).nonzero().view(-1).to(tensors[name].device, non_blocking=True))
        for name, axes in kept.items()
        for axis, keep in enumerate(axes)
        if keep is not None
    ]

    def zero() -> None:
        with torch.no_grad():
            for tensor, axis, numbers in steps:
                tensor.index_fill_(axis, numbers, 0.0)

    return zero


def order_of_pruning(masks: Masks, scores: Mapping[str, Tensor]) -> tuple[dict[str, Tensor], int]:
    """Returns the place of each group in the order in which they go, and how many may go: not those gone, nor a
    family's last. Of a family of n groups, the j-th since the first pruning goes at rate j / n; lowest score first."""
    rates = []
    for family, mask in masks.items():
        present = mask.nonzero().view(-1)
        by_score = present[scores[family][present].argsort(stable=True)]
        rate = torch.full(mask.shape, math.inf, dtype=torch.float64)
        rate[by_score[:-1]] = torch.arange(len(mask) - len(present) + 1, len(mask), dtype=torch.float64) / len(mask)
        rates.append(rate)
    rate = torch.cat(rates)
    place = rate.argsort(stable=True).argsort()
    places = torch.split(place, [len(mask) for mask in masks.values()])
    return dict(zip(masks, places, strict=True)), int(rate.isfinite().sum())


def shrunk(
    masks: Masks, places: Masks, num_groups: int, count: Callable[[Masks], int], least: int
) -> dict[str, Tensor]:
    """Takes every further group that may go out of `masks`, in the order: `count` falls, but not below `least`. Of each
    family the next group is tried only, as groups of a family weigh nearly the same.
    """
    masks = dict(masks)
    while True:
        now = count(masks)
        firsts = {}
        for family, mask in masks.items():
            left = places[family].masked_fill(~mask, num_groups)
            if int(mask.sum()) > 1 and int(left.min()) < num_groups:
                firsts[family] = left == left.min()
        trials = (masks | {f: masks[f] & ~firsts[f]} for f in sorted(firsts, key=lambda f: int(places[f][firsts[f]])))
        fitting = next((trial for trial in trials if least <= count(trial) < now), None)
        if fitting is None:
            return masks
        masks = fitting
