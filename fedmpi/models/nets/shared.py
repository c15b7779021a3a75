"""What several nets share: layers that fit images of any size to nets of a fixed one, stacks, norms, initial values."""

from collections import OrderedDict
from collections.abc import Iterable, Iterator
from typing import Any, Literal

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from fedmpi.config.fields import Section
from fedmpi.errors import ConfigError

GROUPS = 4
"""Groups of a GroupNorm."""


def padding_to(shape: tuple[int, ...], side: int) -> tuple[nn.Module, tuple[int, int]]:
    """Returns a layer that surrounds (C, H, W) images by zeros until both sides have `side` pixels; and the sides then.

    The image stays in the middle (one pixel up and left of it where the zeros are odd); sides that
    are long enough stay as they are.
    """
    _, height, breadth = shape
    rows = max(0, side - height)
    columns = max(0, side - breadth)
    if not rows and not columns:
        return nn.Identity(), (height, breadth)
    padding = (columns // 2, columns - columns // 2, rows // 2, rows - rows // 2)
    return nn.ZeroPad2d(padding), (height + rows, breadth + columns)


def enlargement_to(shape: tuple[int, ...], side: int) -> nn.Module:
    """Returns a layer that repeats the pixels of (C, H, W) images until both sides have `side` of them."""
    factor = -(-side // min(shape[1:]))
    return nn.Identity() if factor == 1 else nn.Upsample(scale_factor=factor)


class SlicedAvgPool2d(nn.AdaptiveAvgPool2d):
    """Adaptive average pooling to k x k, out of means of slices; a single pixel is repeated.

    torch's own has no deterministic backward pass on CUDA for k > 1.
    """

    output_size: int

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for axis in (2, 3):
            length = x.shape[axis]
            k = self.output_size
            windows = ((i * length // k, -(-(i + 1) * length // k)) for i in range(k))
            x = torch.stack([x.narrow(axis, start, stop - start).mean(axis) for start, stop in windows], axis)
        return x


def chained(**parts: nn.Module) -> nn.Sequential:
    """Returns a net that calls these parts one after the other, each under its name."""
    return nn.Sequential(OrderedDict(parts))


def linear_layers(
    inputs: int, hidden: Iterable[int], outputs: int, drops: Literal["", "before", "behind"] = ""
) -> nn.Sequential:
    """Returns linear layers with a ReLU behind all but the last, and dropout before or behind each such pair."""
    layers = nn.Sequential()
    for size in hidden:
        if drops == "before":
            layers.append(nn.Dropout())
        layers.extend([nn.Linear(inputs, size), nn.ReLU(inplace=True)])
        if drops == "behind":
            layers.append(nn.Dropout())
        inputs = size
    return layers.append(nn.Linear(inputs, outputs))


def kaiming_normal(module: nn.Module) -> None:
    """Draws the weight of a conv or linear layer by fan-in; skips a skeleton, for which torch would take its time."""
    if isinstance(module, (nn.Conv2d, nn.Linear)) and not module.weight.is_meta:
        nn.init.kaiming_normal_(module.weight)


def with_group_norm(net: nn.Module) -> nn.Module:
    """Puts GroupNorm of `GROUPS` groups in place of every BatchNorm of `net`, of as many parameters.

    Y. Wu, K. He: Group Normalization, ECCV 2018, arXiv:1803.08494. Raises `ConfigError` where there is no BatchNorm, or
    channels of one cannot be shared by the groups equally.
    """
    norms = _batch_norms(net)
    if not norms:
        raise ConfigError("model.norm", "group, but this net has no BatchNorm to replace; allowed: batch")
    for name, norm in norms.items():
        if norm.num_features % GROUPS:
            has = f"group, but {GROUPS} groups cannot share the {norm.num_features} channels of {name} equally"
            raise ConfigError("model.norm", f"{has}; choose another width, or batch")
        net.set_submodule(name, nn.GroupNorm(GROUPS, norm.num_features, norm.eps, norm.affine))
    return net


def _batch_norms(net: nn.Module) -> dict[str, _BatchNorm]:
    return {name: part for name, part in net.named_modules() if isinstance(part, _BatchNorm)}


class Normalized(Section):
    """Options of a net that normalizes by the batch, or in groups of channels of each example."""

    norm: Literal["batch", "group", "frozen"] = "batch"
    """`batch`: BatchNorm. `group`: GroupNorm in its place, which knows no batch and needs no statistics for tests: of
    4 groups, which the channels of every layer must be a multiple of, at every width. `frozen`: BatchNorm with the
    running statistics of `weights`, in training and in tests.
    """

    def problems(self, config: Any) -> Iterator[tuple[str, str]]:
        yield from super().problems(config)
        if self.norm == "frozen" and not config.model.weights:
            yield "model.norm", "frozen, but no model.weights give running statistics; allowed without: batch, group"

    def normalized(self, net: nn.Module) -> nn.Module:
        """Gives `net`, which has BatchNorms, the norm that is asked for."""
        if self.norm == "frozen":
            for name, norm in _batch_norms(net).items():
                net.set_submodule(name, type(norm)(norm.num_features, norm.eps, affine=norm.affine))
        return with_group_norm(net) if self.norm == "group" else net
