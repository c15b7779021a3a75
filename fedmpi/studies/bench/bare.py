"""What one would write without fedmpi: a ResNet, images in memory as bytes, `torch.optim.SGD`, and a test.

    python -m fedmpi.studies.bench.bare '{"shape": [3, 32, 32], "num_train": 1280, ...}' FOLDER

The process that `bench.py memory` sets fedmpi's ranks against. It imports torch and numpy, and nothing of fedmpi. When
all is done it makes a file in the folder and waits for the end of its input, so that as many of them as a job has ranks
hold their memory at the same time.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional


class _Block(nn.Module):
    def __init__(self, before: int, width: int, stride: int) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.Conv2d(before, width, 3, stride, 1, bias=False), nn.BatchNorm2d(width))
        self.second = nn.Sequential(nn.Conv2d(width, width, 3, 1, 1, bias=False), nn.BatchNorm2d(width))
        self.shortcut = nn.Sequential()
        if stride > 1 or before != width:
            self.shortcut = nn.Sequential(nn.Conv2d(before, width, 1, stride, bias=False), nn.BatchNorm2d(width))

    def forward(self, x: Tensor) -> Tensor:
        return functional.relu(self.second(functional.relu(self.first(x))) + self.shortcut(x))


def resnet(channels: int, classes: int, width: int, blocks: list[int]) -> nn.Module:
    """A ResNet for small images: `width` channels, twice as many in each further group of blocks."""
    layers: list[nn.Module] = [nn.Conv2d(channels, width, 3, 1, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU()]
    before = width
    for group, count in enumerate(blocks):
        for place in range(count):
            layers.append(_Block(before, width << group, 2 if group and not place else 1))
            before = width << group
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(before, classes))


class _Images:
    """Images uint8 (N, H, W, C) and labels (N,)."""

    def __init__(self, rng: np.random.Generator, count: int, shape: list[int], classes: int) -> None:
        self.x = torch.from_numpy(rng.integers(0, 256, (count, *shape[1:], shape[0]), dtype=np.uint8))
        self.y = torch.from_numpy(rng.integers(0, classes, count))

    def batch(self, numbers: Tensor) -> tuple[Tensor, Tensor]:
        return ((self.x[numbers].float() / 255 - 0.5) / 0.2).permute(0, 3, 1, 2), self.y[numbers]


def main(asked: dict[str, Any]) -> None:
    """Trains `steps` batches and tests, on one thread."""
    torch.set_num_threads(1)
    rng, shape, size = np.random.default_rng(0), asked["shape"], asked["batch_size"]
    train, test = (_Images(rng, asked[key], shape, asked["classes"]) for key in ("num_train", "num_test"))
    net = resnet(shape[0], asked["classes"], asked["width"], asked["blocks"]).to(memory_format=torch.channels_last)
    sgd = torch.optim.SGD(net.parameters(), lr=1e-3, momentum=0.9, weight_decay=1e-4)
    for _ in range(asked["steps"]):
        inputs, targets = train.batch(torch.randint(len(train.y), (size,)))
        sgd.zero_grad()
        torch.autograd.backward(functional.cross_entropy(net(inputs), targets))
        sgd.step()
    net.eval()
    with torch.no_grad():
        for numbers in torch.arange(len(test.y)).split(size):
            inputs, targets = test.batch(numbers)
            (net(inputs).argmax(1) == targets).sum().item()


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
    Path(sys.argv[2], str(os.getpid())).touch()
    sys.stdin.read()
