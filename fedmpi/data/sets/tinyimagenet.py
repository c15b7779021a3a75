"""Tiny ImageNet, of Stanford's CS231n: the folder tiny-imagenet-200 as distributed, decoded picture by picture.

The validation pictures are the test part here: those of test/ have no labels. Normalization and crops are FedHM's.
"""

from pathlib import Path
from typing import Annotated

import numpy as np
from pydantic import Field

from fedmpi.data.dataset import DataInfo, Dataset
from fedmpi.data.files import PreparedOptions, find, read_text
from fedmpi.data.sets.steps import decode
from fedmpi.errors import DataError

SIDE, TRAIN_PER_CLASS, TEST_PER_CLASS = 64, 500, 50
ADVICE = "unpack tiny-imagenet-200.zip again"


class TinyImagenet(PreparedOptions):
    downloads = ("tiny-imagenet-200.zip",)
    name: str = "tinyimagenet"
    """110,000 colour pictures 64x64 in 200 classes, prepared from the JPEG files."""
    classes: Annotated[int, Field(ge=2, le=200)] = 200
    """Take only the first so many classes of wnids.txt (500 training and 50 test images each)."""

    def info(self) -> DataInfo:
        half = (0.5,) * 3
        counts = (TRAIN_PER_CLASS * self.classes, TEST_PER_CLASS * self.classes)
        return DataInfo("image", (3, SIDE, SIDE), self.classes, *counts, mean=half, std=half, crop_padding=4, flip=True)

    def prepare(self, folder: Path) -> Dataset:
        """Returns images uint8 (N, 64, 64, 3), class after class as in wnids.txt, training pictures by number, test
        pictures as in val_annotations.txt. Raises DataError."""
        folder = find(folder, "wnids.txt", "the pictures (tiny-imagenet-200)").parent
        classes = read_text(folder / "wnids.txt").splitlines()[: self.classes]
        if len(set(classes)) != self.classes:
            found = f"lists {len(set(classes))} classes, data.classes asks for {self.classes}"
            raise DataError(str(folder / "wnids.txt"), f"{found}; {ADVICE}")
        train = []
        for name in classes:
            train += [folder / "train" / name / "images" / f"{name}_{i}.JPEG" for i in range(TRAIN_PER_CLASS)]
        images, _ = decode(train, ADVICE, (SIDE, SIDE))
        test_images, _ = decode(_test_pictures(folder / "val", classes), ADVICE, (SIDE, SIDE))
        numbers = np.arange(len(classes))
        return Dataset(images, numbers.repeat(TRAIN_PER_CLASS), test_images, numbers.repeat(TEST_PER_CLASS))


def _test_pictures(folder: Path, classes: list[str]) -> list[Path]:
    """Returns the pictures of these classes, class after class; a line of val_annotations.txt is name, class, box."""
    path = folder / "val_annotations.txt"
    lines = [line.split("\t") for line in read_text(path).splitlines()]
    pictures = []
    for name in classes:
        own = [folder / "images" / line[0] for line in lines if line[1:2] == [name]]
        if len(set(own)) != TEST_PER_CLASS or len(own) != TEST_PER_CLASS:
            raise DataError(str(path), f"class {name} has {len(own)} pictures, expected {TEST_PER_CLASS}; {ADVICE}")
        pictures += own
    return pictures
