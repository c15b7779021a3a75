"""Tensors in an HDF5 file that can be trusted after a crash: what checkpoints and client memories are made of.

A file is ordinary HDF5 (h5dump and h5py read it) with a user block of 512 bytes in front: kind,
format, length and BLAKE2b of all that follows. A file that is truncated, damaged or foreign is
told apart before the HDF5 library sees a byte of it. What passes is still read as if written by
an enemy: two levels of plain groups and datasets, no links, filters, chunks, external or virtual
storage, no variable-length, object or opaque data, and no dataset larger than the bytes that the
file has for it. Nothing is ever unpickled. (What remains is the HDF5 library's own parser, on a
file whose maker also forged the checksum.)

Files are built in memory and written by Python, so a full disk is an ordinary OSError and never
a half-closed HDF5 file. Equal contents give equal bytes: no times are stored.
"""

from __future__ import annotations

import hashlib
import io
import os
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, TypeVar

import h5py
import numpy as np
from torch import Tensor

from fedmpi.errors import RunDirError
from fedmpi.output.stored import DIGEST_BYTES, Params, digest_of, dtype_name, escape, from_array, to_array, unescape

FORMAT = 1
USER_BLOCK_BYTES = 512
_HEADER = re.compile(rb"fedmpi ([a-z]+) format (\d{1,9}) bytes (\d{1,18}) blake2b ([0-9a-f]{32})\n\0*")

Attributes = Mapping[str, "str | int"]
Groups = Mapping[str, Params]
_T = TypeVar("_T")


class _Damaged(Exception):
    """What is wrong with a file, in words that follow its name."""


@dataclass(frozen=True)
class Content:
    """What a file holds: attributes of its root, and the tensors of its groups."""

    attributes: Attributes
    groups: Groups

    def group_digests(self) -> dict[str, str]:
        """`digest_of` each group, by the name of the attribute that stores it: `server_digest` for /server."""
        return {f"{name}_digest": digest_of(tensors) for name, tensors in self.groups.items()}


def pack(kind: str, content: Content) -> memoryview:
    """The bytes of a file of this `kind`; attributes `<group>_digest` and `content_digest` are added."""
    attributes = {**content.attributes, **content.group_digests()}
    buffer = io.BytesIO()
    with h5py.File(buffer, "w", libver="latest", userblock_size=USER_BLOCK_BYTES) as file:
        for name, value in {**attributes, "content_digest": _digest_of_attributes(attributes)}.items():
            file.attrs[name] = _fixed(value)
        for name, tensors in content.groups.items():
            # In their own order: whoever adds tensors up must not find them in another one after a resume.
            _write_group(file.create_group(name, track_order=True), tensors)
    packed = buffer.getbuffer()
    body = packed[USER_BLOCK_BYTES:]
    header = f"fedmpi {kind} format {FORMAT} bytes {len(body)} blake2b {_hash(body)}\n"
    packed[:USER_BLOCK_BYTES] = header.encode().ljust(USER_BLOCK_BYTES, b"\0")
    return packed


def unpack(path: Path, kind: str, attributes: Mapping[str, type], groups: tuple[str, ...]) -> Content:
    """Read a file whole: exactly these `groups`, at least these `attributes` (name -> str or int).

    Raises RunDirError with one line: what is wrong with the file.
    """
    return _guarded(path, lambda: _unpack(_intact_bytes(path, kind), attributes, groups))


def verify(path: Path, kind: str) -> None:
    """Raises RunDirError if the file is not, byte for byte, what a `pack` of this `kind` wrote. O(file size)."""
    _guarded(path, lambda: _intact_bytes(path, kind))


def unpack_group(path: Path, kind: str, group: str) -> Params:
    """One group of a file, without reading the others; length and header are checked, not the checksum."""

    def read() -> Params:
        with open(path, "rb") as raw:
            _check_header(raw, kind)
            with h5py.File(raw, "r") as file:
                return dict(_read_group(_member(file, group, h5py.Group), _file_bytes(raw)))

    return _guarded(path, read)


def _fixed(value: str | int) -> np.bytes_ | np.int64:
    return np.bytes_(value.encode()) if isinstance(value, str) else np.int64(value)


def _write_group(group: h5py.Group, tensors: Params) -> None:
    for name, tensor in tensors.items():
        dataset = group.create_dataset(escape(name), data=to_array(tensor), track_times=False)
        dataset.attrs["torch_dtype"] = np.bytes_(dtype_name(tensor))


def _guarded(path: Path, read: Callable[[], _T]) -> _T:
    try:
        return read()
    except _Damaged as damage:
        raise RunDirError(str(path), str(damage)) from None
    except FileNotFoundError:
        raise RunDirError(str(path), "no such file") from None
    except Exception as error:  # whatever the HDF5 library makes of hostile bytes: one line
        line = " ".join(str(error).split())[:200] or type(error).__name__
        raise RunDirError(str(path), f"cannot be read: {line}") from error


def _file_bytes(file: BinaryIO) -> int:
    return os.fstat(file.fileno()).st_size


