"""Folders of pictures by class, of the user's own: `train/cat/1.png`, `test/dog/2.jpg` ...

Classes are the names of the folders, sorted; pictures come class after class, sorted by name. A folder without `train`
and `test` holds the classes itself, and `data.test_share` divides the pictures. Files with other endings than `ENDINGS`
are left out. Notes on how a camera was held are not followed. Which bits a JPEG decodes to, and what resizing makes of
them, depends a little on Pillow's version.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import numpy as np
from numpy.typing import NDArray
from pydantic import AfterValidator, Field

from fedmpi.data.files import below_home
from fedmpi.data.own import Arrays, FileOptions, divided
from fedmpi.data.sets import pictures
from fedmpi.data.subset import Ints
from fedmpi.errors import DataError, counted

ENDINGS = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".ppm", ".pgm", ".tif", ".tiff")
FORMATS = ("PNG", "JPEG", "BMP", "GIF", "WEBP", "PPM", "TIFF")
ADVICE = "replace it or take it out; data.size=[height, width] resizes pictures of other sizes"
Side = Annotated[int, Field(ge=1, le=8192)]


def _none_or_two(size: tuple[int, ...]) -> tuple[int, ...]:
    if len(size) == 1:
        raise ValueError("expected [height, width]")
    return size


class ImageFolder(FileOptions):
    """Sizes and classes are those of the pictures, so a plan decodes them, too."""

    name: str = "image_folder"
    """Your own pictures, in a folder for each class."""
    size: Annotated[tuple[Side, ...], Field(strict=False, max_length=2), AfterValidator(_none_or_two)] = ()
    """Height and width that all pictures are resized to (bilinear); empty if they are all of one size."""
    grey: bool = False
    """One channel instead of red, green and blue."""

    def arrays(self) -> Arrays:
        root = below_home(self.path)
        if not root.is_dir():
            raise DataError(f"data.path={self.path}", "no such folder; expected one with train/CLASS and test/CLASS")
        has_parts = (root / "train").is_dir() and (root / "test").is_dir()
        if has_parts and self.test_share:
            raise DataError(str(root), "has the folders train and test; remove data.test_share")
        if not has_parts and not self.test_share:
            todo = "say by data.test_share, as 0.2, how to divide it"
            raise DataError(str(root), f"has no folders train and test; {todo}")
        if not has_parts:
            paths, labels = _listed(root, _folders(root))
            return divided(str(root), self, self._decoded(paths), labels, None)
        classes = _folders(root / "train")
        if strange := [name for name in _folders(root / "test") if name not in classes]:
            raise DataError(str(root), f"the class {strange[0][:60]!r} is in test, but not in train")
        train, train_y = _listed(root / "train", classes)
        test, test_y = _listed(root / "test", classes)
        x = self._decoded([*train, *test])
        return {"train_x": x[: len(train)], "train_y": train_y, "test_x": x[len(train) :], "test_y": test_y}

    def _decoded(self, paths: list[Path]) -> NDArray[np.uint8]:
        """Returns the pictures, uint8 (N, H, W, C). Raises DataError that names the first one that is wrong."""
        height, width = self.size or pictures.decode(paths[0], FORMATS, ADVICE, None).shape[:2]
        images = np.empty((len(paths), height, width, 1 if self.grey else 3), np.uint8)
        resizes = bool(self.size)
        for image, path in zip(images, paths, strict=True):
            decoded = pictures.decode(path, FORMATS, ADVICE, (width, height), resizes=resizes, grey=self.grey)
            image[:] = decoded.reshape(image.shape)
        return images


def _folders(folder: Path) -> list[str]:
    """Returns the classes, sorted. Raises DataError if there are fewer than two."""
    names = sorted(entry.name for entry in os.scandir(folder) if entry.is_dir() and not entry.name.startswith("."))
    if len(names) < 2:
        expected = "expected one for each of two or more classes"
        raise DataError(str(folder), f"holds {counted(len(names), 'folder')}, {expected}")
    return names


def _listed(folder: Path, classes: list[str]) -> tuple[list[Path], Ints]:
    """Returns all pictures, class after class, and their labels. Raises DataError for a class without training ones."""
    paths: list[Path] = []
    counts = []
    for name in classes:
        files = sorted((folder / name).iterdir()) if (folder / name).is_dir() else []
        own = [file for file in files if file.name.lower().endswith(ENDINGS) and not file.name.startswith(".")]
        if not own and folder.name != "test":
            raise DataError(str(folder / name), f"the class has no pictures ({', '.join(ENDINGS)})")
        paths += own
        counts.append(len(own))
    return paths, np.repeat(np.arange(len(classes), dtype=np.int64), counts)
