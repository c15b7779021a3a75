"""HDF5 files with a digest of their bytes: checkpoints, client memories, partitions and prepared data.

A line in the user block, which `h5dump` and h5py skip, stands before the HDF5 data:

    fedmpi <kind> format <n> bytes <after the user block> blake2b <hex>

The digest is of the line before it and of all that follows the user block. It is checked before libhdf5 sees the file,
because libhdf5 may end the process on a damaged one. Equal contents give equal bytes: no times are stored.
"""

import hashlib
import io
import json
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO
from urllib.parse import quote, unquote

import h5py
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedmpi.errors import RunDirError, reason
from fedmpi.store.files import DIGEST_BYTES, open_file

FORMAT = 3
USER_BLOCK_BYTES = 512
_HEADER = re.compile(rb"(fedmpi ([a-z]+ format \d{1,9}) bytes \d{1,18})")
_CHUNK_BYTES = 2**20
# Types that numpy lacks are stored as the bits of another one; its booleans are no numbers in HDF5.
_AS_BITS = {torch.bfloat16: torch.int16, torch.bool: torch.uint8}

Attributes = Mapping[str, "str | int"]
Arrays = Mapping[str, NDArray[Any]]


def pack(kind: str, attributes: Attributes, arrays: Arrays) -> memoryview:
    """Returns the bytes of a file of this `kind`. A name like `server/conv.weight` puts the array into a group."""
    file = io.BytesIO()
    with h5py.File(file, "w", libver="latest", userblock_size=USER_BLOCK_BYTES) as hdf5:
        for name, value in attributes.items():
            hdf5.attrs[name] = np.bytes_(value.encode()) if isinstance(value, str) else np.int64(value)
        for name, array in arrays.items():
            group, _, leaf = name.rpartition("/")
            # Groups keep their order: sums over tensors must not meet them in another one after a resume.
            if group and group not in hdf5:
                hdf5.create_group(group, track_order=True)
            (hdf5[group] if group else hdf5).create_dataset(leaf, data=array, track_times=False)
    num_bytes = file.seek(0, os.SEEK_END) - USER_BLOCK_BYTES
    header = _user_block(f"fedmpi {kind} format {FORMAT} bytes {num_bytes}".encode(), file)
    file.seek(0)
    file.write(header)
    return file.getbuffer()


def read(path: Path, kind: str, within: str | None = "") -> tuple[dict[str, str | int], dict[str, NDArray[Any]]]:
    """Reads the attributes, and the arrays: only of the group `within` if given; none for None. They may be written to.
    Raises RunDirError. O(size of the file).
    """
    try:
        with open(open_file(path), "rb") as file:
            if problem := _problem(file, kind):
                raise RunDirError(str(path), problem)
            with h5py.File(file, "r") as hdf5:
                attributes: dict[str, str | int] = {}
                for name, value in hdf5.attrs.items():
                    attributes[name] = value.decode() if isinstance(value, bytes) else int(value)
                return attributes, {} if within is None else _arrays(hdf5[within or "/"])
    except (OSError, ValueError, KeyError, RuntimeError) as error:
        raise RunDirError(str(path), f"cannot be read: {reason(error)}") from error


def _arrays(group: h5py.Group) -> dict[str, NDArray[Any]]:
    """Reads all arrays below a group, in their order; `server/conv.weight` is one of a group in it."""
    arrays: dict[str, NDArray[Any]] = {}
    for name, item in group.items():
        if isinstance(item, h5py.Group):
            arrays.update({f"{name}/{inner}": array for inner, array in _arrays(item).items()})
        else:
            arrays[name] = np.asarray(item[()])
    return arrays


def _problem(file: BinaryIO, kind: str) -> str:
    """Returns why the file is not a whole one of this `kind`, '' if it is."""
    user_block = file.read(USER_BLOCK_BYTES)
    found = _HEADER.match(user_block)
    if found is None:
        return "was not written by fedmpi, or its first bytes are damaged"
    if found[2] != f"{kind} format {FORMAT}".encode():
        return f"is a file of {found[2].decode()}, expected one of {kind} format {FORMAT}"
    return "" if user_block == _user_block(found[1], file) else "is damaged: its digest does not match its bytes"


def _user_block(signed: bytes, file: BinaryIO | io.BytesIO) -> bytes:
    """Returns the line in front, with the digest of `signed` and of all that follows the user block."""
    state = hashlib.blake2b(signed, digest_size=DIGEST_BYTES)
    file.seek(USER_BLOCK_BYTES)
    while chunk := file.read(_CHUNK_BYTES):
        state.update(chunk)
    line = b"%s blake2b %s\n" % (signed, state.hexdigest().encode())
    return line.ljust(USER_BLOCK_BYTES, b"\0")


def pack_tensors(kind: str, attributes: Attributes, groups: Mapping[str, Mapping[str, Tensor]]) -> memoryview:
    """Returns the bytes of a file of this `kind`."""
    arrays: dict[str, NDArray[Any]] = {}
    dtypes: dict[str, str] = {}
    digests: dict[str, str] = {}
    for group, tensors in groups.items():
        digests[f"{group}_digest"] = digest_of(tensors)
        for name, tensor in tensors.items():
            path = f"{group}/{quote(name, safe='')}"
            arrays[path] = _to_array(tensor)
            if tensor.dtype in _AS_BITS:
                dtypes[path] = _dtype_name(tensor)
    return pack(kind, {**attributes, **digests, "torch_dtypes": json.dumps(dtypes)}, arrays)


def read_tensors(path: Path, kind: str) -> tuple[dict[str, str | int], dict[str, dict[str, Tensor]]]:
    """Reads the attributes, and the tensors by group; a group without tensors is absent. Raises RunDirError."""
    attributes, arrays = read(path, kind)
    dtypes = json.loads(str(attributes["torch_dtypes"]))
    groups: dict[str, dict[str, Tensor]] = {}
    for name, array in arrays.items():
        group, _, quoted = name.partition("/")
        tensor = torch.from_numpy(array)
        if name in dtypes:
            tensor = tensor.view(getattr(torch, dtypes[name]))
        groups.setdefault(group, {})[unquote(quoted)] = tensor
    return attributes, groups


def digest_of(tensors: Mapping[str, Tensor]) -> str:
    """Returns BLAKE2b (128 bits, hex) of names, dtypes, shapes and C-ordered bytes, in the order of the names, on any
    device and in any memory layout.
    """
    state = hashlib.blake2b(digest_size=DIGEST_BYTES)
    for name in sorted(tensors):
        tensor = tensors[name]
        state.update(repr((name, _dtype_name(tensor), tuple(tensor.shape))).encode())
        state.update(_to_array(tensor).data)
    return state.hexdigest()


def _dtype_name(tensor: Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")


def _to_array(tensor: Tensor) -> np.ndarray:
    """Returns the tensor's numbers (bits for bfloat16 and bool), C-contiguous, on the CPU."""
    plain = tensor.detach().cpu().contiguous()
    return plain.view(_AS_BITS.get(plain.dtype, plain.dtype)).numpy()
