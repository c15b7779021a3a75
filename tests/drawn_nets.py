"""A generator of nets as users may bring them: layers, buffers, sharing, hooks and types, drawn from a seed."""

import random
import secrets
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrizations

SIZE = 12
METHODS = ("fedavg", "fedavg", "fedhm", "heterofl", "scaffold", "topk", "hermes")
KINDS = ("pictures", "vectors", "tokens")


def words_of(number: int) -> tuple[str, ...]:
    """Returns the overrides of a small federation whose method, data and net are drawn from this number."""
    draw = random.Random(number)
    data = draw.choice(KINDS)
    net = ("model.name=drawn_nets:Drawn", f"model.number={number}", f"data.name=drawn_nets:{data}")
    return (*net, f"method.name={draw.choice(METHODS)}", "rounds=1", "train.lr=0.01")


def _divided(x: np.ndarray) -> dict[str, np.ndarray]:
    y = np.arange(len(x)) % 4
    return {"train_x": x[:64], "train_y": y[:64], "test_x": x[64:], "test_y": y[64:]}


def pictures() -> dict[str, np.ndarray]:
    return _divided(np.random.default_rng(0).integers(0, 256, (80, 6, 6, 3)).astype(np.uint8))


def vectors() -> dict[str, np.ndarray]:
    return _divided(np.random.default_rng(0).standard_normal((80, 10)).astype(np.float32))


def tokens() -> dict[str, np.ndarray]:
    x = np.random.default_rng(0).integers(0, 20, (80, 7))
    x[0] = 19
    return _divided(x)


class Part(nn.Module):
    """(B, SIZE) -> (B, SIZE): a linear layer and something that a subclass adds."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(SIZE, SIZE)

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.layer(x))


class Masks(Part):
    """A constant buffer of whole numbers chooses columns."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("order", torch.arange(SIZE).flip(0))

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x[:, self.order])


class CountsCalls(Part):
    """A buffer changes in training."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        self.calls += self.training
        return super().forward(x)


class Remembers(Part):
    """An attribute changes in training."""

    calls = 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        return super().forward(x) * (1 + self.calls)


class MadeOtherwise(Part):
    """A buffer has other values each time."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("scale", torch.full((), 1 + secrets.randbelow(2**20) / 2**20))

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) * self.scale


class Draws(Part):
    """Draws from the global generators in training."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) * (1 + (random.random() + float(np.random.random()) if self.training else 1))


class Thrice(Part):
    """One layer under three names."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([self.layer, self.layer])

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = torch.tanh(layer(x))
        return super().forward(x)


class Tied(Part):
    def __init__(self) -> None:
        super().__init__()
        self.other = nn.Linear(SIZE, SIZE)
        self.other.weight = self.layer.weight

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(self.other(x))


class WithoutGradients(Part):
    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            return super().forward(x)


class InAList(Part):
    """A layer that nobody registers."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = [nn.Linear(SIZE, SIZE)]

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(self.layers[0](x))


class WritesOver(Part):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.clone().add_(1))


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.rnn = nn.GRU(4, 4, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.rnn(x.view(-1, 3, 4))[0].flatten(1)


class Attends(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(4, 2, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        x = x.view(-1, 3, 4)
        return (x + self.attention(x, x, x, need_weights=False)[0]).flatten(1)


def changed(change: Callable[[Part], object]) -> Callable[[], nn.Module]:
    """Returns what makes a part and then changes it."""

    def make() -> nn.Module:
        part = Part()
        change(part)
        return part

    return make


PARTS: tuple[Callable[[], nn.Module], ...] = (
    *(Part, Part, Masks, Draws, Thrice, Tied, WritesOver, Recurrent, Attends),
    *(lambda: nn.BatchNorm1d(SIZE), lambda: nn.LayerNorm(SIZE), lambda: nn.GroupNorm(3, SIZE), lambda: nn.Dropout(0.3)),
    lambda: nn.Sequential(Part(), nn.Dropout(0.1), Part()),
    changed(lambda part: part.layer.register_forward_hook(lambda layer, inputs, output: 2 * output)),
    changed(lambda part: part.layer.register_full_backward_hook(lambda layer, inputs, outputs: (2 * inputs[0],))),
    changed(lambda part: parametrizations.weight_norm(part.layer)),
    # What should be refused.
    *(CountsCalls, Remembers, MadeOtherwise, WithoutGradients, InAList),
    changed(lambda part: part.double()),
    changed(lambda part: part.layer.weight.register_hook(lambda gradient: 2 * gradient)),
    changed(lambda part: part.layer.bias.requires_grad_(False)),
    changed(lambda part: parametrizations.spectral_norm(part.layer)),
    changed(lambda part: part.register_parameter("none", nn.Parameter(torch.zeros(0)))),
    changed(lambda part: setattr(part, "layer", nn.Linear(SIZE, SIZE, device="meta"))),
)


class Drawn(nn.Module):
    """One to three parts between a layer that reads the data and one that gives the classes."""

    def __init__(self, num_classes: int, example_shape: tuple[int, ...], vocabulary_size: int, number: int = 0) -> None:
        super().__init__()
        draw = random.Random(number + 1)
        self.reads: nn.Module
        if vocabulary_size:
            self.reads = nn.EmbeddingBag(vocabulary_size, SIZE)
        elif len(example_shape) == 3 and draw.random() < 0.5:
            convs = nn.Conv2d(example_shape[0], SIZE, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1)
            self.reads = nn.Sequential(*convs, nn.Flatten())
        else:
            self.reads = nn.Sequential(nn.Flatten(), nn.Linear(torch.Size(example_shape).numel(), SIZE))
        self.parts = nn.Sequential(*(draw.choice(PARTS)() for _ in range(draw.randint(1, 3))))
        self.last = nn.Linear(SIZE, num_classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.parts(self.reads(x)))
