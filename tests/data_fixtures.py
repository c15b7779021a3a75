"""Real CIFAR-10 where the shared data lie beside the project, and CIFAR files in the distributed format.

A test that needs `cifar10_root` skips, and says why, where the shared data are absent.
"""

import hashlib
import json
import os
import pickle
import socket
import struct
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from fedmpi import registry
from fedmpi.data.files import FetchedOptions
from fedmpi.errors import UserError

__all__ = ["FETCHED", "RunData", "cifar10_root", "no_network", "run_data", "write_cifar100"]

FETCHED = {name: options for name, options in registry.built_in("data") if issubclass(options, FetchedOptions)}
SHARED_DATA = Path(__file__).resolve().parents[2] / "shared" / "data"
RunData = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run_data(capsys: pytest.CaptureFixture[str]) -> RunData:
    """Runs `fedmpi data` in this process: exit code, stdout, stderr."""

    from fedmpi.data import command as data_command

    def command(*argv: object) -> tuple[int, str, str]:
        code = data_command.main([str(word) for word in argv])
        return code, *capsys.readouterr()

    return command


@pytest.fixture
def no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise AssertionError("opened a socket")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)


@pytest.fixture(scope="session")
def cifar10_root(pytestconfig: pytest.Config) -> str:
    """A folder that holds the real cifar-10-batches-py; restored once per checkout (15 s), then reused."""
    root = pytestconfig.cache.mkdir("cifar10")
    folder = root / "cifar-10-batches-py"
    if not folder.is_dir():
        restore_cifar10(folder)
    return str(root)


def restore_cifar10(folder: Path) -> None:
    script, packed = SHARED_DATA / "restore_cifar.py", SHARED_DATA / "cifar10-packed"
    if not script.is_file() or not packed.is_dir():
        pytest.skip(f"real CIFAR-10 needs {packed} and {script}, or {folder}")
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix="restoring-") as temporary:
        complete = Path(temporary, folder.name)
        subprocess.run([sys.executable, script, packed, complete], check=True, capture_output=True, timeout=300)
        try:
            os.rename(complete, folder)
        except OSError:
            # Another process was first: its folder is as complete as ours, rename being atomic.
            assert folder.is_dir()


def write_cifar100(folder: Path, num_train: int, num_test: int) -> dict[str, str]:
    """Random images in CIFAR-100's files below `folder`, with the entries that are read; returns the md5 of each."""
    generator = np.random.default_rng(0)
    folder.mkdir(parents=True)
    md5s = {}
    for name, count in (("train", num_train), ("test", num_test)):
        labels = [int(label) for label in generator.integers(0, 100, count)]
        images = generator.integers(0, 256, (count, 3072), dtype=np.uint8)
        raw = pickle.dumps({"fine_labels": labels, "data": images}, protocol=2)
        (folder / name).write_bytes(raw)
        md5s[name] = hashlib.md5(raw, usedforsecurity=False).hexdigest()
    return md5s


def write_leaf(path: Path, users: dict[str, dict[str, list[Any]]]) -> None:
    """As LEAF's scripts: one object."""
    path.parent.mkdir(parents=True, exist_ok=True)
    counts = [len(user["y"]) for user in users.values()]
    path.write_text(json.dumps({"users": list(users), "num_samples": counts, "user_data": users}))


def idx_bytes(array: np.ndarray) -> bytes:
    """The array in idx format: uint8 as type 8, int32 as type 12, big-endian."""
    kind = {"uint8": 8, "int32": 12}[array.dtype.name]
    head = struct.pack(f">BBBB{array.ndim}I", 0, 0, kind, array.ndim, *array.shape)
    return head + array.astype(array.dtype.newbyteorder(">")).tobytes()


Writers = dict[str, tuple[np.ndarray, np.ndarray]]


def draw(seed: int, **sizes: int) -> Writers:
    """Bytes (n, 28, 28) and labels of each writer."""
    generator = np.random.default_rng(seed)
    return {
        name: (generator.integers(0, 256, (n, 28, 28)), generator.integers(0, 62, n, dtype=np.int32))
        for name, n in sizes.items()
    }


TRAIN = draw(1, f0002_3=2, f0000_14=3, f0001_41=1, f3999_10=4)
TEST = draw(2, f3999_10=2, f0000_14=1, f0001_41=1, f0002_3=3)
# By name: f0000_14, f0001_41, f0002_3, f3999_10.
GROUPS, TEST_GROUPS = [0, 0, 0, 1, 2, 2, 3, 3, 3, 3], [0, 1, 2, 2, 2, 3, 3]


def tff(folder: Path) -> Path:
    """TensorFlow Federated's files: a group for each writer, float32 pixels."""
    folder.mkdir(parents=True, exist_ok=True)
    for part, writers in (("train", TRAIN), ("test", TEST)):
        with h5py.File(folder / f"fed_emnist_{part}.h5", "w") as file:
            for name, (x, y) in writers.items():
                group = file.create_group(f"examples/{name}")
                group["pixels"], group["label"] = (x / 255).astype(np.float32), y
    return folder


def leaf(folder: Path, train: Writers = TRAIN, test: Writers = TEST) -> Path:
    """LEAF's files, two to train and one to test: numbers of 0..1, 784 a row."""
    names = list(train)
    parts = {"train/0": names[:2], "train/1": names[2:], "test/0": list(test)}
    for path, own in parts.items():
        writers = {name: (test if path == "test/0" else train)[name] for name in own}
        users = {name: {"x": (x.reshape(-1, 784) / 255).tolist(), "y": y.tolist()} for name, (x, y) in writers.items()}
        write_leaf(folder / f"{path}.json", users)
    return folder


def refusal(call: Callable[..., object], *given: Any, **options: Any) -> str:
    """The one line with which this call is refused."""
    with pytest.raises(UserError) as caught:
        call(*given, **options)
    assert caught.value.exit_code == 2 and "\n" not in caught.value.text()
    return caught.value.text()
