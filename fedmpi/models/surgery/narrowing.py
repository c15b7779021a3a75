"""A narrower net out of one that knows no width: the leading channels of every layer but the last.

Which channels a layer reads is found by running a copy whose layers take the size of what they are given, so that
additions, flattening and any code between layers need no analysis. Then the result is proved: the narrow net must
compute what the whole one computes whose other entries are zero, which is what HeteroFL and its kin mean by a sub-net
(arXiv:2010.01264, section 3). Joined, shuffled, grouped or averaged channels fail this test, as do fixed sizes
in `forward`; nothing passes that a method would narrow wrongly. Norm layers count as their weights and
biases alone here: each net takes statistics of its own channels.
"""

import copy
import math
from collections.abc import Iterable, Mapping
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd

from fedmpi import seeds
from fedmpi.models.surgery.scaler import WEIGHTED, Norm, norm_layers
from fedmpi.models.width import Width

Sizes = Mapping[str, tuple[int, int]]
"""Of each layer by its dotted name: how many outputs and inputs it has in the narrow net."""

# Of the largest output: float32 is off by 1e-6, a wrong channel by its share of a layer.
TOLERANCE = 1e-4


def leading_sizes(whole: nn.Module, examples: Tensor, classifier: str, width: Width) -> Sizes:
    """Returns the sizes of `whole` at `width`, tried out on `examples`; the layer `classifier` gives the classes.

    `whole` (on the CPU) is left without values of its own. Raises `ValueError`, and whatever the net itself raises
    on channels that it does not expect.
    """
    _refuse_other_parameters(whole)
    fill(whole.parameters(), torch.Generator().manual_seed(0))
    narrow = copy.deepcopy(whole)
    for norm in [*norm_layers(whole), *norm_layers(narrow)]:
        vars(norm)["forward"] = partial(_affine, norm)
    sizes = _fit_when_called(narrow, width, classifier)
    with torch.no_grad(), seeds.global_generators(0):
        narrow.train()(examples)
        outputs = narrow.eval()(examples)
        _keep_leading(whole, narrow)
        expected = whole.eval()(examples)
    if outputs.shape != expected.shape:
        raise ValueError(f"its layer {classifier!r} alone does not write the classes")
    if not bool(expected.isfinite().all()):
        raise ValueError("it gives no finite numbers on the first examples")
    largest = float(expected.abs().max())
    if not largest or not float((outputs - expected).abs().max()) <= TOLERANCE * largest:
        raise ValueError("it joins, mixes or averages channels, so that its leading ones are no net of their own")
    return sizes


def narrowed(net: nn.Module, sizes: Sizes) -> nn.Module:
    """Cuts `net` (on the meta device, too) to its leading entries, in place; returns it.

    Values of convs and linear layers are scaled to their fewer inputs, as if drawn for them: torch's initial
    values, weights and biases, go with one over the root of the number of inputs.
    """
    for name, (outputs, inputs) in sizes.items():
        part = net.get_submodule(name)
        fan_in = _fan_in(part)
        resize(part, outputs, inputs)
        if isinstance(part, WEIGHTED) and not part.weight.is_meta:
            for value in part.parameters():
                value.data.mul_(math.sqrt(fan_in / _fan_in(part)))
    return net


def _fan_in(part: nn.Module) -> int:
    return math.prod(part.get_parameter("weight").shape[1:]) if isinstance(part, WEIGHTED) else 1


def _refuse_other_parameters(net: nn.Module) -> None:
    for name, part in net.named_modules():
        is_known = type(part) in (*WEIGHTED, nn.Embedding) or isinstance(part, Norm)
        said = f"module {name!r} ({type(part).__name__})" if name else f"the net itself ({type(part).__name__})"
        if not is_known and any(True for _ in part.parameters(recurse=False)):
            raise ValueError(f"{said} has parameters of a kind that cannot be cut")
        if isinstance(part, _ConvNd) and part.groups not in (1, part.in_channels):
            raise ValueError(f"{said} is a grouped convolution")
        if isinstance(part, nn.LayerNorm) and len(part.normalized_shape) > 1:
            raise ValueError(f"{said} normalizes several axes together")
    if len([*net.named_parameters(remove_duplicate=False)]) > len([*net.parameters()]):
        raise ValueError("two of its layers share a parameter")


