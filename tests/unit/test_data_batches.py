"""Batches: the same numbers as one image at a time, in the promised layout, from the promised draws."""

import numpy as np
import pytest
import torch

from fedmpi.data.batches import DeviceData, batch_bounds, crop
from fedmpi.data.dataset import DataInfo, Dataset, load_data
from fedmpi.data.sets.digits import Synthetic


def device_data(channels: int = 3, side: int = 8, padding: int = 2, flip: bool = True, augment: bool = True):
    """12 training and 5 test images of random pixels on the CPU."""
    generator = np.random.default_rng(0)
    mean, std = (0.2, 0.4, 0.6)[:channels], (0.3, 0.2, 0.1)[:channels]
    info = DataInfo("image", (channels, side, side + 1), 10, 12, 5, mean, std, padding, flip)
    images = [generator.integers(0, 256, (n, side, side + 1, channels), dtype=np.uint8) for n in (12, 5)]
    labels = [generator.integers(0, 10, n) for n in (12, 5)]
    return DeviceData(info, Dataset(images[0], labels[0], images[1], labels[1]), "cpu", augment)


def naive_image(device: DeviceData, image: torch.Tensor, corner: tuple[int, int], flip: bool) -> torch.Tensor:
    """Pad, crop, mirror and normalize one uint8 (H, W, C) image, pixel by pixel -> float32 (C, H, W)."""
    height, width, channels = image.shape
    scale = [np.float32(1 / (255 * std)) for std in device.info.std]
    shift = [np.float32(-mean / std) for mean, std in zip(device.info.mean, device.info.std, strict=True)]
    out = np.empty((channels, height, width), np.float32)
    for c, y, x in np.ndindex(channels, height, width):
        column = width - 1 - x if flip else x
        source_y, source_x = corner[0] + y - device.padding, corner[1] + column - device.padding
        is_inside = 0 <= source_y < height and 0 <= source_x < width
        pixel = image[source_y, source_x, c].item() if is_inside else 0
        out[c, y, x] = np.float32(pixel) * scale[c] + shift[c]
    return torch.from_numpy(out)


@pytest.mark.parametrize(("channels", "padding", "flip"), [(3, 2, True), (1, 1, False), (3, 0, True), (2, 3, False)])
def test_training_batches_equal_one_image_at_a_time(channels: int, padding: int, flip: bool) -> None:
    device = device_data(channels, padding=padding, flip=flip)
    draws = device.draws(np.arange(12), 2, torch.Generator().manual_seed(0))
    assert draws.flips.any() == flip and len(draws.corners.unique()) == 2 * padding + 1
    for epoch in range(2):
        x, y = device.train_batch(draws, epoch, 3, 11)
        for place in range(8):
            number = draws.examples[epoch, 3 + place]
            corner, is_flipped = draws.corners[epoch, 3 + place].tolist(), bool(draws.flips[epoch, 3 + place])
            assert torch.equal(x[place], naive_image(device, device.train_x[number], corner, is_flipped))
            assert y[place] == device.train_y[number]


def test_crop_by_hand() -> None:
    """[[1, 2], [3, 4]] in a border of one zero is [[0,0,0,0], [0,1,2,0], [0,3,4,0], [0,0,0,0]]. Corner (0, 1) is
    rows 0-1, columns 1-2: [[0, 0], [1, 2]], mirrored [[0, 0], [2, 1]]; corner (2, 2) is rows and columns 2-3:
    [[4, 0], [0, 0]]; corner (1, 1) is the image."""
    image = torch.tensor([[1, 2], [3, 4]], dtype=torch.uint8).view(1, 2, 2, 1).repeat(4, 1, 1, 1)
    corners = torch.tensor([[0, 1], [0, 1], [2, 2], [1, 1]])
    crops = crop(image, corners, torch.tensor([False, True, False, False]), padding=1)
    assert crops[..., 0].tolist() == [[[0, 0], [1, 2]], [[0, 0], [2, 1]], [[4, 0], [0, 0]], [[1, 2], [3, 4]]]


def test_test_batches_are_normalized_only() -> None:
    """(pixel / 255 - mean) / std, to float32 rounding, whatever training does; examples in stored order."""
    device = device_data()
    x, y = device.test_batch(1, 4)
    expected = (device.test_x[1:4].double() / 255 - torch.tensor(device.info.mean)) / torch.tensor(device.info.std)
    assert torch.allclose(x.permute(0, 2, 3, 1).double(), expected, atol=1e-5)
    assert torch.equal(y, device.test_y[1:4])
    picked = device.test_batch_of(torch.tensor([3, 1]))
    assert torch.equal(picked[0], x[[2, 0]]) and torch.equal(picked[1], y[[2, 0]])
    again = device.test_batch(1, 4)[0]
    assert torch.equal(x, again), "normalization changed what is stored"


