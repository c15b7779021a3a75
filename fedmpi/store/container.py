"""Tensors in an HDF5 file that can be trusted after a crash: what checkpoints and client memories are made of.

`fedmpi.disk.hdf5` tells a truncated, damaged or foreign file apart and reads no more than it has; here its
arrays become groups of tensors, each with a digest of its contents. Nothing is ever unpickled.
Attributes of a file: its own, `<group>_digest` for each group, `torch_dtypes` (JSON) for tensors that
are stored as the bits of another type, and `content_digest` over all attributes.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from fedmpi.disk import hdf5
from fedmpi.disk.hdf5 import Attributes, Damaged
from fedmpi.disk.plain import DIGEST_BYTES
from fedmpi.errors import RunDirError
from fedmpi.store.stored import Params, digest_of, dtype_name, escape, from_array, to_array, unescape

_V = TypeVar("_V", str, int)


@dataclass(frozen=True)
class Content:
    """What a file holds: attributes of its root, and the tensors of its groups."""

    attributes: Attributes
    groups: Mapping[str, Params]

    def group_digests(self) -> dict[str, str]:
        """`digest_of` each group, by the name of the attribute that stores it: `server_digest` for /server."""
        return {f"{name}_digest": digest_of(tensors) for name, tensors in self.groups.items()}


def pack(kind: str, content: Content) -> memoryview:
    """The bytes of a file of this `kind`."""
    # In their own order: sums over tensors must not meet them in another one after a resume.
    tensors = {
        f"{group}/{escape(name)}": tensor for group, held in content.groups.items() for name, tensor in held.items()
    }
    arrays = {path: to_array(tensor) for path, tensor in tensors.items()}
    unlike = {path: dtype_name(tensors[path]) for path in arrays if dtype_name(tensors[path]) != arrays[path].dtype}
    attributes = {**content.attributes, **content.group_digests(), "torch_dtypes": json.dumps(unlike)}
    return hdf5.pack(kind, {**attributes, "content_digest": _digest_of_attributes(attributes)}, arrays)


def unpack(
    path: Path, kind: str, attributes: Mapping[str, type], groups: tuple[str, ...], optional: Collection[str] = ()
) -> Content:
    """Read a file whole: exactly these `groups`, and all attributes, at least these (name -> str or int).

    An `optional` group may be absent, without its digest. Raises RunDirError in one line.
    """
    with _guarded(path), hdf5.opened(path, kind) as file:
        wanted = [name for name in groups if name not in optional or f"{name}_digest" in file.attributes]
        for name, type_ in {**attributes, **{f"{name}_digest": str for name in wanted}}.items():
            _attribute(file, name, type_)
        there = {path.partition("/")[0] for path in file.entries}
        if not there <= {*wanted}:
            raise Damaged(f"has groups {sorted(there)}, expected {sorted(wanted)}")
        content = Content(_digested(file), {group: _group(file, group) for group in wanted})
        if not _is_whole(file) or {**file.attributes, **content.group_digests()} != file.attributes:
            raise Damaged("is damaged: its content digest does not match its contents")
        return content


def unpack_group(path: Path, kind: str, group: str) -> Params:
    """One group of a file, without reading the others: its digest is checked, not the checksum of the file."""
    with _guarded(path), hdf5.opened(path, kind, check=False) as file:
        tensors = _group(file, group)
        if digest_of(tensors) != _attribute(file, f"{group}_digest", str):
            raise Damaged(f"is damaged: the digest of {group} does not match its contents")
        return tensors


def unpack_attributes(path: Path, kind: str) -> Attributes:
    """The attributes of a file, without reading its arrays: their digest is checked. Raises RunDirError."""
    with _guarded(path), hdf5.opened(path, kind, check=False) as file:
        if not _is_whole(file):
            raise Damaged("is damaged: its content digest does not match its attributes")
        return file.attributes


class DamagedFileError(RunDirError):
    """What is in a file, or that there is none, is the reason why it cannot be read; nothing else could change that."""


@contextmanager
def _guarded(path: Path) -> Iterator[None]:
    try:
        yield
    except Damaged as damage:
        raise DamagedFileError(str(path), str(damage)) from None
    except FileNotFoundError:
        raise DamagedFileError(str(path), "no such file") from None
    except (OSError, ValueError, TypeError, IndexError, RuntimeError) as error:
        line = " ".join(str(error).split())[:200] or type(error).__name__
        kind = RunDirError if isinstance(error, (OSError, RuntimeError)) else DamagedFileError
        raise kind(str(path), f"cannot be read: {line}") from error


def _group(file: hdf5.Reader, group: str) -> Params:
    """Its tensors, in the order of the file. Raises ValueError if they are not what `pack` writes."""
    stored_for = json.loads(_attribute(file, "torch_dtypes", str))
    if not isinstance(stored_for, dict):
        raise ValueError("its torch_dtypes are no table")
    tensors = {}
    for path in file.entries:
        if path.startswith(f"{group}/"):
            array, name = file.array(path), unescape(path.removeprefix(f"{group}/"))
            tensors[name] = from_array(array, stored_for.get(path, array.dtype.name))
    return tensors


def _attribute(file: hdf5.Reader, name: str, kind: type[_V]) -> _V:
    if name not in file.attributes:
        raise Damaged(f"lacks the attribute {name}")
    value = file.attributes[name]
    if type(value) is not kind:
        raise Damaged(f"has an attribute {name} of a type that fedmpi does not write")
    return value


def _is_whole(file: hdf5.Reader) -> bool:
    return _attribute(file, "content_digest", str) == _digest_of_attributes(_digested(file))


def _digested(file: hdf5.Reader) -> Attributes:
    return {name: value for name, value in file.attributes.items() if name != "content_digest"}


def _digest_of_attributes(attributes: Attributes) -> str:
    """BLAKE2b over names and values in the order of the names; the groups are in it by their digests."""
    return hashlib.blake2b(repr(sorted(attributes.items())).encode(), digest_size=DIGEST_BYTES).hexdigest()
