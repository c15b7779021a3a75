"""Tiny ImageNet: ten real classes, small folders in the same layout, and damaged ones."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from data_fixtures import refusal
from PIL import Image

from fedmpi.data.dataset import Dataset
from fedmpi.data.sets import tinyimagenet
from fedmpi.data.sets.tinyimagenet import TinyImagenet

CLASSES, NUM_TRAIN, NUM_TEST = ("n02", "n01", "n03"), 12, 2


@pytest.fixture
def small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Three classes; picture number i of class c has the colour (20 c, 10 i, 200), test pictures (20 c, 10 i, 100)."""
    monkeypatch.setattr(tinyimagenet, "TRAIN_PER_CLASS", NUM_TRAIN)
    monkeypatch.setattr(tinyimagenet, "TEST_PER_CLASS", NUM_TEST)
    folder = tmp_path / "tiny-imagenet-200"
    lines = []
    for c, name in enumerate(CLASSES):
        for i in range(NUM_TRAIN):
            paint(folder / "train" / name / "images" / f"{name}_{i}.JPEG", (20 * c, 10 * i, 200))
        for i in range(NUM_TEST):
            picture = f"val_{len(CLASSES) * i + c}.JPEG"
            paint(folder / "val" / "images" / picture, (20 * c, 10 * i, 100))
            lines.append((i, f"{picture}\t{name}\t0\t32\t44\t62"))
    # As distributed, the classes are mixed.
    (folder / "val" / "val_annotations.txt").write_text("".join(f"{line}\n" for _, line in sorted(lines)))
    (folder / "wnids.txt").write_text("".join(f"{name}\n" for name in CLASSES))
    return folder


def paint(path: Path, colour: tuple[int, ...] | int, size: tuple[int, int] = (64, 64), mode: str = "RGB") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new(mode, size, colour).save(path, "JPEG", quality=95)


def prepare(folder: Path, classes: int = 3) -> Dataset:
    return TinyImagenet(classes=classes).prepare(folder)


def assert_colours(images: np.ndarray, expected: list[tuple[int, int, int]]) -> None:
    """JPEG keeps a plain colour to within 2 of 255."""
    assert np.abs(images.mean(axis=(1, 2)) - expected).max() < 2.5


@pytest.mark.parametrize("given", ["the folder above", "the folder itself"])
def test_labels_follow_wnids_and_pictures_their_numbers(small: Path, given: str) -> None:
    ours = prepare(small if given == "the folder itself" else small.parent)
    assert ours.train_y.tolist() == [0] * 12 + [1] * 12 + [2] * 12 and ours.test_y.tolist() == [0, 0, 1, 1, 2, 2]
    # Picture 10 comes after picture 9, not after picture 1.
    assert_colours(ours.train_x, [(20 * c, 10 * i, 200) for c in range(3) for i in range(12)])
    assert_colours(ours.test_x, [(20 * c, 10 * i, 100) for c in range(3) for i in range(2)])
    assert ours.train_x.dtype == np.uint8 and ours.train_y.dtype == ours.test_y.dtype == np.int64


def refused(folder: Path, classes: int = 3) -> str:
    return refusal(lambda: prepare(folder, classes))


SPOILED: dict[str, tuple[Callable[[Path], object], str]] = {
    "removed": (Path.unlink, "No such file"),
    "cut off": (lambda path: path.write_bytes(path.read_bytes()[:-200]), "damaged"),
    "larger": (lambda path: paint(path, (0, 0, 0), (65, 64)), "65x64 pixels, expected 64x64"),
}


@pytest.mark.parametrize("case", SPOILED)
def test_bad_picture_is_one_line(small: Path, case: str) -> None:
    spoil, problem = SPOILED[case]
    path = small / "train/n01/images/n01_7.JPEG"
    spoil(path)
    line = refused(small)
    assert line.startswith(str(path.parent)) and problem in line and "unpack tiny-imagenet-200.zip again" in line


LINES = "val_0.JPEG\tn02\n"


@pytest.mark.parametrize(
    ("name", "text", "problem"),
    [
        ("wnids.txt", "n02\nn01\n", "lists 2 classes, data.classes asks for 3"),
        ("val/val_annotations.txt", LINES, "class n02 has 1 pictures, expected 2"),
        ("val/val_annotations.txt", LINES * 2, "class n02 has 2 pictures, expected 2"),
    ],
)
def test_bad_list_is_one_line(small: Path, name: str, text: str, problem: str) -> None:
    (small / name).write_bytes(text.encode("latin-1"))
    assert problem in refused(small)