def test_without_augmentation_images_are_whole() -> None:
    """The batch is the normalized images themselves, in the drawn order; the order is that of augmented training."""
    plain, augmented = device_data(augment=False), device_data(augment=True)
    draws = plain.draws(np.arange(12), 3, torch.Generator().manual_seed(1))
    assert draws.corners is None and draws.flips is None
    others = augmented.draws(np.arange(12), 3, torch.Generator().manual_seed(1))
    assert torch.equal(draws.examples, others.examples)
    x, _ = plain.train_batch(draws, 2, 0, 12)
    assert torch.equal(x[4], naive_image(plain, plain.train_x[draws.examples[2, 4]], (0, 0), False))


def test_draws_follow_the_generator_in_the_stated_order() -> None:
    """One permutation of the examples per epoch, then all corners of 0..4, then all flips; no global generator."""
    device, generator, before = device_data(padding=2), torch.Generator().manual_seed(5), torch.get_rng_state()
    examples = torch.tensor([7, 2, 9, 4, 0])
    draws = device.draws(examples.numpy(), 2, torch.Generator().manual_seed(5))
    order = torch.stack([examples[torch.randperm(5, generator=generator)] for _ in range(2)])
    corners = torch.randint(5, (2, 5, 2), generator=generator)
    flips = torch.randint(2, (2, 5), generator=generator) == 1
    assert torch.equal(draws.examples, order) and torch.equal(draws.corners, corners)
    assert torch.equal(draws.flips, flips) and torch.equal(before, torch.get_rng_state())


def test_a_fixed_list_keeps_its_order() -> None:
    """BatchNorm re-estimation: given examples, one pass, training transforms; a read-only partition view will do."""
    device = device_data()
    examples = np.arange(4, 8)
    examples.flags.writeable = False
    draws = device.draws(examples, 1, torch.Generator().manual_seed(0), shuffle=False)
    assert draws.examples.tolist() == [[4, 5, 6, 7]] and draws.corners.shape == (1, 4, 2)
    assert torch.equal(device.train_batch(draws, 0, 0, 4)[1], device.train_y[4:8])


@pytest.mark.parametrize(("kind", "dtype"), [("vector", np.float32), ("tokens", np.int16)])
def test_vectors_and_tokens_pass_as_they_are(kind: str, dtype: type) -> None:
    """No augmentation whatever was asked: rows 2 and 0 of the training examples."""
    x, y = np.arange(12, dtype=dtype).reshape(3, 4), np.array([0, 1, 1])
    info = DataInfo(kind, (4,), 2, 3, 3, vocabulary_size=12)
    device = DeviceData(info, Dataset(x, y, x, y), "cpu", augment=True)
    draws = device.draws(np.array([2, 0]), 1, torch.Generator(), shuffle=False)
    batch, labels = device.train_batch(draws, 0, 0, 2)
    assert batch.tolist() == [[8, 9, 10, 11], [0, 1, 2, 3]] and labels.tolist() == [1, 0]
    assert batch.dtype == (torch.float32 if kind == "vector" else torch.int64)
    device.test_batch(0, 3)[0].zero_()  # a net may write over its inputs
    assert device.test_batch(1, 3)[0].tolist() == [[4, 5, 6, 7], [8, 9, 10, 11]]


@pytest.mark.parametrize(
    ("num_examples", "batch_size", "expected"),
    [
        (0, 64, []),
        (1, 64, [(0, 1)]),
        (65, 64, [(0, 65)]),
        (66, 64, [(0, 64), (64, 66)]),
        (10, 4, [(0, 4), (4, 8), (8, 10)]),
        (3, 1, [(0, 1), (1, 2), (2, 3)]),
        (3, 2, [(0, 3)]),
    ],
)
def test_batch_bounds(num_examples: int, batch_size: int, expected: list[tuple[int, int]]) -> None:
    """A single left-over example joins the batch before it; batches of one are what batch size 1 asks for."""
    assert batch_bounds(num_examples, batch_size) == expected


@pytest.mark.gpu("the same draws and pixels on two devices")
def test_gpu_sees_the_same_batches() -> None:
    """Equal draws and labels; pixels to float32 rounding (a GPU may fuse nothing here, but promises nothing)."""
    options = Synthetic(num_train=200, num_test=50)
    dataset = load_data(options)
    devices = [DeviceData(options.info(), dataset, name, augment=True) for name in ("cpu", "cuda")]
    draws = [device.draws(np.arange(200), 2, torch.Generator().manual_seed(0)) for device in devices]
    assert torch.equal(draws[0].examples, draws[1].examples.cpu()) and torch.equal(draws[0].flips, draws[1].flips.cpu())
    for host, other in (
        (devices[0].train_batch(draws[0], 1, 64, 128), devices[1].train_batch(draws[1], 1, 64, 128)),
        (devices[0].test_batch(0, 50), devices[1].test_batch(0, 50)),
    ):
        assert torch.equal(host[1], other[1].cpu()) and torch.allclose(host[0], other[0].cpu(), atol=1e-6)
        assert other[0].is_contiguous(memory_format=torch.channels_last)
