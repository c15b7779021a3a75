"""Pictures decoded by Pillow. Which bits a JPEG decodes to depends a little on the library's version."""

from __future__ import annotations

import warnings
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fedmpi.data.files import guarded

FORMATS = ("PNG", "JPEG", "BMP", "GIF", "WEBP", "PPM", "TIFF")


def decode(
    path: Path, advice: str, size: tuple[int, int] | None, *, resizes: bool = False, grey: bool = False
) -> NDArray[np.uint8]:
    """Returns the picture, uint8 (H, W, C), of 3 channels or, if `grey`, of one.

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
            decoded = picture.convert("L" if grey else "RGB")
        if size and decoded.size != size:
            decoded = decoded.resize(size, Image.Resampling.BILINEAR)
        return np.asarray(decoded).reshape(decoded.height, decoded.width, -1)
