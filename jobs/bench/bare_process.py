"""Trains a ResNet as one would without fedmpi: images in memory as bytes, `torch.optim.SGD`, and a test.

`memory.py` starts it with its settings as JSON and a folder. It imports nothing of fedmpi. When all is done it makes a
file in the folder and waits for the end of its input, so that several of them hold their memory at the same time.
"""

import json
import os
import sys
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional


class Block(nn.Module):
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
    """Returns a ResNet for small images: `width` channels, twice as many in each further group of blocks."""
    layers: list[nn.Module] = [nn.Conv2d(channels, width, 3, 1, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU()]
    before = width
    for group, count in enumerate(blocks):
        for place in range(count):
            layers.append(Block(before, width << group, 2 if group and not place else 1))
            before = width << group
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(before, classes))


def main(
    num_train: int, num_test: int, shape: list[int], classes: int, batch_size: int, steps: int, **net: Any
) -> None:
    """Trains so many batches and tests, on one thread."""
    torch.set_num_threads(1)
    images = torch.randint(256, (num_train + num_test, *shape), dtype=torch.uint8)
    labels = torch.randint(classes, (num_train + num_test,))
    model = resnet(shape[0], classes, **net).to(memory_format=torch.channels_last)
    sgd = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9, weight_decay=1e-4)

    def outputs(numbers: Tensor) -> Tensor:
        inputs = (images[numbers].float() / 255 - 0.5) / 0.2
        result: Tensor = model(inputs.to(memory_format=torch.channels_last))
        return result

    for _ in range(steps):
        numbers = torch.randint(num_train, (batch_size,))
        sgd.zero_grad()
        torch.autograd.backward(functional.cross_entropy(outputs(numbers), labels[numbers]))
        sgd.step()
    model.eval()
    with torch.no_grad():
        for numbers in torch.arange(num_train, num_train + num_test).split(batch_size):
            (outputs(numbers).argmax(1) == labels[numbers]).sum().item()


if __name__ == "__main__":
    main(**json.loads(sys.argv[1]))
    Path(sys.argv[2], str(os.getpid())).touch()
    sys.stdin.read()
