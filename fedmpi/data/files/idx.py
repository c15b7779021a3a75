"""The idx format of MNIST and its relatives, packed by gzip or not.

A file is two zero bytes, a byte for the type, one for the number of axes, the length of each axis
(4 bytes, big-endian), and the values, big-endian. Source: http://yann.lecun.com/exdb/mnist/.
"""

from __future__ import annotations

import gzip
import hashlib
import math
import struct
from collections.abc import Mapping
from io import BufferedIOBase
from pathlib import Path
from typing import Any, BinaryIO, cast

import numpy as np
from numpy.typing import NDArray

from fedmpi.data.files.budget import CRAFTED, reason
from fedmpi.data.files.folders import below_home
from fedmpi.data.files.source import get_again
from fedmpi.errors import DataError

TYPES: dict[int, np.dtype[Any]] = {8: np.dtype("u1"), 12: np.dtype(">i4")}


def read(path: Path, dtype: str, shape: tuple[int, ...], advice: str) -> NDArray[Any]:
    """The array in `path`, if it is of this dtype ("uint8" or "int32") and shape.

    The header is compared with `shape` before anything is read, so that a crafted one costs no
    memory. Raises DataError, which ends with `advice`.
    """
    try:
        with _open(path) as file:
            return _values(file, np.dtype(dtype), shape)
    except ValueError as error:
        raise DataError(str(path), f"{error}; {advice}") from error
    except CRAFTED as error:
        problem = "damaged or cut off" if path.suffix == ".gz" else "cannot be read"
        raise DataError(str(path), f"{problem} ({reason(error)}); {advice}") from error


class Files:
    """The files of one data set, in the folders where they may lie, packed or unpacked.

    `md5s` has those of a file packed, and unpacked, for the files that have published ones.
    """

    def __init__(self, name: str, root: str, folders: tuple[str, ...], md5s: Mapping[str, tuple[str, str]]) -> None:
        base = below_home(root)
        self.where, self.md5s = f"data.root={root}", md5s
        self.folders = [*(base / folder for folder in folders), base]
        self.missing, self.damaged = get_again(name, root), get_again(name, root, "--force")

    def read(self, name: str, dtype: str, shape: tuple[int, ...]) -> NDArray[Any]:
        """The file's array. Raises DataError if it is missing, damaged, or of another type or shape."""
        path = self.find(name)
        if name in self.md5s:
            packed, unpacked = self.md5s[name]
            check_md5(path, packed if path.suffix == ".gz" else unpacked, self.damaged)
        return read(path, dtype, shape, self.damaged)

    def find(self, name: str) -> Path:
        for folder in self.folders:
            # torchvision writes t10k-images-idx3-ubyte, some archives t10k-images.idx3-ubyte; packed ones come first.
            for path in (folder / f"{name}.gz", folder / name, folder / name.replace("-idx", ".idx")):
                if path.is_file():
                    return path
        folders = ", ".join(map(str, self.folders))
        raise DataError(self.where, f"neither {name}.gz nor {name} in {folders}; {self.missing}")


def check_md5(path: Path, md5: str, advice: str) -> None:
    """Raises DataError if the file, as it lies there, has another md5."""
    digest, num_bytes = hashlib.md5(usedforsecurity=False), 0
    try:
        with path.open("rb") as file:
            while piece := file.read(2**20):
                digest.update(piece)
                num_bytes += len(piece)
    except OSError as error:
        raise DataError(str(path), f"cannot be read ({error}); {advice}") from error
    if digest.hexdigest() != md5:
        found = f"its {num_bytes:,} bytes have md5 {digest.hexdigest()}, expected {md5}"
        raise DataError(str(path), f"damaged or cut off: {found}; {advice}")


def _open(path: Path) -> BinaryIO:
    return cast(BinaryIO, gzip.open(path, "rb")) if path.suffix == ".gz" else path.open("rb")


def _values(file: BinaryIO, dtype: np.dtype[Any], shape: tuple[int, ...]) -> NDArray[Any]:
    head = file.read(4)
    if len(head) < 4 or head[:2] != b"\0\0" or head[2] not in TYPES:
        raise ValueError(f"is no idx file of 8-bit or 32-bit whole numbers: it begins with {head.hex() or 'nothing'}")
    lengths = file.read(4 * head[3])
    if len(lengths) < 4 * head[3]:
        raise ValueError("is cut off within its header")
    found_type, found_shape = TYPES[head[2]], struct.unpack(f">{head[3]}I", lengths)
    if found_type.newbyteorder("=") != dtype or found_shape != shape:
        found = f"{found_type.newbyteorder('=')} {found_shape[:8]}"
        raise ValueError(f"holds {found}, expected {dtype} {shape}")
    num_bytes = math.prod(shape) * dtype.itemsize
    array = np.empty(shape, found_type)
    num_read = cast(BufferedIOBase, file).readinto(array.reshape(-1).view(np.uint8).data)
    if num_read < num_bytes:
        raise ValueError(f"is cut off: {num_read:,} of the {num_bytes:,} bytes that its header promises")
    if file.read(1):
        raise ValueError(f"goes on after the {num_bytes:,} bytes that its header promises")
    return array.astype(dtype, copy=False)
