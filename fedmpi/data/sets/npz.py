"""A file of the user's own, as `numpy.savez` and `numpy.savez_compressed` write it.

It holds `train_x`, `train_y`, `test_x`, `test_y` and, where they are known, `groups` and `test_groups`; or `x`, `y` and
perhaps `groups`, which `data.test_share` divides. `fedmpi.data.arrays` says what they may be. Other arrays are not
read, and pickled objects never are.
"""

from __future__ import annotations

import math
import zipfile
from pathlib import Path
from typing import IO, Any, BinaryIO, cast

from numpy.lib import format as npy
from numpy.typing import NDArray

from fedmpi.data import arrays
from fedmpi.data.arrays import Arrays, FileOptions
from fedmpi.data.dataset import PARTS
from fedmpi.data.files import members
from fedmpi.data.files.budget import Budget, Limits, guarded
from fedmpi.data.files.folders import below_home
from fedmpi.disk.plain import NotPlainError, open_to_read
from fedmpi.errors import DataError

LIMITS = Limits(max_members=10_000, max_bytes=2**36, max_read_bytes=2**37, max_held_bytes=2**36)
ADVICE = "write it again by numpy.savez"


class Npz(FileOptions):
    """Sizes, kind and classes are those of the arrays, so a plan reads the file, too."""

    name: str = "npz"
    """Your own arrays in one .npz file: pictures, vectors or tokens."""

    def arrays(self) -> Arrays:
        where, path = f"data.path={self.path}", below_home(self.path)
        has_parts = not self.test_share
        wanted = tuple(PARTS) if has_parts else ("x", "y", "groups")
        found, others = _read(path, wanted)
        if has_parts and {"x", "y"} <= {*others} and "train_x" not in found:
            raise DataError(where, "holds x and y: say by data.test_share, as 0.2, how many are for tests")
        if has_parts:
            return found
        if "train_x" in others:
            raise DataError(where, "holds train_x, so it has a test part; leave data.test_share away")
        if missing := [name for name in ("x", "y") if name not in found]:
            holds = f"it holds {', '.join([*found, *others][:12]) or 'nothing'}"
            raise DataError(where, f"has no {' and no '.join(missing)}; {holds}")
        return arrays.divided(where, self, found["x"], found["y"], found.get("groups"))


def _read(path: Path, wanted: tuple[str, ...]) -> tuple[dict[str, NDArray[Any]], list[str]]:
    """The arrays with these names, and the names of the others. Raises DataError."""
    budget = Budget(path, LIMITS)
    try:
        file = open_to_read(path)
    except NotPlainError as error:
        raise DataError(str(path), f"is {error.kind}, expected an .npz file") from None
    except OSError as error:
        raise DataError(str(path), f"cannot be read: {error.strerror}; data.path is the path of an .npz file") from None
    with file, guarded(path, ADVICE, "is no .npz file, damaged or cut off"):
        if file.read(4) not in (b"PK\x03\x04", b"PK\x05\x06"):
            raise DataError(str(path), f"is no .npz file; {ADVICE}")
        try:
            return _arrays(file, budget, wanted)
        except zipfile.BadZipFile as error:
            raise ValueError(str(error)) from error


def _arrays(file: BinaryIO, budget: Budget, wanted: tuple[str, ...]) -> tuple[dict[str, NDArray[Any]], list[str]]:
    with members.opened_zip(file, budget) as archive:
        names = [name.removesuffix(".npy") for name in archive.namelist()]
        budget.add_members(len(names))
        if len(set(names)) < len(names):
            raise ValueError("it holds two arrays of one name")
        for member, content in members.of_zip(archive, budget):
            if member.name.removesuffix(".npy") in wanted:
                _check_header(budget, member, cast(IO[bytes], content))
        found = {}
        for member, content in members.of_zip(archive, budget):
            if (name := member.name.removesuffix(".npy")) in wanted:
                found[name] = npy.read_array(cast(IO[bytes], content), allow_pickle=False)
        return found, [name for name in names if name not in wanted]


def _check_header(budget: Budget, member: members.Member, content: IO[bytes]) -> None:
    """Refuses, before any memory is taken, what an array's header says if the file cannot hold it, or is no numbers."""
    read = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}.get(npy.read_magic(content))
    if read is None:
        raise ValueError(f"{member.name} is of a version that is not read")
    shape, _, dtype = read(content)
    name = member.name.removesuffix(".npy")
    if dtype.hasobject or dtype.kind not in "biufUS":
        raise DataError(str(budget.path), f"{name} holds {dtype}, no plain numbers; pickled objects are never read")
    num_bytes = math.prod(shape) * dtype.itemsize
    if num_bytes > member.num_bytes:
        raise ValueError(f"{name} declares {num_bytes:,} bytes, but has {member.num_bytes:,}")
    budget.check_read(num_bytes)
    budget.hold(num_bytes, f"the array {name}")