def _check_header(file: BinaryIO, kind: str) -> tuple[int, str]:
    """Bytes after the user block, and the checksum that they should have."""
    size = _file_bytes(file)
    if size == 0:
        raise _Damaged("is empty")
    header = file.read(USER_BLOCK_BYTES)
    match = _HEADER.fullmatch(header)
    if match is None:
        if header.startswith(b"fedmpi ") and size < USER_BLOCK_BYTES:
            raise _Damaged(f"is truncated ({size} bytes)")
        raise _Damaged("was not written by fedmpi, or its first bytes are damaged")
    found, version, length = match[1].decode(), int(match[2]), int(match[3])
    if version != FORMAT:
        raise _Damaged(f"has format {version}, this fedmpi reads format {FORMAT}")
    if found != kind:
        raise _Damaged(f"is a {found} file, not a {kind}")
    expected = USER_BLOCK_BYTES + length
    if size != expected:
        raise _Damaged(f"{'is truncated' if size < expected else 'is too long'}: {size} bytes of {expected}")
    return length, match[4].decode()


def _intact_bytes(path: Path, kind: str) -> bytes:
    with open(path, "rb") as file:
        length, checksum = _check_header(file, kind)
        file.seek(0)
        whole = file.read(USER_BLOCK_BYTES + length)
    if _hash(memoryview(whole)[USER_BLOCK_BYTES:]) != checksum:
        raise _Damaged("is damaged: its checksum does not match its bytes")
    return whole


def _hash(body: memoryview) -> str:
    return hashlib.blake2b(body, digest_size=DIGEST_BYTES).hexdigest()


def _unpack(whole: bytes, expected: Mapping[str, type], groups: tuple[str, ...]) -> Content:
    with h5py.File(io.BytesIO(whole), "r") as file:
        if {*groups} != {*file.keys()}:
            raise _Damaged(f"has groups {sorted(file.keys())}, expected {sorted(groups)}")
        kinds = {**expected, **{f"{name}_digest": str for name in groups}}
        attributes = {name: _attribute(file, name, kind, len(whole)) for name, kind in kinds.items()}
        tensors: dict[str, Params] = {}
        left_bytes = len(whole)
        for name in groups:
            tensors[name] = dict(_read_group(_member(file, name, h5py.Group), left_bytes))
            left_bytes -= sum(tensor.nbytes for tensor in tensors[name].values())
        content_digest = _attribute(file, "content_digest", str, len(whole))
    content = Content(attributes, tensors)
    attributes_then = {**attributes, **content.group_digests()}
    if attributes_then != attributes or content_digest != _digest_of_attributes(attributes):
        raise _Damaged("is damaged: its content digest does not match its contents")
    return content


def _digest_of_attributes(attributes: Attributes) -> str:
    """BLAKE2b over names and values in the order of the names; the groups are in it by their digests."""
    return hashlib.blake2b(repr(sorted(attributes.items())).encode(), digest_size=DIGEST_BYTES).hexdigest()


def _read_group(group: h5py.Group, left_bytes: int) -> Iterator[tuple[str, Tensor]]:
    """(name, tensor) of every dataset; together they may take `left_bytes`, so a name repeated does not multiply."""
    for name in group:
        dataset = _member(group, name, h5py.Dataset)
        left_bytes -= _plain_bytes(dataset)
        if left_bytes < 0:
            raise _Damaged(f"declares more data than the file has (at {dataset.name})")
        stored_as = _attribute(dataset, "torch_dtype", str, 64)
        yield unescape(name), from_array(np.asarray(dataset[()]), str(stored_as))


def _member(group: h5py.Group, name: str, kind: type) -> h5py.Group | h5py.Dataset:
    if not isinstance(group.get(name, getlink=True), h5py.HardLink):
        raise _Damaged(f"has no {name}, or a link in its place")
    member = group[name]
    if not isinstance(member, kind):
        raise _Damaged(f"has {member.name}, which is not a {kind.__name__.lower()}")
    return member


def _plain_bytes(dataset: h5py.Dataset) -> int:
    """The dataset's bytes; raises _Damaged unless all of them lie, unfiltered and in one piece, in the file."""
    plain = dataset.dtype.kind in "iuf" and dataset.shape is not None
    in_place = dataset.chunks is None and not dataset.external and not dataset.is_virtual
    if not plain or not in_place or dataset.id.get_create_plist().get_nfilters():
        raise _Damaged(f"has {dataset.name}, which is not a plain array of numbers")
    num_bytes = int(dataset.size) * int(dataset.dtype.itemsize)
    if num_bytes > dataset.id.get_storage_size():
        raise _Damaged(f"has {dataset.name}, which declares more data than is stored")
    return num_bytes


def _attribute(holder: h5py.Group | h5py.Dataset, name: str, kind: type, most_bytes: int) -> str | int:
    if name not in holder.attrs:
        raise _Damaged(f"lacks the attribute {name}")
    handle = holder.attrs.get_id(name)
    expected = "S" if kind is str else "i"
    if handle.shape != () or handle.dtype.kind != expected or handle.dtype.itemsize > most_bytes:
        raise _Damaged(f"has an attribute {name} of a type that fedmpi does not write")
    value = holder.attrs[name]
    return bytes(value).decode() if kind is str else int(value)
