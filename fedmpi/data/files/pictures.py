"""Pictures of a user's, decoded by Pillow. Which bits a JPEG decodes to depends a little on the library's version."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from fedmpi.data.files.budget import Budget, guarded

if TYPE_CHECKING:
    from PIL.Image import Image


@contextlib.contextmanager
def opened(path: Path, formats: Sequence[str], max_bytes: int, advice: str) -> Iterator[Image]:
    """The picture in a regular file of at most `max_bytes`; its pixels are decoded when they are asked for.

    Raises DataError, with `advice`, for whatever is wrong, also for a ValueError within the `with`.
    """
    from PIL import Image  # a tenth of a second, which configs that name no pictures need not wait

    with (
        guarded(path, advice, "is no such picture or damaged"),
        warnings.catch_warnings(),
        Budget(path).opened(path, max_bytes) as file,
    ):
        # Pillow warns of much that is no matter, as odd camera notes. It refuses more than 179 million pixels.
        warnings.simplefilter("ignore")
        try:
            picture = Image.open(file, formats=list(formats))
        except Image.DecompressionBombError as error:
            raise ValueError(str(error)) from error
        yield picture
