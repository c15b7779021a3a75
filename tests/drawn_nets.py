"""Nets drawn from a number: one to three links in a chain, each a net of `mynets` or a layer of `brought_nets`."""

import random
from collections.abc import Callable

import brought_nets
import mynets
import torch
from torch import Tensor, nn

SIZE = 12
"""Numbers that one link gives to the next."""
METHODS = ("fedavg", "fedavg", "fedhm", "heterofl", "scaffold", "topk", "hermes")
DATA = ((), ("data.name=mynets:counts",), ("data.name=mynets:codes",))
"""Pictures, rows of features, rows of tokens."""


def words_of(number: int) -> tuple[str, ...]:
    """Returns the overrides of a small federation whose method, data and net are drawn from this number."""
    draw = random.Random(number)
    data = draw.choice(DATA)
    net = ("model.name=drawn_nets:Drawn", f"model.number={number}")
    return (*net, *data, f"method.name={draw.choice(METHODS)}", "rounds=1", "train.lr=0.001")


class Images(nn.Module):
    """A layer of `brought_nets`, which is for images, between two linear ones."""

    def __init__(self, num_classes: int, example_shape: tuple[int, ...], make: brought_nets.MakePart) -> None:
        super().__init__()
        self.reads = nn.Linear(torch.Size(example_shape).numel(), SIZE)
        self.part = make(3)
        self.last = nn.Linear(SIZE, num_classes)

    def forward(self, x: Tensor) -> Tensor:
        images = self.reads(x.flatten(1)).view(-1, 3, 2, 2)
        return self.last(self.part(images).flatten(1))


MINE = "Flat factory Chooses Caches Energy OneByOne ReadsSizes Repeats Unused Watched WritesOver".split()
MINE_REFUSED = "Anneals Detached Elsewhere Empty Extracts Freezes Hooked Listed Remembers frozen".split()


def _link(draw: random.Random) -> Callable[..., nn.Module]:
    """Draws what makes a link of (num_classes, example_shape); one in seven is to be refused."""
    is_refused = draw.random() < 1 / 7
    if draw.random() < 0.5:
        return getattr(mynets, draw.choice(MINE_REFUSED if is_refused else MINE))
    refused = [make for make, _ in brought_nets.REFUSED.values()]
    make = draw.choice(refused if is_refused else [*brought_nets.ALLOWED.values()])
    return lambda num_classes, example_shape: Images(num_classes, example_shape, make)


class Drawn(nn.Sequential):
    def __init__(self, num_classes: int, example_shape: tuple[int, ...], vocabulary_size: int, number: int = 0) -> None:
        draw = random.Random(number + 1)
        links: list[nn.Module] = []
        shape = example_shape
        if vocabulary_size:
            links.append(mynets.Text(SIZE, vocabulary_size))
            shape = (SIZE,)
        for _ in range(draw.randint(1, 3)):
            links.append(_link(draw)(SIZE, shape))
            shape = (SIZE,)
        super().__init__(*links, nn.Linear(SIZE, num_classes))