def fill(values: Iterable[Tensor], generator: torch.Generator) -> None:
    """Draws values that keep activations near 1 and let every channel be seen, biases and norms included."""
    for value in values:
        high = math.sqrt(6 / value[0].numel()) if value.dim() > 1 else 1.5
        low = -high if value.dim() > 1 else 0.5
        value.data.copy_(torch.empty(value.shape).uniform_(low, high, generator=generator))


def _affine(norm: nn.Module, x: Tensor) -> Tensor:
    """Returns a norm layer without its statistics."""
    weight = norm._parameters.get("weight")
    bias = norm._parameters.get("bias")
    axes = () if isinstance(norm, nn.LayerNorm) else (1,) * (x.dim() - 2)
    x = x if weight is None else x * weight.view(-1, *axes)
    return x if bias is None else x + bias.view(-1, *axes)


def _fit_when_called(net: nn.Module, width: Width, last: str) -> dict[str, tuple[int, int]]:
    """Lets each layer take the size of its inputs when it is first called; returns where all sizes will be."""
    sizes: dict[str, tuple[int, int]] = {}

    def fit(name: str, part: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        if name not in sizes:
            sizes[name] = _size(part, inputs[0], Width() if name == last else width)
            resize(part, *sizes[name])

    for name, part in net.named_modules():
        if isinstance(part, (*WEIGHTED, nn.Embedding, Norm)):
            part.register_forward_pre_hook(partial(fit, name))
    return sizes


def _size(part: nn.Module, x: Tensor, width: Width) -> tuple[int, int]:
    """Returns how many outputs and inputs a layer has at this width, given what it reads."""
    if isinstance(part, nn.Embedding):
        return width.of(part.embedding_dim), part.num_embeddings
    inputs = x.shape[-1 if isinstance(part, (nn.Linear, nn.LayerNorm)) else 1]
    if isinstance(part, nn.Linear):
        return width.of(part.out_features), inputs
    if isinstance(part, _ConvNd):
        each = part.out_channels // part.in_channels
        return (width.of(part.out_channels) if part.groups == 1 else each * inputs), inputs
    if isinstance(part, nn.GroupNorm) and inputs % part.num_groups:
        raise ValueError(f"a GroupNorm has {part.num_groups} groups, which {inputs} channels cannot share equally")
    return inputs, inputs


def resize(part: nn.Module, outputs: int, inputs: int) -> None:
    """Cuts a layer or norm to its leading outputs and inputs, in place; statistics stay."""
    shape: tuple[int, ...] = (outputs,)
    if isinstance(part, _ConvNd):
        part.groups = 1 if part.groups == 1 else inputs
        part.out_channels = outputs
        part.in_channels = inputs
        shape = (outputs, inputs // part.groups)
    elif isinstance(part, nn.Linear):
        part.out_features, part.in_features = shape = (outputs, inputs)
    elif isinstance(part, nn.Embedding):
        part.num_embeddings, part.embedding_dim = shape = (inputs, outputs)
    elif isinstance(part, nn.LayerNorm):
        part.normalized_shape = shape
    else:
        setattr(part, "num_channels" if isinstance(part, nn.GroupNorm) else "num_features", outputs)
    for name, value in list(part.named_parameters(recurse=False)):
        leading = tuple(map(slice, shape if name == "weight" else (outputs,)))
        setattr(part, name, nn.Parameter(value.detach()[leading].clone()))


def _keep_leading(net: nn.Module, narrow: nn.Module) -> None:
    """Zeroes every entry of `net` beyond those of `narrow`."""
    for name, value in net.named_parameters():
        leading = tuple(map(slice, narrow.get_parameter(name).shape))
        kept = value[leading].clone()
        value.zero_()[leading] = kept
