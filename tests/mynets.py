"""Nets as users write them: plain modules and functions, and mistakes."""

import os
from typing import Literal

import torch
from torch import nn
from torch.nn import functional as F

from fedmpi.models.width import Width as Share


class Net(nn.Module):
    """A small CNN of mine."""

    def __init__(
        self,
        num_classes,
        example_shape,
        hidden: int = 16,
        channels: tuple[int, ...] = (8, 12),
        pool: Literal["max", "mean"] = "max",
        rate: float | None = None,
        names: list[str] | None = None,
        act=nn.ReLU,
    ):
        super().__init__()
        assert names is None or isinstance(names, list)
        assert isinstance(channels, tuple)
        self.conv1 = nn.Conv2d(example_shape[0], channels[0], 3, padding=1)
        self.bn = nn.BatchNorm2d(channels[0])
        self.conv2 = nn.Conv2d(channels[0], channels[1], 3, padding=1)
        self.fc1 = nn.Linear(channels[1] * (example_shape[1] // 4) * (example_shape[2] // 4), hidden)
        self.fc2 = nn.Linear(hidden, num_classes)
        self.act = act()

    def forward(self, x):
        x = F.max_pool2d(self.act(self.bn(self.conv1(x))), 2)
        x = F.max_pool2d(self.act(self.conv2(x)), 2)
        return self.fc2(self.act(self.fc1(x.reshape(x.size(0), -1))))


class Wide(Net):
    def __init__(self, num_classes, example_shape, width: float = 1.0):
        super().__init__(num_classes, example_shape, round(16 * width), (round(8 * width), round(12 * width)))


class Rounded(Net):
    def __init__(self, num_classes, example_shape, width: Share):
        super().__init__(num_classes, example_shape, width.of(15), (width.of(7), width.of(11)))


def factory(num_classes, example_shape, hidden=8, depth: int = 2):
    sizes = [hidden] * depth
    ins = [torch.Size(example_shape).numel(), *sizes]
    layers = [nn.Sequential(nn.Linear(i, o), nn.LayerNorm(o), nn.Tanh()) for i, o in zip(ins, sizes, strict=False)]
    return nn.Sequential(nn.Flatten(), *layers, nn.Linear(sizes[-1], num_classes))


class Lstm(nn.Module):
    def __init__(self, num_classes, example_shape):
        super().__init__()
        self.lstm, self.fc = nn.LSTM(example_shape[-1], 8, batch_first=True), nn.Linear(8, num_classes)

    def forward(self, x):
        return self.fc(self.lstm(x[:, 0])[0][:, -1])


class Joins(nn.Module):
    def __init__(self, num_classes, example_shape):
        super().__init__()
        self.a, self.b = nn.Conv2d(1, 4, 1), nn.Conv2d(1, 4, 1)
        self.c = nn.Conv2d(8, 6, 3)
        self.fc = nn.Linear(6, num_classes)

    def forward(self, x):
        return self.fc(F.relu(self.c(torch.cat([self.a(x), self.b(x)], 1))).mean((2, 3)))


class Fixed(Joins):
    def forward(self, x):
        return self.fc(self.c(torch.cat([self.a(x), self.b(x)], 1)).mean((2, 3)).view(-1, 6))


class View(Net):
    def forward(self, x):
        x = F.max_pool2d(self.conv2(self.bn(self.conv1(x))), 4)
        return self.fc2(self.fc1(x.view(len(x), -1)))


class Text(nn.Module):
    def __init__(self, num_classes, vocabulary_size, size=8):
        super().__init__()
        self.embedding, self.fc = nn.Embedding(vocabulary_size, size), nn.Linear(size, num_classes)

    def forward(self, x):
        return self.fc(self.embedding(x).mean(1))


class NotANet:
    pass


class TakesNothing(nn.Module):
    pass


def untyped(num_classes, example_shape, x): ...
def own_name(num_classes, example_shape, net=3): ...
def raises(num_classes, example_shape):
    raise KeyError("what")


def gives_text(num_classes, example_shape):
    return "net"


class Pair(Net):
    def forward(self, x):
        return super().forward(x), x


class ByName(Net):
    """Returns its scores by name, as nets of transformers do."""

    def forward(self, x):
        return {"loss": x.sum(), "logits": super().forward(x)}


INSTANCE = nn.Linear(64, 4)


def the_same(num_classes, example_shape):
    return nn.Sequential(nn.Flatten(), INSTANCE)


def wrong_size(num_classes, example_shape):
    return nn.Linear(7, num_classes)


def unlike(num_classes, example_shape, width=1.0):
    hidden = 8 if width == 1 else 9
    return nn.Sequential(nn.Flatten(), nn.Linear(64, hidden), nn.Linear(hidden, num_classes))


class Flat(nn.Module):
    """The classes come from the layer that is registered first; what a subclass adds is tried."""

    def __init__(self, num_classes, example_shape, hidden: int = 8):
        super().__init__()
        self.head = nn.Linear(hidden, num_classes)
        self.body = nn.Linear(torch.Size(example_shape).numel(), hidden)
        self.middle = nn.Linear(hidden, hidden)
        self.add(num_classes, example_shape)

    def add(self, num_classes, example_shape): ...

    def forward(self, x):
        return self.head(F.relu(self.middle(F.relu(self.body(x.flatten(1))))))


class Computes(Flat):
    def __init__(self, num_classes, example_shape):
        super().__init__(num_classes, example_shape, hidden=int(torch.linspace(1, 8, 3)[-1]))


class Chooses(Flat):
    """Its buffer says which columns it reads: the last ones twice."""

    def add(self, num_classes, example_shape):
        self.register_buffer("columns", torch.arange(torch.Size(example_shape).numel()).clamp(min=5))

    def forward(self, x):
        return super().forward(x.flatten(1)[:, self.columns])


class Places(Flat):
    def add(self, num_classes, example_shape):
        self.place = nn.Embedding(example_shape[-1], example_shape[-1])

    def forward(self, x):
        return super().forward(x + self.place(torch.arange(x.shape[-1])))


class Inverts(Flat):
    """Values must be there: a matrix of zeros has no inverse."""

    def forward(self, x):
        gram = self.middle.weight @ self.middle.weight.T
        return self.head(F.relu(self.body(x.flatten(1)) @ torch.linalg.inv(gram + 1e-3 * gram.diag().diag())))


class OneByOne(Flat):
    def forward(self, x):
        return torch.stack([super(OneByOne, self).forward(example[None])[0] for example in x])


class Logarithm(Flat):
    def forward(self, x):
        return super().forward(torch.log1p(x))


def codes():
    """Rows of whole numbers that may be features or tokens."""
    x, y = (torch.arange(60 * 6).view(60, 6) % 7).numpy(), torch.arange(60).numpy() % 3
    return {"train_x": x[:40], "train_y": y[:40], "test_x": x[40:], "test_y": y[40:]}


def counts():
    return {name: rows.astype("float32") if name.endswith("x") else rows for name, rows in codes().items()}


class Repeats(Flat):
    def add(self, num_classes, example_shape):
        self.blocks = nn.ModuleList([nn.Sequential(self.middle, nn.ReLU())] * 3)

    def forward(self, x):
        return self.head(nn.Sequential(*self.blocks)(self.body(x.flatten(1))))


class Hooked(Flat):
    def add(self, num_classes, example_shape):
        self.body.weight.register_hook(lambda gradient: 0 * gradient)


class Watched(Flat):
    """A layer has a forward hook, which its factors would not have."""

    def add(self, num_classes, example_shape):
        self.body.register_forward_hook(lambda part, inputs, output: 2 * output)


class Ordered(nn.Sequential):
    """Layers as a set may give them: on each rank in another order."""

    def __init__(self, num_classes):
        super().__init__(nn.Flatten())
        for name in sorted(["a", "b"], reverse=os.environ["ORDER"] == "1"):
            self.add_module(name, nn.Linear(64, 64))
        self.add_module("last", nn.Linear(64, num_classes))


class Sums(Flat):
    """Adds in the order in which a set may give its names, which changes the last bits."""

    def forward(self, x):
        scores = super().forward(x)
        shares = [0.1, 0.7, 1e6, -1e6][:: -1 if os.environ["ORDER"] == "1" else 1]
        return sum((share * scores for share in shares), start=0 * scores)


class Listed(Flat):
    """Keeps a layer in a list, where no optimizer finds it."""

    def add(self, num_classes, example_shape):
        self.others = [nn.Linear(8, 8)]

    def forward(self, x):
        return super().forward(x) + self.others[0](x.flatten(1)[:, :8]).sum()


class Extracts(Flat):
    def forward(self, x):
        return self.head(self.middle(self.body(x.flatten(1)).detach()))


class Unused(Flat):
    def add(self, num_classes, example_shape):
        self.auxiliary = nn.Linear(3, 3)


class WritesOver(Flat):
    def forward(self, x):
        return super().forward(x.sub_(1))


class Named(nn.Module):
    """The same net by other names: layers `<place>.body` beside `body`, and a parameter of `body`."""

    def __init__(self, num_classes, example_shape, places: tuple[str, ...] = ("a.b", "c", "d", "e"), more: str = "f"):
        super().__init__()
        inputs = torch.Size(example_shape).numel()
        self.body, self.last = nn.Linear(inputs, 16), nn.Linear(16, num_classes)
        self.body.register_parameter(more, nn.Parameter(torch.ones(16, inputs)))
        self.bodies = []
        for place in places:
            holder = self
            for name in place.split("."):
                holder.add_module(name, nn.Module())
                holder = holder.get_submodule(name)
            holder.body = nn.Linear(inputs, 16)
            self.bodies.append(f"{place}.body")

    def forward(self, x):
        x = x.flatten(1)
        hidden = sum((self.get_submodule(name)(x) for name in self.bodies), start=self.body(x))
        (more,) = [value for name, value in self.body.named_parameters() if name not in ("weight", "bias")]
        return self.last(F.relu(hidden + F.linear(x, more)))


class Anneals(Flat):
    """Counts its steps, which changes its scores after some twenty of them."""

    steps = 0

    def forward(self, x):
        self.steps += self.training
        return super().forward(x) / (1.0 if self.steps < 20 else 0.5)


class Remembers(Flat):
    """Keeps the last scores and the shapes in a list of a dict."""

    def add(self, num_classes, example_shape):
        self.middle.seen = {"shapes": []}

    def forward(self, x):
        self.middle.seen["shapes"].append(x.shape)
        return super().forward(x)


class Caches(Flat):
    """Fills a table once, keeps what it has given last, and has another name each time that it is made."""

    def add(self, num_classes, example_shape):
        self.name = hex(id(self))
        self.tables = {}

    def forward(self, x):
        table = self.tables.setdefault(x.shape[1:], torch.arange(x[0].numel()) / x[0].numel())
        self.last = super().forward(x.flatten(1) + table)
        return self.last


class ReadsSizes(Flat):
    def __init__(self, num_classes, example_shape):
        super().__init__(num_classes, example_shape, hidden=32)
        self.norm = nn.BatchNorm1d(32)
        self.middle.gain = 2.0

    def forward(self, x):
        hidden = self.norm(self.body(x.flatten(1))) * self.norm.num_features**-0.5
        gain = self.middle.gain * self.middle.in_features / self.middle.out_features
        return self.head(self.middle(hidden) * gain)


class Measures(Flat):
    def forward(self, x):
        return super().forward(x) * torch.ones(len(x), 1)


class Prompts(Flat):
    def forward(self, x):
        return super().forward(x) + self.head(torch.ones(1, 8))


class Insists(Flat):
    def forward(self, x):
        assert type(self.middle) is nn.Linear, "a linear layer only"
        return super().forward(x)


class Energy(Flat):
    """Takes a step down its energy by gradients of its inputs."""

    def forward(self, x):
        with torch.enable_grad():
            x = x.flatten(1).requires_grad_()
            (slope,) = torch.autograd.grad(self.body(x).square().sum(), x, create_graph=True)
        return super().forward(x - 0.1 * slope)


class Empty(Flat):
    def add(self, num_classes, example_shape):
        self.none = nn.Parameter(torch.zeros(3, 0))


class Elsewhere(Flat):
    def add(self, num_classes, example_shape):
        self.middle = nn.Linear(8, 8, device="meta")


class Freezes(Flat):
    def forward(self, x):
        self.body.requires_grad_(False)
        return super().forward(x)


class Detached(Flat):
    @torch.no_grad()
    def forward(self, x):
        return super().forward(x)


class Squeezes(Flat):
    def forward(self, x):
        return super().forward(x).squeeze()


class ChoosesByValue(Flat):
    def forward(self, x):
        outputs = super().forward(x)
        return outputs if self.body.weight.any() else outputs[:0]


def frozen(num_classes, example_shape):
    return factory(num_classes, example_shape).requires_grad_(False)


def nothing_to_train(num_classes, example_shape):
    return nn.Sequential(nn.Flatten(), nn.AdaptiveAvgPool1d(num_classes))


def one_and_rest(labels, num_clients, seed):
    return [[0], range(1, len(labels))]
