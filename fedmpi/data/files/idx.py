"""The idx format of MNIST and its relatives, packed by gzip or not.

A file is two zero bytes, a byte for the type, one for the number of axes, the length of each axis
(4 bytes, big-endian), and the values, big-endian. Source: http://yann.lecun.com/exdb/mnist/.
"""

from __future__ import annotations

import gzip
import math
import struct
from collections.abc import Mapping
from io import BufferedIOBase
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, cast

from fedmpi.config.fields import Folder, free
from fedmpi.data.files.budget import guarded
from fedmpi.data.files.source import below_home, get_again, wrong_checksum
from fedmpi.data.options import DataOptions
from fedmpi.errors import DataError

if TYPE_CHECKING:
    from numpy.typing import NDArray

TYPES = {"uint8": 8, "int32": 12}


class IdxOptions(DataOptions):
    """A data set of idx files, in one of the `folders` below data.root or in data.root itself."""

    folders: ClassVar[tuple[str, ...]]
    md5s: ClassVar[Mapping[str, tuple[str, str]]] = {}
    """The md5 of a file as distributed, packed, and of the same file unpacked; for files that have published ones."""
    root: Folder = free("~/data")
    """The folder that holds MNIST/raw, QMNIST/raw, EMNIST/raw or gzip, or the folder with all files itself."""

    def array(self, name: str, dtype: str, shape: tuple[int, ...]) -> NDArray[Any]:
        """The file's array. Raises DataError if it is missing, damaged, or of another type or shape."""
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
    """The array in `path`, if it is of this dtype ("uint8" or "int32") and shape, and the file of this md5.

    The header is compared with `shape` before anything else is read, so that a crafted one costs no memory. Raises
    DataError, which ends with `advice`.
    """
    import numpy as np

    expected = struct.pack(f">BBBB{len(shape)}I", 0, 0, TYPES[dtype], len(shape), *shape)
    with guarded(path, advice), path.open("rb") as raw:
        if md5 and (problem := wrong_checksum(raw, f"md5:{md5}")):
            raise ValueError(problem)
        file = cast(BufferedIOBase, gzip.GzipFile(fileobj=raw) if path.suffix == ".gz" else raw)
        header = file.read(len(expected))
        if header != expected:
            found = f"it begins with {header.hex() or 'nothing'}, expected {expected.hex()}"
            raise ValueError(f"{found}, an idx file of {dtype} {shape}")
        num_bytes = math.prod(shape) * np.dtype(dtype).itemsize
        array = np.empty(shape, np.dtype(dtype).newbyteorder(">"))
        num_read = file.readinto(array.reshape(-1).view(np.uint8).data)
        if num_read < num_bytes or file.read(1):
            found = f"{num_read:,}" if num_read < num_bytes else "more"
            raise ValueError(f"{found} of the {num_bytes:,} bytes that its header promises")
        return array.astype(dtype, copy=False)
