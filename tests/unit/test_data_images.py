"""Reading data sets: real CIFAR-10 against torchvision, files in CIFAR-100's format, digits, and what is refused."""

import hashlib
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from data_fixtures import refusal, write_cifar100

from fedmpi.data.dataset import load_data
from fedmpi.data.sets import digits
from fedmpi.data.sets.cifar import Cifar10, Cifar100
from fedmpi.data.sets.digits import Digits


@pytest.mark.slow
def test_cifar10_is_what_torchvision_reads_and_its_constants_are_the_data_s_own(cifar10_root: str) -> None:
    """The mean of train pixels / 255 per channel is the table's, to its 4 digits; 5,000 and 1,000 of each class."""
    torchvision_datasets = pytest.importorskip("torchvision.datasets")
    info, ours = Cifar10().info(), load_data(Cifar10(root=f"{cifar10_root}/cifar-10-batches-py"))
    train = torchvision_datasets.CIFAR10(cifar10_root, train=True)
    test = torchvision_datasets.CIFAR10(cifar10_root, train=False)
    assert np.array_equal(ours.train_x, train.data) and np.array_equal(ours.test_x, test.data)
    assert ours.train_y.tolist() == train.targets and ours.test_y.tolist() == test.targets
    # The distributed file's known beginning: a frog, then a truck.
    assert ours.train_y[:2].tolist() == [6, 9] and ours.train_x[0, 0, 0].tolist() == [59, 62, 63]
    mean = ours.train_x.reshape(-1, 3).sum(axis=0, dtype=np.int64) / (255 * 50_000 * 1024)
    assert np.abs(mean - info.mean).max() < 1e-4
    assert set(np.bincount(ours.train_y)) == {5000} and set(np.bincount(ours.test_y)) == {1000}


@pytest.fixture
def small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with 5 + 3 images in CIFAR-100's files, whose checksums stand for the published ones."""
    md5s = write_cifar100(tmp_path / "cifar-100-python", 5, 3)
    for name in ("train", "test"):
        monkeypatch.setattr(Cifar100, name, {name: md5s[name]})
    return tmp_path


@pytest.mark.parametrize("damage", ["truncated", "flipped bit", "empty", "missing"])
def test_damaged_file(small: Path, damage: str) -> None:
    path = small / "cifar-100-python" / "test"
    raw = bytearray(path.read_bytes())
    raw[len(raw) // 2] ^= 1
    path.write_bytes({"truncated": raw[:-1000], "flipped bit": raw}.get(damage, b""))
    if damage == "missing":
        path.unlink()
    line = refusal(Cifar100(root=str(small)).read)
    assert str(path) in line and f"fetch cifar100 data.root={small} --force`" in line
    assert ("No such file" if damage == "missing" else f"expected {Cifar100.test['test']}") in line


@pytest.mark.slow
def test_digits_are_scikit_learn_s() -> None:
    """Every image v of 0..16 became floor(v * 255 / 16 + 1/2); the parts hold all 1,797 once; the table's constants."""
    source = pytest.importorskip("sklearn.datasets").load_digits()
    ours, (train, test) = load_data(Digits()), digits.split()
    assert sorted([*train, *test]) == list(range(1797)) and (len(train), len(test)) == (1437, 360)
    scaled = np.floor(source.images * 255 / 16 + 0.5)[..., None]
    assert np.array_equal(ours.train_x, scaled[train]) and np.array_equal(ours.test_x, scaled[test])
    assert np.array_equal(ours.train_y, source.target[train]) and np.array_equal(ours.test_y, source.target[test])
    assert ours.train_x.max() == 255 and ours.train_x.dtype == np.uint8
    pixels, info = ours.train_x / 255, Digits().info()
    assert abs(pixels.mean() - info.mean[0]) < 1e-4 and abs(pixels.std() - info.std[0]) < 1e-4
    assert not info.flip


def test_digits_split_is_fixed() -> None:
    """Positions in the order of their 8-byte BLAKE2b hashes, top bit dropped to leave a signed 64-bit number:
    any machine, numpy and seed has the same, and it may never change."""
    hashes = [hashlib.blake2b(f"digits-split:{i}".encode(), digest_size=8).digest() for i in range(1797)]
    order = sorted(range(1797), key=lambda i: int.from_bytes(hashes[i], "little") >> 1)
    assert np.concatenate(digits.split()).tolist() == order
    assert order[:5] == [1037, 753, 1174, 869, 923]


def test_digits_need_neither_torch_nor_sklearn_to_load() -> None:
    code = "import sys; from fedmpi.data.sets.digits import Digits; Digits().read(); "
    code += "assert not {'torch', 'sklearn'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=600)
