"""Tries the file system of a run folder: rank 0 makes files in a folder of its own there, and removes them."""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil

from fedmpi.check.finding import Finding, ok, problem, warning
from fedmpi.errors import reason
from fedmpi.mpi.communicator import Communicator
from fedmpi.store.files import replacing
from fedmpi.store.units import size

_NOTHING_FITS_BYTES = 32 * 2**20
_LEAST_FREE_BYTES = 2**30
_LEAST_FREE_FILES = 1000
_NETWORK = re.compile(r"nfs|lustre|gpfs|beegfs|ceph|cifs|smb|afs|9p|glusterfs|panfs|wekafs|fuse\.sshfs")
# File systems that do not outlive the node or the container: what to say, and what to do.
_TEMPORARY = {
    "tmpfs": ("in memory, gone when the node restarts", "take a folder on a disk"),
    "ramfs": ("in memory, gone when the node restarts", "take a folder on a disk"),
    "overlay": ("the container's own layer, which may go with it", "bind a folder of the host (apptainer --bind)"),
}
# Mount options with which another node does not see a lock.
_LOCAL_LOCKS = re.compile(r"(?:^|,)(nolock|local_lock=(?:posix|all)|localflock)(?:,|$)")


def own_place(folder: Path) -> tempfile.TemporaryDirectory[str]:
    """Makes a folder in `folder`, or in the nearest one above it that exists; gone at the end. Raises OSError."""
    return tempfile.TemporaryDirectory(prefix=".fedmpi-check-", dir=existing(folder), ignore_cleanup_errors=True)


def existing(folder: Path) -> Path:
    """Returns `folder`, or the nearest folder above it that exists."""
    folder = folder.expanduser().absolute()
    return next(path for path in (folder, *folder.parents) if path.is_dir())


def mount_of(folder: Path) -> Any:
    """Returns what a folder is on, with `fstype`, `opts` and `device`; None where the kernel does not say."""
    with contextlib.suppress(OSError):
        above = [part for part in psutil.disk_partitions(all=True) if folder.is_relative_to(part.mountpoint)]
        return max(reversed(above), key=lambda part: len(part.mountpoint), default=None)  # the last one covers others
    return None


def findings(folder: Path) -> Iterator[Finding]:
    """Yields all that is found out about `folder` by writing into it."""
    mount = mount_of(existing(folder).resolve())
    try:
        with own_place(folder) as place:
            yield file_system(folder, mount)
            yield locks(Path(place), mount)
            yield renames(Path(place))
            yield space(folder, os.statvfs(place))
    except OSError as error:
        advice = "name another folder with --run-dir (output.dir in a config), or get the right to write there"
        yield problem("run folder", f"{existing(folder)} cannot be written: {reason(error)}", advice)


def file_system(folder: Path, mount: Any) -> Finding:
    """Names its kind, and says whether it outlives the job."""
    absolute = folder.expanduser().absolute()
    where = str(absolute) if absolute.is_dir() else f"{absolute} (made when a run starts)"
    if mount is None:
        return ok("run folder", where)
    if mount.fstype in _TEMPORARY:
        found, advice = _TEMPORARY[mount.fstype]
        return warning("run folder", f"{where} is {found} ({mount.fstype})", f"{advice} for runs that are to be kept")
    network = f", a network file system ({mount.device})" if _NETWORK.search(mount.fstype) else ""
    return ok("run folder", f"{where} on {mount.fstype}{network}")


def locks(place: Path, mount: Any) -> Finding:
    """Tries the kernel's record locks, which keep two runs out of one folder."""
    without = "two runs that start in one folder at the same moment are told apart by their notes alone"
    try:
        with open(place / "lock", "w") as file:
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        advice = f"mount it with locks (Lustre: flock; NFS: without nolock); {without}"
        return warning("locks", f"the kernel's locks do not work here: {reason(error)}", advice)
    if mount is not None and (option := _LOCAL_LOCKS.search(mount.opts)):
        return warning("locks", f"mounted with {option[1]}: another node does not see them", f"mind that {without}")
    return ok("locks", "the kernel's locks work")


def renames(place: Path) -> Finding:
    """Replaces a file as a whole and syncs it, as every save does."""
    (place / "replaced").touch()
    started = time.perf_counter()
    try:
        with replacing(place / "replaced") as file:
            file.write(b"new")
    except OSError as error:
        return problem("atomic rename", f"fails: {reason(error)}", "take another file system for runs")
    took_ms = 1000 * (time.perf_counter() - started)
    return ok("atomic rename", f"works, with fsync: {took_ms:.1f} ms for a small file")


def space(folder: Path, disk: os.statvfs_result) -> Finding:
    """Looks for room for checkpoints, and for files."""
    free = disk.f_bavail * disk.f_frsize
    found = size(free)
    is_short = free < _LEAST_FREE_BYTES
    if disk.f_files and disk.f_favail < _LEAST_FREE_FILES:  # 0: the file system does not count files
        found = f"room for {disk.f_favail} more files (inodes)"
        is_short = True
    if not is_short:
        return ok("free space", found)
    found = f"only {found} at {existing(folder)}"
    advice = "free some, or take another --run-dir; `fedmpi plan` says what a run needs"
    if free < _NOTHING_FITS_BYTES:
        return problem("free space", found, advice)
    return warning("free space", found, advice)


def shared(folder: Path, comm: Communicator) -> Finding | None:
    """Finds the ranks that do not see a folder that rank 0 makes: clients' memories are written by workers. Every rank
    calls it; None in one process, and where rank 0 cannot write.
    """
    with contextlib.ExitStack() as stack:
        own = ""
        if comm.is_root:
            with contextlib.suppress(OSError):
                own = stack.enter_context(own_place(folder))
        place = comm.allgather_text(own)[0]
        seen = comm.allgather_text("" if Path(place).is_dir() else comm.host)
    if not place or comm.size == 1:
        return None
    blind = [host for host in dict.fromkeys(seen) if host]
    if not blind:
        return ok("shared folder", f"all {comm.size} ranks see the run folder")
    advice = "take a folder that all nodes share; methods whose clients remember something write from every rank"
    return warning("shared folder", f"not seen on {', '.join(blind)}: {existing(folder)}", advice)
