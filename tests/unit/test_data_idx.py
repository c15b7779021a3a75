"""MNIST, QMNIST and EMNIST out of idx files: the real ones, small ones of our own, and hostile ones."""

import gzip
from pathlib import Path

import numpy as np
import pytest
from data_fixtures import SHARED_DATA, idx_bytes, refusal
from golden_file import Told

from fedmpi.data.dataset import load_data
from fedmpi.data.sets import mnist
from fedmpi.data.sets.mnist import SPLITS, Emnist, Mnist, Qmnist

REAL = SHARED_DATA / "mnist"
needs_real_files = pytest.mark.skipif(not REAL.is_dir(), reason=f"real MNIST and QMNIST labels need {REAL}")


@needs_real_files
def test_mnist_constants_are_the_data_s_own() -> None:
    info, ours = Mnist().info(), load_data(Mnist(root=str(REAL / "MNIST" / "raw")))
    values, counts = np.arange(256) / 255, np.bincount(ours.train_x.reshape(-1), minlength=256)
    mean = np.average(values, weights=counts)
    assert abs(mean - info.mean[0]) < 5e-5
    assert abs(np.sqrt(np.average((values - mean) ** 2, weights=counts)) - info.std[0]) < 5e-5
    assert np.bincount(ours.test_y).tolist() == [980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009]
    # The first image's ink: no other order of rows and columns has this one.
    assert ours.train_x[0, 5, 12:18, 0].tolist() == [3, 18, 18, 18, 126, 136]
    assert ours.train_x.flags.writeable


TRAIN_WRITERS, TEST_WRITERS = (30, 7, 30, 12), (99, 3)


@pytest.fixture
def small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """MNIST with 4 and 2 images, QMNIST labels with 5 rows (test labels continue beyond MNIST's images)."""
    contents = {
        "train-images-idx3-ubyte": (np.arange(4 * 28 * 28) % 251).astype(np.uint8).reshape(4, 28, 28),
        "train-labels-idx1-ubyte": np.array([1, 0, 9, 3], np.uint8),
        "t10k-images-idx3-ubyte": np.full((2, 28, 28), 7, np.uint8),
        "t10k-labels-idx1-ubyte": np.array([4, 4], np.uint8),
        "qmnist-train-labels-idx2-int": table([1, 0, 9, 3, 5], [*TRAIN_WRITERS, 400]),
        "qmnist-test-labels-idx2-int": table([4, 4, 0, 0, 0], [*TEST_WRITERS, 7, 7, 7]),
    }
    for name, size in (("NUM_TRAIN", 4), ("NUM_TEST", 2), ("ROWS", 5)):
        monkeypatch.setattr(mnist, name, size)
    for name, array in contents.items():
        folder = tmp_path / ("QMNIST" if name.startswith("q") else "MNIST") / "raw"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{name}.gz").write_bytes(gzip.compress(idx_bytes(array), 1))
    return tmp_path


def table(classes: list[int], writers: list[int]) -> np.ndarray:
    rows = np.zeros((len(classes), 8), np.int32)
    rows[:, 0], rows[:, 2] = classes, writers
    return rows


def test_writers_are_numbered_in_the_order_of_their_nist_numbers(small: Path) -> None:
    """Writers 7, 12, 30 train: 0, 1, 2. Writers 3, 99 test: 3, 4, though 3 is the smallest number of all."""
    ours = Qmnist(root=str(small)).read()
    assert (ours.groups.tolist(), ours.test_groups.tolist()) == ([2, 0, 2, 1], [4, 3])
    assert ours.groups.dtype == np.int64
    assert ours.train_x.shape == (4, 28, 28, 1) and ours.train_x[1, 2, 3, 0] == (784 + 2 * 28 + 3) % 251
    assert ours.train_y.tolist() == [1, 0, 9, 3] and ours.test_y.dtype == np.int64


def test_files_are_found_flat_and_unpacked(small: Path) -> None:
    expected = Mnist(root=str(small)).read()
    for path in list(small.glob("MNIST/raw/*.gz")):
        (small / path.stem).write_bytes(gzip.decompress(path.read_bytes()))
        path.unlink()
    flat = Mnist(root=str(small)).read()
    assert np.array_equal(flat.train_x, expected.train_x) and np.array_equal(flat.test_y, expected.test_y)


def test_label_files_that_do_not_belong_to_the_images_are_refused(small: Path, told: Told) -> None:
    path = small / "QMNIST" / "raw" / "qmnist-train-labels-idx2-int.gz"
    path.write_bytes(gzip.compress(idx_bytes(table([1, 0, 9, 4, 5], [1, 2, 3, 4, 5]))))
    line = refusal(lambda: Qmnist(root=str(small)).read())
    assert str(path) in line
    told(line)


def write_emnist(folder: Path, split: str, labels: list[int]) -> np.ndarray:
    """A training part of these labels and the same test part; returns the images as they should be read."""
    generator = np.random.default_rng(0)
    images = generator.integers(0, 256, (len(labels), 28, 28), dtype=np.uint8)
    folder.mkdir(parents=True)
    for part in ("train", "test"):
        stored = np.ascontiguousarray(images.transpose(0, 2, 1))
        for kind, array in (("images-idx3", stored), ("labels-idx1", np.array(labels, np.uint8))):
            path = folder / f"emnist-{split}-{part}-{kind}-ubyte.gz"
            path.write_bytes(gzip.compress(idx_bytes(array), 1))
    return images


@pytest.mark.parametrize("folder", ["EMNIST/raw/gzip", "."])
def test_emnist_is_turned_upright_and_letters_count_from_0(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, folder: str
) -> None:
    monkeypatch.setitem(SPLITS, "letters", (26, 3, 3))
    images = write_emnist(tmp_path / "root" / folder, "letters", [1, 26, 13])
    ours = load_data(Emnist(root=str(tmp_path / "root"), split="letters"))
    assert np.array_equal(ours.train_x[..., 0], images) and np.array_equal(ours.test_x[..., 0], images)
    assert ours.train_y.tolist() == [0, 25, 12] and ours.groups is None and ours.train_x.flags.c_contiguous


GOOD = idx_bytes(np.arange(6, dtype=np.int32).reshape(2, 3) - 1)

HOSTILE = {
    "other type": (b"\0\0\x08\2" + GOOD[4:], "an idx file of int32 (2, 3)"),
    "lengths that lie": (GOOD[:4] + b"\xff" * 8 + GOOD[12:], "does not begin as an idx file of int32 (2, 3)"),
    "cut off": (GOOD[:-1], "damaged or cut off"),
    "too long": (GOOD + b"\0", "damaged or cut off"),
}


@pytest.mark.parametrize("case", HOSTILE)
@pytest.mark.parametrize("packed", [True, False])
def test_hostile_file_is_one_line(tmp_path: Path, case: str, packed: bool) -> None:
    path, (content, problem) = tmp_path / ("a.gz" if packed else "a"), HOSTILE[case]
    path.write_bytes(gzip.compress(content) if packed else content)
    options = Mnist(root=str(tmp_path))
    line = refusal(lambda: options.array("a", "int32", (2, 3)))
    assert line.startswith(f"{path}: ") and problem in line and line.endswith(options.how_to_fetch("--force"))
