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


class CountsInBuffer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("count", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        self.count += 1
        return x


class CountsSteps(nn.Module):
    steps = 0

    def forward(self, x: Tensor) -> Tensor:
        self.steps += self.training
        return x * (1 + 0.01 * self.steps)


class RemembersTheFirstBatch(nn.Module):
    """The same client twice in a row would not show it."""

    mean: Tensor | None = None

    def forward(self, x: Tensor) -> Tensor:
        if self.mean is None:
            self.mean = x.detach().mean()
        return x - self.mean


class TestsWithTheLastBatch(nn.Module):
    """Training does not show it."""

    mean: Tensor | float = 0.0

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            self.mean = x.detach().mean()
            return x
        return x - self.mean


class CannotBeCopied(nn.Module):
    """Draws from a generator of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.generator = torch.Generator()

    def forward(self, x: Tensor) -> Tensor:
        return x * torch.rand((), generator=self.generator) if self.training else x

    def __deepcopy__(self, memory: object) -> None:
        raise TypeError("no copies")


class DrawsInTests(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return F.dropout(x, 0.5, training=True)


class OtherEachTime(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("scale", torch.full((), 1 + secrets.randbelow(2**20) / 2**20))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.scale


class ScalesGradients(nn.Module):
    """Outputs are the same, gradients are not."""

    steps = 0

    def forward(self, x: Tensor) -> Tensor:
        if x.requires_grad:
            self.steps += 1
            scale = self.steps
            x.register_hook(lambda gradient: gradient * scale)
        return x


class DrawsGlobally(nn.Module):
    """Stochastic depth and noise from Python's and numpy's global generators; a constant drawn from the latter."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("offset", torch.full((), float(np.random.random())))

    def forward(self, x: Tensor) -> Tensor:
        if not self.training:
            return x + self.offset
        return x * float(np.random.random()) if random.random() < 0.5 else x + self.offset


class GrowsPositions(nn.Module):
    """A cache that only depends on sizes, and a constant buffer."""

    positions: Tensor | None = None

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("frequency", torch.full((1, 1, 1, 1), 0.25))

    def forward(self, x: Tensor) -> Tensor:
        if self.positions is None or len(self.positions) != x.shape[3]:
            self.positions = torch.arange(x.shape[3], device=x.device)
        return x + (self.positions * self.frequency).cos()


class PlainTensor(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.mask = torch.ones(1)


def conv(channels: int) -> nn.Conv2d:
    return nn.Conv2d(channels, channels, 3, padding=1)


def old_weight_norm(channels: int) -> nn.Module:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        return weight_norm(conv(channels))


class DividesByZero(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x * 0 / 0


ALLOWED: dict[str, MakePart] = {
    "batch-norm": nn.BatchNorm2d,
    "sync-batch-norm": nn.SyncBatchNorm,
    "instance-norm": lambda channels: nn.InstanceNorm2d(channels, track_running_stats=True),
    "weight-norm": old_weight_norm,
    "parametrized-weight-norm": lambda channels: parametrizations.weight_norm(conv(channels)),
    "dropout": lambda _: nn.Dropout(0.5),
    "global-generators": lambda _: DrawsGlobally(),
    "positions": lambda _: GrowsPositions(),
    "frozen": lambda channels: conv(channels).requires_grad_(False),
}
"""What clients can train one after another."""

REFUSED: dict[str, tuple[MakePart, str]] = {
    "counter": (lambda _: CountsInBuffer(), "'part' (CountsInBuffer) changes its buffer 'count'"),
    "parametrized": (
        lambda channels: parametrizations.spectral_norm(conv(channels)),
        "'part.parametrizations.weight.0' (_SpectralNorm) changes its buffer '_u'",
    ),
    "spectral-norm": (lambda channels: spectral_norm(conv(channels)), "'part' (Conv2d) changes its buffer 'weight_u'"),
    "attribute": (lambda _: CountsSteps(), "the net itself (BroughtNet) gives other results in tests"),
    "first-batch": (lambda _: RemembersTheFirstBatch(), "the net itself (BroughtNet) gives other results"),
    "last-batch": (lambda _: TestsWithTheLastBatch(), "the net itself (BroughtNet) gives other results in tests"),
    "no-copies": (lambda _: CannotBeCopied(), "the net itself (BroughtNet) gives other results in training"),
    "draws-in-tests": (lambda _: DrawsInTests(), "the net itself (BroughtNet) gives other results in tests"),
    "made-otherwise": (lambda _: OtherEachTime(), "'part' (OtherEachTime) has other values in its buffer 'scale'"),
    "gradients": (lambda _: ScalesGradients(), "the net itself (BroughtNet) gives other results in training"),
    "plain-tensor": (lambda _: PlainTensor(), "'part' (PlainTensor) keeps the tensor 'mask'"),
    "scripted": (lambda channels: torch.jit.script(conv(channels)), "(RecursiveScriptModule) is compiled"),
    "compiled": (lambda channels: torch.compile(conv(channels)), "'part' (OptimizedModule) is compiled"),
    "not-finite": (lambda _: DividesByZero(), "gives NaN for the data's first examples"),
    "lazy": (lambda channels: nn.LazyConv2d(channels, 3), "'part' (LazyConv2d) has no shape"),
    "double": (
        lambda channels: conv(channels).double(),
        "'part' (Conv2d) has a parameter 'weight' of type torch.float64",
    ),
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
