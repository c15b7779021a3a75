"""Archives of other people, unpacked so that nothing lands outside the folder, nothing is overwritten, no disk fills.

Only plain files and folders come out, written by our own code: links, devices, sparse files, absolute names, `..`,
names that differ by case alone and encrypted members are refused, whatever the rest of the archive. What members
declare and what they really hold are both counted, nested archives included, in one `Budget`. Everything is written
beside the target and renamed at the end.
"""

from __future__ import annotations

import fnmatch
import re
import shutil
import tarfile
import unicodedata
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import BinaryIO

from fedmpi.data.files import members, packed
from fedmpi.data.files.budget import Budget, Limits, Tell
from fedmpi.data.files.members import Member
from fedmpi.data.files.packed import CHUNK_BYTES, Content
from fedmpi.disk import temporary
from fedmpi.errors import DataError, reason

_JUDGED_AFTER = 1000  # members of a .tar, whose names come one by one; a .zip lists all of them at once
_CLUTTER = ("__MACOSX", ".DS_Store")
_MAX_PATH_BYTES, _MAX_FOLDERS = 1024, 32  # of a member's name, and in it
_BYTES_PER_NAME = 200  # that Python takes for an entry of a dict and its two texts, beside their letters


def is_archive(path: Path) -> bool:
    """Whether the first bytes (not the name) are those of a .zip, a .tar, or anything packed by gzip, bzip2 or xz."""
    if _is_zip(path):
        return True
    with path.open("rb") as file:
        return bool(packed.form_of(file)) or members.is_tar(file.read(tarfile.BLOCKSIZE))


def unpack(
    archive: Path, folder: Path, tell: Tell, *, replace: bool = False, limits: Limits | None = None
) -> list[Path]:
    """Unpacks into `folder`, whole or not at all; returns what is new at its top.

    A .zip within the archive is unpacked in its place, once (UCI packs so). Raises DataError: unsafe, damaged, too
    large for the limits or the disk, or something of that name is there already and `replace` is false.
    """
    try:
        with temporary.own_folder(folder, "unpacking") as place:
            unpack_into(archive, place, tell, limits)
            return [_move(entry, folder / entry.name, archive, replace) for entry in sorted(place.iterdir())]
    except OSError as error:
        raise DataError(str(folder), f"{archive.name} cannot be unpacked there: {reason(error)}") from error


def unpack_into(
    archive: Path, empty: Path, tell: Tell, limits: Limits | None = None, traces: tuple[str, ...] = ()
) -> None:
    """Unpacks into an empty folder of the caller, who throws it away if this fails.

    An archive whose (first) members have no name like any of the `traces`, as *.json, is refused early.
    """
    _Unpacking(archive, empty, tell, Budget(archive, limits or Limits()), traces).run()


def _move(entry: Path, target: Path, archive: Path, replace: bool) -> Path:
    if target.exists() or target.is_symlink():
        if not replace:
            raise DataError(str(target), f"is there already; remove it, or unpack {archive.name} with --force")
        if target.is_dir() and not target.is_symlink():
            shutil.rmtree(target)
        else:
            target.unlink()
    return entry.rename(target)


