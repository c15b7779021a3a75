"""Runs a command in a network of its own that has nothing but the loopback interface (Linux).

    python jobs/loopback.py [--try] mpirun -n 5 python -m fedmpi.main ...

For a job on one machine. mpirun listens on all interfaces for daemons on other nodes, and no setting of Open MPI 5
keeps it from that; here nobody outside can reach it. The command keeps its user, files and process number, and has no
network: fetch data before. Exit code 2 where the system allows no such network (most containers, and systems that
forbid user namespaces); with --try the command then runs as it would without.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import socket
import struct
import sys
from collections.abc import Sequence
from pathlib import Path

# linux/sched.h, linux/sockios.h, linux/if.h
_NEW_USER, _NEW_NETWORK = 0x10000000, 0x40000000
_SET_FLAGS, _UP = 0x8914, 1


def enter_own_network() -> None:
    """Puts this process, and all that it starts, into a network of their own. Raises `OSError`."""
    try:
        _unshare(_NEW_NETWORK)
    except PermissionError:  # not root: in a namespace of users one may
        user, group = os.geteuid(), os.getegid()
        _unshare(_NEW_USER | _NEW_NETWORK)
        own = Path("/proc/self")
        (own / "setgroups").write_text("deny")
        (own / "uid_map").write_text(f"{user} {user} 1")
        (own / "gid_map").write_text(f"{group} {group} 1")
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as handle:
        fcntl.ioctl(handle, _SET_FLAGS, struct.pack("16sh14x", b"lo", _UP))


def _unshare(flags: int) -> None:
    if not sys.platform.startswith("linux"):
        raise OSError("only Linux has networks of a process's own")
    if ctypes.CDLL(None, use_errno=True).unshare(flags):
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def main(argv: Sequence[str] | None = None) -> int:
    argv = list(sys.argv[1:] if argv is None else argv)
    may_fail = argv[:1] == ["--try"]
    command = argv[may_fail:]
    if not command or command[0].startswith("-"):
        print((__doc__ or "").strip())
        return 0 if argv[:1] == ["--help"] else 2
    try:
        enter_own_network()
    except OSError as error:
        if not may_fail:
            return _fail(f"the system allows no network of its own: {error.strerror or error}")
    try:
        os.execvp(command[0], command)
    except OSError as error:
        return _fail(f"{command[0]}: {error.strerror}")


def _fail(why: str) -> int:
    print(f"jobs/loopback.py: {why}", file=sys.stderr)
    return 2
