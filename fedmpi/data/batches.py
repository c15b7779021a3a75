"""Mini-batches on a device: local training, BatchNorm re-estimation and evaluation take theirs here.

Examples live on the device as they are stored (images: uint8, NHWC); crop, flip and normalization are tensor
operations over a whole batch. Everything random of one client's training is drawn beforehand on the CPU, so every
device sees the same examples, crops and flips, and a batch never makes the host wait for the device.

Padding is added to the images of a batch, not to the stored ones: it costs 0.04 ms for 64 CIFAR images on one core, and
padded copies would take 1.56 times the memory in every rank.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

if TYPE_CHECKING:
    from fedmpi.data.dataset import DataInfo, Dataset


def batch_bounds(num_examples: int, batch_size: int) -> list[tuple[int, int]]:
    """Returns (start, stop) of each mini-batch, in order. A single left-over example joins the batch before it, because
    batch statistics of one vector have no variance."""
    starts = list(range(0, num_examples, batch_size))
    if batch_size > 1 and len(starts) > 1 and num_examples - starts[-1] == 1:
        starts.pop()
    return list(zip(starts, [*starts[1:], num_examples], strict=False))


@dataclass(frozen=True)
class Draws:
    """Everything random of one client's training, E epochs of n examples, on the device.

    `examples` int64 (E, n): numbers of training examples in the order in which they are used. `corners` int64
    (E, n, 2): row and column of each crop's corner in the padded image, of 0..2 * padding. `flips` bool (E, n): mirror
    left-right. The last two are None without augmentation.
    """

    examples: Tensor
    corners: Tensor | None = None
    flips: Tensor | None = None
    steps: int | None = None
    """How many batches of it are used; None: all."""


class DeviceData:
    """A data set resident on `device`.

    On the CPU the arrays of `dataset` are used in place; they must not be changed. With `augment`, images of training
    batches are cropped at random out of a zero-padded image (padding before normalization, as torchvision's RandomCrop)
    and mirrored with probability 1/2, as far as `info` allows.
    """

    def __init__(self, info: DataInfo, dataset: Dataset, device: torch.device | str, augment: bool) -> None:
        self.info = info
        self.device = torch.device(device)
        self.padding = info.crop_padding if augment else 0
        self.flip = info.flip and augment
        self.labels = dataset.classes("train")
        arrays = (dataset.train_x, dataset.train_y, dataset.test_x, dataset.test_y)
        self.train_x, self.train_y, self.test_x, self.test_y = (torch.from_numpy(a).to(self.device) for a in arrays)
        self._normalization = _normalization(info, self.device)

    def draws(
        self, examples: np.ndarray | Tensor, epochs: int, generator: torch.Generator, shuffle: bool = True
    ) -> Draws:
        """Draws what is random in `epochs` passes over `examples` (int64 (n,), numbers of training examples).

        The CPU `generator` is used in this order: one permutation per epoch (none without `shuffle`), all corners, all
        flips.
        """
        numbers = examples.cpu() if isinstance(examples, Tensor) else torch.from_numpy(np.array(examples, np.int64))
        if shuffle:
            order = torch.stack([numbers[torch.randperm(len(numbers), generator=generator)] for _ in range(epochs)])
        else:
            order = numbers.repeat(epochs, 1)
        corners = flips = None
        if self.padding or self.flip:
            corners = torch.randint(2 * self.padding + 1, (*order.shape, 2), generator=generator)
            flips = torch.randint(2 if self.flip else 1, order.shape, generator=generator) > 0
            corners, flips = (drawn.to(self.device, non_blocking=True) for drawn in (corners, flips))
        return Draws(order.to(self.device, non_blocking=True), corners, flips)

    def train_batch(self, draws: Draws, epoch: int, start: int, stop: int) -> tuple[Tensor, Tensor]:
        """Returns examples start..stop of one epoch (from 0) of `draws`: images float32 (B, C, H, W), normalized, in
        channels_last memory format; vectors float32 (B, features); tokens int64 (B, length). And their targets: int64
        (B,), of tokens (B, length), or float32 (B, outputs)."""
        examples = draws.examples[epoch, start:stop]
        x = self.train_x.index_select(0, examples)
        if draws.corners is not None and draws.flips is not None:
            x = crop(x, draws.corners[epoch, start:stop], draws.flips[epoch, start:stop], self.padding)
        return self._ready(x), _as_targets(self.train_y.index_select(0, examples))

    def test_batch(self, start: int, stop: int) -> tuple[Tensor, Tensor]:
        """Returns test examples start..stop in stored order, and targets, like `train_batch`, never augmented."""
        copied = self.test_x[start:stop].clone()  # a net may write over its inputs
        return self._ready(copied), _as_targets(self.test_y[start:stop])

    def test_batch_of(self, examples: Tensor) -> tuple[Tensor, Tensor]:
        """Returns the test examples with the numbers `examples`, int64 (B,) on the device, and targets."""
        return self._ready(self.test_x.index_select(0, examples)), _as_targets(self.test_y.index_select(0, examples))

    def _ready(self, x: Tensor) -> Tensor:
        """Converts stored examples to a net's input; images uint8 (B, H, W, C) -> float32 (B, C, H, W)."""
        if self.info.kind != "image":
            return x.long() if self.info.kind == "tokens" else x
        scale, shift = self._normalization
        normalized = x.reshape(len(x), -1).to(torch.float32).mul_(scale).add_(shift)
        return normalized.view(x.shape).permute(0, 3, 1, 2)


def _as_targets(stored: Tensor) -> Tensor:
    """Returns classes as int64, which losses need; others as they are."""
    return stored if stored.is_floating_point() else stored.long()


def with_examples(info: DataInfo, dataset: Dataset) -> DataInfo:
    """Returns `info` with the first examples of `dataset`, as often as it takes to have four."""
    data = DeviceData(info, dataset, "cpu", augment=False)
    numbers = torch.arange(4) % len(dataset.train_y)
    return replace(info, examples=data.train_batch(Draws(numbers[None]), 0, 0, 4)[0])


def crop(images: Tensor, corners: Tensor, flips: Tensor, padding: int) -> Tensor:
    """Returns crops of the images' own size out of the images with `padding` zeros on each side, `flips` mirrored.

    `images` uint8 (B, H, W, C), `corners` int64 (B, 2) of 0..2 * padding, `flips` bool (B,). One gather of whole pixels
    at [image, row, column] of the padded batch, a table of B * (H + 2 padding) * (W + 2 padding) pixels.
    """
    count, height, width, channels = images.shape
    padded = F.pad(images, (0, 0, padding, padding, padding, padding))
    padded_height, padded_width = padded.shape[1:3]
    device = images.device
    down = torch.arange(height, device=device)
    right = torch.arange(width, device=device)
    columns = corners[:, 1, None] + torch.where(flips[:, None], right.flip(0), right)
    first_pixel = torch.arange(count, device=device) * (padded_height * padded_width)
    rows = (corners[:, 0, None] + down) * padded_width + first_pixel[:, None]
    positions = (rows[:, :, None] + columns[:, None, :]).view(-1)
    return padded.view(-1, channels).index_select(0, positions).view(images.shape)


def _normalization(info: DataInfo, device: torch.device) -> tuple[Tensor, Tensor]:
    """Returns scale and shift, float32 (H * W * C,): pixel * scale + shift = (pixel / 255 - mean) / std.

    One value per pixel instead of per channel: a broadcast over the last 3 elements does not vectorize.
    """
    if info.kind != "image":
        return torch.empty(0), torch.empty(0)
    channels, height, width = info.example_shape
    mean = np.array(info.mean or (0.0,) * channels)
    std = np.array(info.std or (1.0,) * channels)
    scale = np.tile(1 / (255 * std), height * width).astype(np.float32)
    shift = np.tile(-mean / std, height * width).astype(np.float32)
    return torch.from_numpy(scale).to(device), torch.from_numpy(shift).to(device)
