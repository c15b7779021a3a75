"""Nets as users may bring them: small ones whose layer `part` keeps, draws or remembers something."""

import random
import secrets
import warnings
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils import parametrizations, spectral_norm, weight_norm

from fedmpi.models.options import Inputs, Model
from fedmpi.models.width import Width

CHANNELS = 8
MakePart = Callable[[int], nn.Module]
"""A layer for images of so many channels."""


class BroughtNet(nn.Module):
    """(B, C, H, W) -> (B, classes): a conv, the layer that a test is about, a linear layer."""

    def __init__(self, info: Inputs, channels: int, part: nn.Module) -> None:
        super().__init__()
        self.conv = nn.Conv2d(info.example_shape[0], channels, 3, stride=2)
        self.part = part
        self.fc = nn.Linear(channels, info.num_classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(F.relu(self.part(self.conv(x))).mean((2, 3)))


class Layer(nn.Module):
    """Gives what a function makes of the layer and its inputs; `kept` are its attributes, tensors of them buffers."""

    def __init__(self, function: Callable[..., Tensor], **kept: object) -> None:
        super().__init__()
        self.function = function
        for name, value in kept.items():
            (self.register_buffer if isinstance(value, Tensor) else self.__setattr__)(name, value)

    def forward(self, x: Tensor) -> Tensor:
        return self.function(self, x)


def counts(layer: Layer, x: Tensor) -> Tensor:
    layer.count += 1
    return x


def counts_steps(layer: Layer, x: Tensor) -> Tensor:
    layer.steps += layer.training
    return x * (1 + 0.01 * layer.steps)


def remembers_the_first_batch(layer: Layer, x: Tensor) -> Tensor:
    """The same client twice in a row would not show it."""
    layer.mean = x.detach().mean() if layer.mean is None else layer.mean
    return x - layer.mean


def tests_with_the_last_batch(layer: Layer, x: Tensor) -> Tensor:
    """Training does not show it."""
    if layer.training:
        layer.mean = x.detach().mean()
        return x
    return x - layer.mean


def scales(layer: Layer, x: Tensor) -> Tensor:
    return x * layer.scale


def scales_gradients(layer: Layer, x: Tensor) -> Tensor:
    """Outputs are the same, gradients are not."""
    if x.requires_grad:
        layer.steps += 1
        scale = layer.steps
        x.register_hook(lambda gradient: gradient * scale)
    return x


def draws_globally(layer: Layer, x: Tensor) -> Tensor:
    """Stochastic depth and noise from Python's and numpy's global generators; `offset` is drawn from the latter."""
    if not layer.training:
        return x + layer.offset
    return x * float(np.random.random()) if random.random() < 0.5 else x + layer.offset


def grows_positions(layer: Layer, x: Tensor) -> Tensor:
    """A cache that only depends on sizes, and a constant buffer."""
    if layer.positions is None or len(layer.positions) != x.shape[3]:
        layer.positions = torch.arange(x.shape[3], device=x.device)
    return x + (layer.positions * layer.frequency).cos()


def plain_tensor() -> nn.Module:
    layer = nn.Identity()
    layer.mask = torch.ones(1)
    return layer


class CannotBeCopied(nn.Module):
    """Draws from a generator of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.generator = torch.Generator()

    def forward(self, x: Tensor) -> Tensor:
        return x * torch.rand((), generator=self.generator) if self.training else x

    def __deepcopy__(self, memory: object) -> None:
        raise TypeError("no copies")


def conv(channels: int) -> nn.Conv2d:
    return nn.Conv2d(channels, channels, 3, padding=1)


def old_weight_norm(channels: int) -> nn.Module:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        return weight_norm(conv(channels))


ALLOWED: dict[str, MakePart] = {
    "batch-norm": nn.BatchNorm2d,
    "sync-batch-norm": nn.SyncBatchNorm,
    "instance-norm": lambda channels: nn.InstanceNorm2d(channels, track_running_stats=True),
    "weight-norm": old_weight_norm,
    "parametrized-weight-norm": lambda channels: parametrizations.weight_norm(conv(channels)),
    "dropout": lambda _: nn.Dropout(0.5),
    "global-generators": lambda _: Layer(draws_globally, offset=torch.full((), float(np.random.random()))),
    "positions": lambda _: Layer(grows_positions, positions=None, frequency=torch.full((1, 1, 1, 1), 0.25)),
    "frozen": lambda channels: conv(channels).requires_grad_(False),
}
"""What clients can train one after another."""

OTHER_RESULTS = "the net itself (BroughtNet) gives other results"
REFUSED: dict[str, tuple[MakePart, str]] = {
    "counter": (lambda _: Layer(counts, count=torch.zeros(())), "'part' (Layer) changes its buffer 'count'"),
    "parametrized": (
        lambda channels: parametrizations.spectral_norm(conv(channels)),
        "'part.parametrizations.weight.0' (_SpectralNorm) changes its buffer '_u'",
    ),
    "spectral-norm": (lambda channels: spectral_norm(conv(channels)), "'part' (Conv2d) changes its buffer 'weight_u'"),
    "attribute": (lambda _: Layer(counts_steps, steps=0), f"{OTHER_RESULTS} in tests"),
    "first-batch": (lambda _: Layer(remembers_the_first_batch, mean=None), OTHER_RESULTS),
    "last-batch": (lambda _: Layer(tests_with_the_last_batch, mean=0.0), f"{OTHER_RESULTS} in tests"),
    "no-copies": (lambda _: CannotBeCopied(), f"{OTHER_RESULTS} in training"),
    "draws-in-tests": (lambda _: Layer(lambda _, x: F.dropout(x, 0.5, training=True)), f"{OTHER_RESULTS} in tests"),
    "made-otherwise": (
        lambda _: Layer(scales, scale=torch.full((), 1 + secrets.randbelow(2**20) / 2**20)),
        "'part' (Layer) has other values in its buffer 'scale'",
    ),
    "gradients": (lambda _: Layer(scales_gradients, steps=0), f"{OTHER_RESULTS} in training"),
    "plain-tensor": (lambda _: plain_tensor(), "'part' (Identity) keeps the tensor 'mask'"),
    "scripted": (lambda channels: torch.jit.script(conv(channels)), "(RecursiveScriptModule) is compiled"),
    "compiled": (lambda channels: torch.compile(conv(channels)), "'part' (OptimizedModule) is compiled"),
    "not-finite": (lambda _: Layer(lambda _, x: x * 0 / 0), "gives NaN for the data's first examples"),
    "lazy": (lambda channels: nn.LazyConv2d(channels, 3), "'part' (LazyConv2d) has no shape"),
    "double": (lambda channels: conv(channels).double(), "'part' (Conv2d) has a parameter 'weight' of type torch.fl"),
}
"""What is refused, and which module is named."""


class BroughtOptions(Model):
    """Options of `brought`."""

    name: str = "brought"
    """A net of the tests' own."""
    part: str = "dropout"
    """A name of `ALLOWED` or `REFUSED`."""
    follows_width: bool = True
    """Whether its layers do."""

    def net(self, info: Inputs, width: Width) -> nn.Module:
        channels = width.of(CHANNELS) if self.follows_width else CHANNELS
        make = ALLOWED.get(self.part) or REFUSED[self.part][0]
        return BroughtNet(info, channels, make(channels))
