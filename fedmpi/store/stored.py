"""Tensors as plain arrays of numbers with a name for their torch dtype, and the digest of a set of them."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from urllib.parse import quote, unquote

import numpy as np
import torch
from torch import Tensor

from fedmpi.disk.plain import DIGEST_BYTES

Params = Mapping[str, Tensor]

_PLAIN = ("float16", "float32", "float64", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")
# What numpy or HDF5 has no number for travels as the bits of one that they have.
_AS_BITS = {"bfloat16": "int16", "bool": "uint8", "float8_e4m3fn": "uint8", "float8_e5m2": "uint8"}
_AS_PAIRS = {"complex64": "float32", "complex128": "float64"}
_STORED_AS = {**{name: name for name in _PLAIN if hasattr(torch, name)}, **_AS_BITS, **_AS_PAIRS}
# Everything printable but the slash, which would open an HDF5 group, and the escape sign itself.
_KEPT = " !\"#$&'()*+,-.:;<=>?@[\\]^_`{|}~"


def dtype_name(tensor: Tensor) -> str:
    """`bfloat16` for torch.bfloat16. Raises TypeError for what cannot be stored."""
    name = str(tensor.dtype).removeprefix("torch.")
    if name not in _STORED_AS or tensor.layout is not torch.strided:
        raise TypeError(f"tensors of dtype {tensor.dtype} and layout {tensor.layout} cannot be saved")
    return name


def to_array(tensor: Tensor) -> np.ndarray:
    """The tensor's numbers (bits for bfloat16, bool, float8; pairs for complex), C-contiguous, on the CPU."""
    name = dtype_name(tensor)
    plain = tensor.detach().resolve_conj().cpu().contiguous()
    if name in _AS_PAIRS:
        return torch.view_as_real(plain).numpy()
    if name in _AS_BITS:
        return plain.view(getattr(torch, _AS_BITS[name])).numpy()
    return plain.numpy()


def from_array(array: np.ndarray, name: str) -> Tensor:
    """The tensor of dtype `name` that `to_array` made `array` of. Raises ValueError if it cannot have been."""
    if _STORED_AS.get(name) != array.dtype.name or not array.dtype.isnative:
        raise ValueError(f"an array of {array.dtype} does not hold {name[:40]!r}")
    plain = torch.from_numpy(array)
    if name in _AS_PAIRS:
        return torch.complex(plain[..., 0], plain[..., 1])  # view_as_complex refuses empty ones
    return plain.view(getattr(torch, name))


def digest_of(tensors: Params) -> str:
    """BLAKE2b (128 bits, hex) of names, dtypes, shapes and C-ordered bytes, in the order of the names.

    Equal for equal states whatever the order of the mapping, the device or the memory layout.
    """
    state = hashlib.blake2b(digest_size=DIGEST_BYTES)
    for name in sorted(tensors):
        tensor = tensors[name]
        state.update(repr((name, dtype_name(tensor), tuple(tensor.shape))).encode())
        state.update(to_array(tensor).data)
    return state.hexdigest()


def escape(name: str) -> str:
    """`name` as one HDF5 link name: dots stay, slashes and what is not ASCII become %XX."""
    if not name:
        raise ValueError("a tensor without a name cannot be saved")
    return "%2E" if name == "." else quote(name, safe=_KEPT)


def unescape(link: str) -> str:
    """The inverse of `escape`. Raises ValueError for what `escape` does not write."""
    name = unquote(link, errors="strict")
    if not name or escape(name) != link:
        raise ValueError(f"{link[:80]!r} is not a tensor's name")
    return name
