"""Tiny ImageNet, of Stanford's CS231n: the folder tiny-imagenet-200 as distributed, decoded picture by picture.

Source: http://cs231n.stanford.edu/tiny-imagenet-200.zip. The validation pictures are the test part here: those of test/
have no labels. Normalization and crops are FedHM's. Which bits a JPEG decodes to depends a little on the library.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import numpy as np
from pydantic import Field

from fedmpi.data.dataset import DataInfo, Dataset
from fedmpi.data.files import File, Source, Tell, find, read_text
from fedmpi.data.prepare import PreparedOptions
from fedmpi.data.sets import pictures
from fedmpi.errors import DataError, counted

SIDE, TRAIN_PER_CLASS, TEST_PER_CLASS = 64, 500, 50
ADVICE = "unpack tiny-imagenet-200.zip again"
FILE = File(
    "tiny-imagenet-200.zip",
    ("http://cs231n.stanford.edu/tiny-imagenet-200.zip",),
    "md5:90528d7ca1a48142e341f4ef8d21d0de",
    248_100_043,
    contents=("tiny-imagenet-200",),
)


class TinyImagenet(PreparedOptions):
    source = Source("http://cs231n.stanford.edu/", "ImageNet's: non-commercial research and education only", (FILE,))
    name: str = "tinyimagenet"
    """110,000 colour pictures 64x64 in 200 classes, prepared from the JPEG files."""
    classes: Annotated[int, Field(ge=2, le=200)] = 200
    """Take only the first so many classes of wnids.txt (500 training and 50 test images each)."""

    def info(self) -> DataInfo:
        half = (0.5,) * 3
        counts = (TRAIN_PER_CLASS * self.classes, TEST_PER_CLASS * self.classes)
        return DataInfo("image", (3, SIDE, SIDE), self.classes, *counts, mean=half, std=half, crop_padding=4, flip=True)

    def prepare(self, folder: Path, tell: Tell) -> Dataset:
        """Returns images uint8 (N, 64, 64, 3), class after class in the order of wnids.txt; its line numbers a class.

        Within a class, training pictures come in the order of their numbers, test pictures in that of
        val_annotations.txt. Raises DataError for the first picture that is missing, damaged or of another size.
        """
        folder = find(folder, "wnids.txt", "the pictures (tiny-imagenet-200)").parent
        classes = _read_classes(folder / "wnids.txt", self.classes)
        numbered = [(name, f"{name}_{number}.JPEG") for name in classes for number in range(TRAIN_PER_CLASS)]
        train = [folder / "train" / name / "images" / picture for name, picture in numbered]
        paths = [*train, *_test_pictures(folder / "val", classes)]
        images = np.empty((len(paths), SIDE, SIDE, 3), np.uint8)
        for done, path in enumerate(paths):
            images[done] = pictures.decode(path, ("JPEG",), ADVICE, (SIDE, SIDE))
            tell(done + 1, len(paths))
        labels = np.arange(len(classes))
        train_y, test_y = np.repeat(labels, TRAIN_PER_CLASS), np.repeat(labels, TEST_PER_CLASS)
        return Dataset(images[: len(train)], train_y, images[len(train) :], test_y)


def _read_classes(path: Path, num_classes: int) -> list[str]:
    """Returns the first names of wnids.txt, such as n02124075."""
    names = read_text(path).splitlines()
    if len(set(names)) < len(names) or "" in names:
        raise DataError(str(path), f"expected a line like n02124075 for each class, all different; {ADVICE}")
    if len(names) < num_classes:
        found = f"lists {len(names)} classes, data.classes asks for {num_classes}"
        raise DataError(str(path), f"{found}; set data.classes={len(names)}, or take all files")
    return names[:num_classes]


def _test_pictures(folder: Path, classes: list[str]) -> list[Path]:
    """Returns the pictures of these classes, class after class; a line of val_annotations.txt is name, class, box."""
    path = folder / "val_annotations.txt"
    pictures_of: dict[str, list[Path]] = {name: [] for name in classes}
    for line in read_text(path).splitlines():
        picture, name = [*line.split("\t"), ""][:2]
        if name in pictures_of:
            pictures_of[name].append(folder / "images" / picture)
    for name, paths in pictures_of.items():
        if len(set(paths)) != TEST_PER_CLASS or len(paths) != TEST_PER_CLASS:
            found = f"{len(set(paths))} different pictures in {counted(len(paths), 'line')}"
            raise DataError(str(path), f"class {name} has {found}, expected {TEST_PER_CLASS}; {ADVICE}")
    return [path for paths in pictures_of.values() for path in paths]
