"""What the file system of a run folder can do: rank 0 makes files of its own there, and removes them.

All in a folder `.fedmpi-check-...` of its own, so that a run in the same place is not disturbed.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import secrets
import shutil
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from fedmpi.check.finding import Finding, ok, problem, warning
from fedmpi.disk.plain import replacing
from fedmpi.errors import reason
from fedmpi.mpi.communicator import Communicator
from fedmpi.store.units import size

_NOTHING_FITS_BYTES = 32 * 2**20
_NUM_RENAMES = 8
_LEAST_FREE_BYTES = 2**30
_LEAST_FREE_FILES = 1000
_NETWORK = re.compile(r"nfs|lustre|gpfs|beegfs|ceph|cifs|smb|afs|9p|glusterfs|panfs|wekafs|fuse\.sshfs")
_IN_MEMORY = ("tmpfs", "ramfs")
# Mount options with which another node does not see a lock.
_LOCAL_LOCKS = re.compile(r"(?:^|,)(nolock|local_lock=(?:posix|all)|localflock)(?:,|$)")


@dataclass(frozen=True)
class Mount:
    """What a folder is on."""

    type: str
    options: str
    source: str


@contextlib.contextmanager
def own_place(folder: Path) -> Iterator[Path]:
    """A new folder in `folder`, or in the nearest one above it that exists; gone at the end. Raises OSError."""
    above = existing(folder)
    place = Path(tempfile.mkdtemp(prefix=".fedmpi-check-", dir=above))
    try:
        yield place
    finally:
        shutil.rmtree(place, ignore_errors=True)


def existing(folder: Path) -> Path:
    """`folder`, or the nearest folder above it that exists."""
    folder = folder.expanduser().absolute()
    return next(path for path in (folder, *folder.parents) if path.is_dir())


def mount_of(folder: Path, table: str) -> Mount | None:
    """What `folder` (absolute, without links) is on, by the text of /proc/self/mountinfo; None if that does not say."""
    best, found = -1, None
    for line in table.splitlines():
        words, _, rest = line.partition(" - ")
        fields, more = words.split(), rest.split()
        if len(fields) < 6 or len(more) < 3:
            continue
        point = Path(re.sub(r"\\([0-7]{3})", lambda code: chr(int(code[1], 8)), fields[4]))
        if folder.is_relative_to(point) and len(point.parts) >= best:
            best, found = len(point.parts), Mount(more[0], f"{fields[5]},{more[2]}", more[1])
    return found


def findings(folder: Path) -> Iterator[Finding]:
    """All that is found out about `folder` by writing into it."""
    mount = mount_here(folder)
    try:
        with own_place(folder) as place:
            yield file_system(folder, mount)
            yield locks(place, mount)
            yield renames(place)
            yield space(folder, os.statvfs(place))
    except OSError as error:
        advice = "name another folder with --run-dir (output.dir in a config), or get the right to write there"
        yield problem("run folder", f"{existing(folder)} cannot be written: {reason(error)}", advice)


def mount_here(folder: Path) -> Mount | None:
    """What `folder` is on, as this host's kernel says."""
    with contextlib.suppress(OSError):
        return mount_of(existing(folder).resolve(), Path("/proc/self/mountinfo").read_text(errors="replace"))
    return None


def file_system(folder: Path, mount: Mount | None) -> Finding:
    """Its kind, and whether it outlives the job."""
    absolute = folder.expanduser().absolute()
    where = f"{absolute}{'' if absolute.is_dir() else ' (made when a run starts)'}"
    if mount is None:
        return ok("run folder", where)
    if mount.type in _IN_MEMORY:
        advice = "take a folder on a disk for runs that are to be kept"
        return warning("run folder", f"{where} is in memory ({mount.type}): gone when the node restarts", advice)
    if mount.type == "overlay":
        advice = "bind a folder of the host into the container for runs that are to be kept (apptainer --bind)"
        return warning("run folder", f"{where} is the container's own layer (overlay): it may go with it", advice)
    network = f", a network file system ({mount.source})" if _NETWORK.search(mount.type) else ""
    return ok("run folder", f"{where} on {mount.type}{network}")


def locks(place: Path, mount: Mount | None) -> Finding:
    """Whether the kernel's record locks work, which keep two runs out of one folder."""
    without = "two runs that start in one folder at the same moment are told apart by their notes alone"
    try:
        with open(place / "lock", "w") as file:
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        advice = f"mount it with locks (Lustre: flock; NFS: without nolock); {without}"
        return warning("locks", f"the kernel's locks do not work here: {reason(error)}", advice)
    if mount is not None and (option := _LOCAL_LOCKS.search(mount.options)):
        return warning("locks", f"mounted with {option[1]}: another node does not see them", f"mind that {without}")
    return ok("locks", "the kernel's locks work")


def renames(place: Path) -> Finding:
    """Whether a file is replaced as a whole and synced, as every save does."""
    target = place / "replaced"
    try:
        started = time.perf_counter()
        for number in range(_NUM_RENAMES):
            with replacing(target) as file:
                file.write(str(number).encode())
        took_s = (time.perf_counter() - started) / _NUM_RENAMES
        content, left = target.read_text(), [path.name for path in place.iterdir() if ".tmp" in path.name]
    except OSError as error:
        return problem("atomic rename", f"fails: {reason(error)}", "take another file system for runs")
    if content != str(_NUM_RENAMES - 1) or left:
        found = f"a replaced file reads {content!r}, and {len(left)} temporary files are left"
        return problem("atomic rename", found, "take another file system for runs")
    return ok("atomic rename", f"works, with fsync: {1000 * took_s:.1f} ms for a small file")


def space(folder: Path, disk: os.statvfs_result) -> Finding:
    """Room for checkpoints, and for files."""
    free = disk.f_bavail * disk.f_frsize
    has_files = disk.f_files == 0 or disk.f_favail >= _LEAST_FREE_FILES  # 0: the file system does not count files
    if free >= _LEAST_FREE_BYTES and has_files:
        return ok("free space", size(free))
    found = size(free) if has_files else f"room for {disk.f_favail} more files (inodes)"
    advice = "free some, or take another --run-dir; `fedmpi plan` says what a run needs"
    return (problem if free < _NOTHING_FITS_BYTES else warning)(
        "free space", f"only {found} at {existing(folder)}", advice
    )


def shared(folder: Path, comm: Communicator) -> Finding | None:
    """Whether all ranks see a file that rank 0 makes: what clients remember is written by workers. Every rank calls it;
    None in one process, and where rank 0 cannot write.
    """
    token, place = secrets.token_hex(8), contextlib.ExitStack()
    path = ""
    if comm.is_root:
        with contextlib.suppress(OSError):
            made = place.enter_context(own_place(folder)) / "seen"
            made.write_text(token)
            path = str(made)
    with place:
        path, token = comm.allgather_text(f"{path}\0{token}")[0].split("\0")
        seen = comm.allgather_text(f"{comm.host if not _reads(path, token) else ''}")
    if not path or comm.size == 1:
        return None
    blind = list(dict.fromkeys(filter(None, seen)))
    if not blind:
        return ok("shared folder", f"all {comm.size} ranks see the run folder")
    advice = "take a folder that all nodes share; methods whose clients remember something write from every rank"
    return warning("shared folder", f"not seen on {', '.join(blind)}: {existing(folder)}", advice)


def _reads(path: str, token: str) -> bool:
    try:
        return Path(path).read_text() == token
    except OSError:
        return False
