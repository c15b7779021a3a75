"""Steps that several sets share: pictures, examples by name, and the division of time."""

import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedmpi.data.dataset import Dataset, number_groups
from fedmpi.data.files import guarded, track
from fedmpi.errors import DataError

Examples = tuple[NDArray[Any], NDArray[Any]]
"""x and y, of one length."""
ByName = dict[str, Examples]
"""The examples of each writer, role or file."""
FORMATS = ("PNG", "JPEG", "BMP", "GIF", "WEBP", "PPM", "TIFF")


def decode(
    paths: Sequence[Path],
    advice: str,
    size: tuple[int, int] | None = None,
    *,
    resizes: bool = False,
    grey: bool = False,
) -> tuple[NDArray[np.uint8], list[Path]]:
    """Returns the pictures, uint8 (N, H, W, C) of 3 channels or, if `grey`, of one, and the paths of those with
    transparent pixels. Which bits a JPEG decodes to depends a little on Pillow's version.

    A picture that is not of `size` (H, W; None: that of the first) is resized (bilinear) or refused. Raises DataError.
    """
    from PIL import Image  # a tenth of a second, which other data need not wait for

    images = np.empty(0, np.uint8)
    clear = []
    for number, path in enumerate(track(paths, "decoding pictures")):
        with guarded(path, advice, "is no such picture or damaged"), warnings.catch_warnings():
            # Pillow warns of much that does not matter, as odd camera notes. It refuses more than 179 million pixels.
            warnings.simplefilter("ignore")
            picture: Image.Image = Image.open(path, formats=FORMATS)
            with picture:
                size = size or (picture.height, picture.width)
                height, width = size
                if picture.mode[0] in "IF":
                    raise ValueError(f"its pixels are of mode {picture.mode}, which 8 bits cannot hold")
                if picture.size != (width, height) and not resizes:
                    raise ValueError(f"{picture.width}x{picture.height} pixels, expected {width}x{height}")
                alpha = picture.convert("RGBA").getchannel("A") if picture.has_transparency_data else None
                if alpha is not None and np.asarray(alpha).min() < 255:
                    clear.append(path)
                decoded = picture.convert("L" if grey else "RGB").resize((width, height), Image.Resampling.BILINEAR)
        if not number:
            images = np.empty((len(paths), height, width, 1 if grey else 3), np.uint8)
        images[number] = np.asarray(decoded).reshape(images.shape[1:])
    return images, clear


def by_names(
    folder: Path, train: ByName, test: ByName, todo: str = "divide each user's by LEAF's `-t sample`"
) -> Dataset:
    """Makes a data set of those with training examples, in the order of their names; takes the examples out of `train`
    and `test` to free them. Raises DataError where a part has none."""
    test = {name: part for name, part in test.items() if name in train}
    if not train or not test:
        raise DataError(str(folder), f"holds nobody with examples in both parts; {todo}")
    x, y, names = _joined(train)
    test_x, test_y, test_names = _joined(test)
    return Dataset(x, y, test_x, test_y, *number_groups(names, test_names))


def _joined(parts: ByName) -> tuple[NDArray[Any], NDArray[Any], NDArray[np.str_]]:
    names = sorted(parts)
    taken = [parts.pop(name) for name in names]
    whose = np.repeat(names, [len(labels) for _, labels in taken])
    return np.concatenate([x for x, _ in taken]), np.concatenate([y for _, y in taken]), whose


def first_of_test(size: int, test_share: float) -> int:
    """Returns where the test part of `size` things in time begins: the last `test_share` of them, rounded half up."""
    return size - int(size * test_share + 0.5)


def windows(samples: NDArray[Any], length: int, step: int) -> NDArray[Any]:
    """Returns (n, length, ...): a window every `step` samples from the first on; none if there are too few."""
    starts = np.arange(0, len(samples) - length + 1, step)
    return samples[starts[:, None] + np.arange(length)]
