"""The idx format of MNIST and its relatives, packed by gzip or not.

A file is two zero bytes, a byte for the type, one for the number of axes, the length of each axis
(4 bytes, big-endian), and the values, big-endian. Source: http://yann.lecun.com/exdb/mnist/. torchvision's reader
takes no packed files, and fails at a damaged one by an assertion without its name.
"""

from __future__ import annotations

import gzip
import math
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from fedmpi.config.fields import Folder, free
from fedmpi.data.dataset import DataOptions
from fedmpi.data.files import below_home, get_again, guarded, read_checked
from fedmpi.errors import DataError

TYPES = {"uint8": 8, "int32": 12}


class IdxOptions(DataOptions):
    """A data set of idx files, in one of the `folders` below data.root or in data.root itself."""

    folders: ClassVar[tuple[str, ...]]
    md5s: ClassVar[Mapping[str, tuple[str, str]]] = {}
    """The md5 of a file as distributed, packed, and of the same file unpacked; for files that have published ones."""
    root: Folder = free("~/data")
    """The folder that holds MNIST/raw, QMNIST/raw, EMNIST/raw or gzip, or the folder with all files itself."""

    def array(self, name: str, dtype: str, shape: tuple[int, ...]) -> NDArray[Any]:
        """Returns the file's array. Raises DataError if it is missing, damaged, or of another type or shape."""
        path = self.find(name)
        packed, unpacked = self.md5s.get(name, ("", ""))
        return read(path, dtype, shape, self.damaged, packed if path.suffix == ".gz" else unpacked)

    def find(self, name: str) -> Path:
        base = below_home(self.root)
        folders = [*(base / folder for folder in self.folders), base]
        for folder in folders:
            # torchvision writes t10k-images-idx3-ubyte, some archives t10k-images.idx3-ubyte; packed ones come first.
            for path in (folder / f"{name}.gz", folder / name, folder / name.replace("-idx", ".idx")):
                if path.is_file():
                    return path
        places = ", ".join(map(str, folders))
        todo = get_again(self.name, self.root)
        raise DataError(f"data.root={self.root}", f"neither {name}.gz nor {name} in {places}; {todo}")

    @property
    def damaged(self) -> str:
        """What to do about a damaged file."""
        return get_again(self.name, self.root, "--force")


def read(path: Path, dtype: str, shape: tuple[int, ...], advice: str, md5: str = "") -> NDArray[Any]:
    """Reads the array in `path`. Raises DataError unless it is of this dtype ("uint8", "int32"), shape and md5."""
    content = read_checked(path, md5, advice)
    expected = struct.pack(f">BBBB{len(shape)}I", 0, 0, TYPES[dtype], len(shape), *shape)
    with guarded(path, advice):
        if path.suffix == ".gz":
            content = gzip.decompress(content)
        header = content[: len(expected)]
        if header != expected:
            found = f"it begins with {header.hex() or 'nothing'}, expected {expected.hex()}"
            raise ValueError(f"{found}, an idx file of {dtype} {shape}")
        values = content[len(expected) :]
        num_bytes = math.prod(shape) * np.dtype(dtype).itemsize
        if len(values) != num_bytes:
            raise ValueError(f"{len(values):,} of the {num_bytes:,} bytes that its header promises")
        return np.frombuffer(values, np.dtype(dtype).newbyteorder(">")).reshape(shape).astype(dtype)
