"""Steps that several sets share: pictures, examples by name, LEAF's files, and the division of time.

Pictures are decoded by Pillow. Which bits a JPEG decodes to depends a little on the library's version.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any, TypeVar

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from fedmpi.data.dataset import Dataset, number_groups
from fedmpi.data.files import guarded, track
from fedmpi.errors import DataError

PartialShare = Annotated[float, Field(gt=0, lt=1)]
Number = TypeVar("Number", bound=np.generic)
ByName = dict[str, tuple[NDArray[Any], NDArray[Any]]]
"""The examples and the labels of each writer, role or file."""
_AGAIN = "write it again by LEAF's preprocess.sh"
FORMATS = ("PNG", "JPEG", "BMP", "GIF", "WEBP", "PPM", "TIFF")


def decode(
    path: Path,
    advice: str,
    size: tuple[int, int] | None,
    *,
    resizes: bool = False,
    grey: bool = False,
    clear: list[Path] | None = None,
) -> NDArray[np.uint8]:
    """Returns the picture, uint8 (H, W, C), of 3 channels or, if `grey`, of one. Adds the path of one with transparent
    pixels to `clear`.

    A picture that is not of `size` (width, height; None: any) is resized (bilinear) or refused. Raises DataError, with
    `advice`, for whatever is wrong.
    """
    from PIL import Image  # a tenth of a second, which other data need not wait for

    with guarded(path, advice, "is no such picture or damaged"), warnings.catch_warnings():
        # Pillow warns of much that does not matter, as odd camera notes. It refuses more than 179 million pixels.
        warnings.simplefilter("ignore")
        picture: Image.Image = Image.open(path, formats=FORMATS)
        with picture:
            if picture.mode[0] in "IF":
                raise ValueError(f"its pixels are of mode {picture.mode}, which 8 bits cannot hold")
            if size and picture.size != size and not resizes:
                raise ValueError(f"{picture.width}x{picture.height} pixels, expected {size[0]}x{size[1]}")
            may_be_clear = "A" in picture.getbands() or "transparency" in picture.info
            if clear is not None and may_be_clear and np.asarray(picture.convert("RGBA"))[..., 3].min() < 255:
                clear.append(path)
            decoded = picture.convert("L" if grey else "RGB")
        if size and decoded.size != size:
            decoded = decoded.resize(size, Image.Resampling.BILINEAR)
        return np.asarray(decoded).reshape(decoded.height, decoded.width, -1)


def by_names(folder: Path, train: ByName, test: ByName) -> Dataset:
    """Makes a data set, name after name in order; takes the examples out of `train` and `test` to free them.

    Leaves out users without training examples, as LEAF's division of a single example may give. Raises DataError where
    a part has no examples then.
    """
    test = {name: part for name, part in test.items() if name in train}
    if not train or not test:
        todo = "make the files by LEAF's `-t sample`, which divides the examples of each"
        raise DataError(str(folder), f"holds nobody with examples in both parts; {todo}")
    x, y, names = _joined(train)
    test_x, test_y, test_names = _joined(test)
    return Dataset(x, y, test_x, test_y, *number_groups(names, test_names))


def _joined(parts: ByName) -> tuple[NDArray[Any], NDArray[Any], NDArray[np.str_]]:
    names = sorted(parts)
    taken = [parts.pop(name) for name in names]
    whose = np.repeat(names, [len(labels) for _, labels in taken])
    return np.concatenate([x for x, _ in taken]), np.concatenate([y for _, y in taken]), whose


def leaf_users(
    paths: Sequence[Path], kind: type, shrink: Callable[[dict[str, Any]], Any] | None = None
) -> Iterator[tuple[Path, str, Any]]:
    """Yields file, user (writer, role) and the user's entry of `user_data`, of type `kind`, of LEAF's JSON files.

    `shrink` makes an entry of each JSON object as soon as it is parsed. Raises DataError.
    """
    seen: dict[str, Path] = {}
    for path in track(paths, "reading files"):
        with guarded(path, _AGAIN, "is not a JSON file of LEAF"), path.open(encoding="utf-8") as file:
            users = json.load(file, object_hook=shrink)["user_data"]
        if not all(isinstance(part, kind) for part in users.values()):
            raise DataError(str(path), f"is not a file of LEAF: no 'x' and 'y' of each user; {_AGAIN}")
        for name, part in users.items():
            if name in seen:
                raise DataError(str(path), f"{name} is in {seen[name]}, too; give the folder of one of them")
            seen[name] = path
            yield path, name, part


def first_of_test(size: int, test_share: float) -> int:
    """Returns where the test part of `size` things in time begins: the last `test_share` of them, rounded half up."""
    return size - int(size * test_share + 0.5)


def windows(samples: NDArray[Number], length: int, step: int) -> NDArray[Number]:
    """Returns (n, length, ...): a window every `step` samples from the first on; none if there are too few."""
    starts = np.arange(0, len(samples) - length + 1, step)
    return samples[starts[:, None] + np.arange(length)]