@dataclass
class _Unpacking:
    """One archive on its way out: the names so far, and what it has cost, nested archives included."""

    archive: Path
    place: Path
    tell: Tell
    budget: Budget
    traces: tuple[str, ...] = ()
    names: dict[str, str] = field(default_factory=dict)

    def run(self) -> None:
        nested = self._unpack(self.archive, PurePosixPath())
        self.traces = ()  # what is in an archive within the archive may be anything
        for inner in nested:
            if _is_zip(inner):
                self._unpack(inner, PurePosixPath(inner.parent.relative_to(self.place)))
                inner.unlink()

    def _unpack(self, archive: Path, below: PurePosixPath) -> list[Path]:
        """Returns the archives within the archive."""
        try:
            with archive.open("rb") as file:
                found = self._zip(file) if _is_zip(archive) else self._tar(file)
                targets = [self._write(member, content, below) for member, content in found]
                return [target for target in targets if target is not None and target.suffix == ".zip"]
        except members.BROKEN as error:
            if isinstance(error, OSError) and error.errno is not None:
                raise  # the disk's fault; bzip2 raises OSErrors without a number
            no_archive = "is neither a .zip nor a .tar (plain, .gz, .bz2, .xz), " * (not self.budget.num_members)
            raise self.budget.refuse(f"{no_archive}damaged or cut off ({reason(error)})", "get it again") from error

    def _zip(self, file: BinaryIO) -> Iterator[tuple[Member, Content]]:
        with members.opened_zip(file, self.budget) as archive:
            found = list(members.declared(archive))
            for member in found:
                self._check_member(member)
            self._check_room(sum(member.num_bytes for member in found))
            if found and not any(self._is_trace(member.name) for member in found):
                raise self._strange(len(found))
            for done, member_and_content in enumerate(members.of_zip(archive, self.budget), 1):
                yield member_and_content
                self.tell(done, len(found))

    def _tar(self, file: BinaryIO) -> Iterator[tuple[Member, Content | None]]:
        is_known = False
        for done, (member, content) in enumerate(members.of_tar(packed.opened(file, self.budget)), 1):
            is_known = is_known or self._is_trace(member.name)
            if not is_known and done >= _JUDGED_AFTER:
                raise self._strange(done)
            self._check_member(member)
            self._check_room(member.num_bytes)
            yield member, content
            self.tell(self.budget.num_members, 0)

    def _is_trace(self, name: str) -> bool:
        """Whether such a member is in the archives that the caller wants; an archive within may hold one."""
        return not self.traces or any(fnmatch.fnmatchcase(name, trace) for trace in (*self.traces, "*.zip"))

    def _strange(self, num_members: int) -> DataError:
        self.budget.member = ""
        names = " or ".join(self.traces)
        return self.budget.refuse(f"no {names} among its first {num_members:,} members", "these are other files")

    def _check_member(self, member: Member) -> None:
        self.budget.member = member.name
        if member.kind not in ("file", "folder"):
            raise self.budget.refuse(f"it is {member.kind}", "only plain files and folders are unpacked: get it again")

    def _check_room(self, num_bytes: int) -> None:
        """Refuses, before anything is written, what is declared beyond the limits and the free disk space."""
        self.budget.check_read(num_bytes)
        free = shutil.disk_usage(self.place).free
        if num_bytes > free:
            raise DataError(
                str(self.place.parent),
                f"{free:,} bytes are free, unpacking {self.archive.name} takes {num_bytes:,}; make room",
            )

    def _target(self, member: Member, below: PurePosixPath) -> Path | None:
        """Where a member goes; None for a folder, which is made, and for clutter. Refuses what is unsafe."""
        self.budget.add_member()
        parts = tuple(part for part in member.name.rstrip("/").split("/") if part != ".")
        is_long = len(member.name) > _MAX_PATH_BYTES or len(parts) > _MAX_FOLDERS
        if is_long or not all(map(_is_safe, parts)):  # an absolute name begins with an empty part
            raise self.budget.refuse("it would land outside the folder or has no portable name", "get it again")
        if not parts or any(part in _CLUTTER for part in parts):
            return None
        path, is_folder = below.joinpath(*parts), member.kind == "folder"
        self._register(path, is_folder)
        target = self.place / path
        (target if is_folder else target.parent).mkdir(parents=True, exist_ok=True)
        return None if is_folder else target

    def _register(self, path: PurePosixPath, is_folder: bool) -> None:
        """Remembers a name and its folders; another spelling of one of them, or a file twice, is refused."""
        for prefix in (path, *path.parents[:-1]):
            spelling = f"{prefix}/" if is_folder or prefix != path else str(prefix)
            same_to_a_disk = unicodedata.normalize("NFC", str(prefix)).casefold()
            known = self.names.get(same_to_a_disk)
            if known is None:
                self.budget.hold(_BYTES_PER_NAME + 2 * len(spelling), "the names of its members")
            elif known != spelling or not spelling.endswith("/"):
                raise self.budget.refuse(f"it and {known!r} would be the same file", "get it again")
            self.names[same_to_a_disk] = spelling

    def _write(self, member: Member, content: Content | None, below: PurePosixPath) -> Path | None:
        """Copies a member; one that holds more or less than it declares is refused. Returns where it lies."""
        target = self._target(member, below)
        if target is None or content is None:
            return None
        written = 0
        with target.open("xb") as file:
            while written <= member.num_bytes and (chunk := content.read(CHUNK_BYTES)):
                written += len(chunk)
                file.write(chunk[: max(0, member.num_bytes - written + len(chunk))])
        if written != member.num_bytes:
            found = f"it holds {written:,} bytes or more, but declares {member.num_bytes:,}"
            raise self.budget.refuse(found, "damaged, or made to take room: get it again")
        return target


def _is_safe(part: str) -> bool:
    """Whether a part of a name is one on every system, and leads nowhere else."""
    try:
        num_bytes = len(part.encode())
    except UnicodeEncodeError:
        return False
    return part not in ("", "..") and num_bytes <= 255 and not re.search(r"[\\\x00-\x1f\x7f]|^[A-Za-z]:", part)


def _is_zip(path: Path) -> bool:
    """The first bytes tell: a file that merely ends like a .zip is none."""
    with path.open("rb") as file:
        return file.read(4) in (b"PK\x03\x04", b"PK\x05\x06")
