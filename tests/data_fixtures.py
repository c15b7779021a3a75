"""Real CIFAR-10 where the shared data lie beside the project, and CIFAR files in the distributed format.

A test that needs `cifar10_root` skips, and says why, where the shared data are absent.
"""

from __future__ import annotations

import hashlib
import io
import os
import pickle
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from fedmpi import registry

__all__ = ["SOURCES", "RunData", "cifar10_root", "no_network", "pickle_as_python2", "run_data", "write_cifar100"]

SOURCES = {name: options.source for name, options in registry.built_in("data") if options.source}
SHARED_DATA = Path(__file__).resolve().parents[2] / "shared" / "data"
RunData = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run_data(capsys: pytest.CaptureFixture[str]) -> RunData:
    """Runs `python -m fedmpi.data` in this process: exit code, stdout, stderr."""

    from fedmpi.command import data

    def command(*argv: object) -> tuple[int, str, str]:
        code = data.main([str(word) for word in argv])
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


class Python2Pickler(pickle._Pickler):
    """Writes text and bytes as the `str` of Python 2, as in the distributed files."""

    dispatch = dict(pickle._Pickler.dispatch)

    def save_str2(self, value: bytes | str) -> None:
        raw = value if isinstance(value, bytes) else value.encode("latin1")
        head = pickle.SHORT_BINSTRING + bytes([len(raw)]) if len(raw) < 256 else self.long_head(raw)
        self.write(head + raw)
        self.memoize(value)

    @staticmethod
    def long_head(raw: bytes) -> bytes:
        return pickle.BINSTRING + len(raw).to_bytes(4, "little")

    dispatch[bytes] = save_str2
    dispatch[str] = save_str2


def pickle_as_python2(value: object) -> bytes:
    """Protocol 2 with numpy's old module path: byte for byte the kind of file that Toronto distributes."""
    buffer = io.BytesIO()
    Python2Pickler(buffer, protocol=2).dump(value)
    return buffer.getvalue().replace(b"cnumpy._core.multiarray\n", b"cnumpy.core.multiarray\n")


def write_cifar100(folder: Path, num_train: int, num_test: int, seed: int = 0) -> dict[str, str]:
    """Random images in CIFAR-100's files below `folder`; returns the md5 of each file.

    Entries and types are those of the distributed files: 'filenames', 'batch_label',
    'fine_labels', 'coarse_labels', 'data' uint8 (n, 3072).
    """
    generator = np.random.default_rng(seed)
    contents = {"meta": {"fine_label_names": [f"fine{i}" for i in range(100)], "coarse_label_names": ["x"] * 20}}
    for name, count in (("train", num_train), ("test", num_test)):
        contents[name] = {
            "filenames": [f"{name}_{i}.png" for i in range(count)],
            "batch_label": f"{name}ing batch 1 of 1",
            "fine_labels": [int(label) for label in generator.integers(0, 100, count)],
            "coarse_labels": [int(label) for label in generator.integers(0, 20, count)],
            "data": generator.integers(0, 256, (count, 3072), dtype=np.uint8),
        }
    folder.mkdir(parents=True)
    md5s = {}
    for name, content in contents.items():
        raw = pickle_as_python2(content)
        (folder / name).write_bytes(raw)
        md5s[name] = hashlib.md5(raw, usedforsecurity=False).hexdigest()
    return md5s
