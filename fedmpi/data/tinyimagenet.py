"""Tiny ImageNet: the folder tiny-imagenet-200 as distributed, decoded picture by picture.

Source: http://cs231n.stanford.edu/tiny-imagenet-200.zip. The validation pictures are the test part
here: those of test/ have no labels. Which bits a JPEG decodes to depends a little on the library.
"""

from __future__ import annotations

import warnings
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from fedmpi.data.budget import Budget, guarded
from fedmpi.data.dataset import Dataset
from fedmpi.data.image_options import TinyImagenet
from fedmpi.data.tell import Tell
from fedmpi.errors import DataError

SIDE, TRAIN_PER_CLASS, TEST_PER_CLASS = 64, 500, 50
MAX_PICTURE_BYTES, MAX_LIST_BYTES = 2**20, 2**24  # the largest picture has some 10 KB, val_annotations.txt 0.5 MB
ADVICE = "unpack tiny-imagenet-200.zip again"


def prepare(options: TinyImagenet, folder: Path, tell: Tell) -> Dataset:
    """Images uint8 (N, 64, 64, 3), class after class in the order of wnids.txt; a class's number is its line there.

    Within a class, training pictures come in the order of their numbers, test pictures in that of
    val_annotations.txt. Raises DataError for the first picture that is missing, damaged or of another size.
    """
    folder = _find(folder)
    classes = _read_classes(folder / "wnids.txt", options.classes)
    train = [path for name in classes for path in _train_pictures(folder / "train" / name / "images", name)]
    test = _test_pictures(folder / "val", classes)
    pictures = [*train, *test]
    images = np.empty((len(pictures), SIDE, SIDE, 3), np.uint8)
    for done, path in enumerate(pictures):
        images[done] = _decode(path)
        tell(done + 1, len(pictures))
    labels = np.arange(len(classes))
    train_y, test_y = np.repeat(labels, TRAIN_PER_CLASS), np.repeat(labels, TEST_PER_CLASS)
    return Dataset(images[: len(train)], train_y, images[len(train) :], test_y)


def _find(folder: Path) -> Path:
    for place in (folder / "tiny-imagenet-200", folder):
        if (place / "wnids.txt").is_file():
            return place
    raise DataError(str(folder), f"neither tiny-imagenet-200/wnids.txt nor wnids.txt is there; {ADVICE}")


def _read_classes(path: Path, num_classes: int) -> list[str]:
    """The first names of wnids.txt, such as n02124075."""
    names = _read_lines(path)
    odd = [name for name in names if not (name.isascii() and name.isalnum())]
    if odd or len(set(names)) < len(names):
        problem = f"{odd[0][:40]!r} is no class" if odd else "a class is there twice"
        raise DataError(str(path), f"{problem}, expected a line like n02124075 for each; {ADVICE}")
    if len(names) < num_classes:
        found = f"lists {len(names)} classes, data.classes asks for {num_classes}"
        raise DataError(str(path), f"{found}; set data.classes={len(names)}, or take all files")
    return names[:num_classes]


def _train_pictures(folder: Path, name: str) -> list[Path]:
    pictures = [folder / f"{name}_{number}.JPEG" for number in range(TRAIN_PER_CLASS)]
    there = {path.name for path in folder.glob("*.JPEG")}
    _refuse_missing(folder, [path.name for path in pictures if path.name not in there])
    return pictures


def _test_pictures(folder: Path, classes: list[str]) -> list[Path]:
    """The pictures of these classes, class after class; a line of val_annotations.txt is name, class and a box."""
    path = folder / "val_annotations.txt"
    pictures: dict[str, list[Path]] = {name: [] for name in classes}
    for line in _read_lines(path):
        picture, name = [*line.split("\t"), ""][:2]
        if Path(picture).name != picture or not name:
            raise DataError(str(path), f"has the line {line[:60]!r}, expected a file name and a class; {ADVICE}")
        if name in pictures:
            pictures[name].append(folder / "images" / picture)
    for name, paths in pictures.items():
        if len(set(paths)) != TEST_PER_CLASS or len(paths) != TEST_PER_CLASS:
            found = f"{len(set(paths))} different pictures in {len(paths)} lines"
            raise DataError(str(path), f"class {name} has {found}, expected {TEST_PER_CLASS}; {ADVICE}")
    there = {path.name for path in (folder / "images").glob("*.JPEG")}
    listed = [path for paths in pictures.values() for path in paths]
    _refuse_missing(folder / "images", [path.name for path in listed if path.name not in there])
    return listed


def _refuse_missing(folder: Path, missing: list[str]) -> None:
    if missing:
        raise DataError(str(folder), f"{len(missing)} picture(s) missing, the first is {missing[0]}; {ADVICE}")


def _read_lines(path: Path) -> list[str]:
    with guarded(path, ADVICE, "cannot be read"):
        return Budget(path).read(path, MAX_LIST_BYTES).decode("ascii").splitlines()


def _decode(path: Path) -> NDArray[np.uint8]:
    """uint8 (64, 64, 3); a grey picture gets three equal channels."""
    with (
        guarded(path, ADVICE, "is no such picture or damaged"),
        warnings.catch_warnings(),
        Budget(path).opened(path, MAX_PICTURE_BYTES) as file,
    ):
        # Pillow warns of much that is no matter: large pictures, which are refused here, and odd camera notes.
        warnings.simplefilter("ignore")
        try:
            picture = Image.open(file, formats=["JPEG"])
        except Image.DecompressionBombError as error:
            raise ValueError(str(error)) from error
        if picture.size != (SIDE, SIDE):
            raise ValueError(f"{picture.width}x{picture.height} pixels, expected {SIDE}x{SIDE}")
        return np.asarray(picture.convert("RGB"))
