"""Which rank this process is, read from what launchers leave in the environment; and the launcher itself.

Needed before MPI starts: one rank must report a mistake in a config within seconds, on a login node that may have no
working MPI. One table, so that a new launcher is one line.
"""

import contextlib
import os
import time
from collections.abc import Mapping, MutableMapping, Sequence

import psutil

from fedmpi.errors import LaunchError

# (rank, size) as Open MPI, MPICH / Intel MPI / Slurm's PMI-2, MVAPICH, Cray PALS and Slurm's PMIx set them. What stands
# first counts: on an allocation, Open MPI's mpirun starts its daemons by srun.
_VARIABLES = (
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    ("PMI_RANK", "PMI_SIZE"),
    ("MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_SIZE"),
    ("PALS_RANKID", "PALS_SIZE"),
    ("PMIX_RANK", "SLURM_STEP_NUM_TASKS"),
)
# An srun without --mpi numbers its tasks, too.
_SRUN = ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS")
# More digits than any count or time has, and few enough for a float.
_MAX_DIGITS = 18
# Names of Open MPI's mpirun, and of its daemon on another node.
_OPEN_MPI = frozenset({"mpirun", "mpiexec", "prterun", "prted", "orterun", "orted"})
_TRANSPORTS = "OMPI_MCA_btl"
# Twice Open MPI's segment of shared memory for each rank. A container's /dev/shm may be smaller; then TCP is needed.
_SHARED_BYTES = 2 * 16 * 2**20
# mpirun needs a moment to forward what a rank has printed.
_FORWARD_S = 0.5
_OTHERS_END_S = 10.0


def whole_number(environment: Mapping[str, str], name: str) -> int | None:
    """Returns the whole number from 0 on that the variable `name` holds; None if it is unset or holds anything else.

    >>> whole_number({"PMI_SIZE": "4"}, "PMI_SIZE"), whole_number({"PMI_SIZE": "4 "}, "PMI_SIZE")
    (4, None)
    """
    text = environment.get(name, "")
    is_number = text.isascii() and text.isdecimal() and len(text) <= _MAX_DIGITS
    return int(text) if is_number else None


def launched_as(
    environment: Mapping[str, str] = os.environ, variables: Sequence[tuple[str, str]] = _VARIABLES
) -> tuple[int, int] | None:
    """Returns (rank, size) if a launcher of MPI started this process, else None. The size is 1 where none is known."""
    for rank_name, size_name in variables:
        rank = whole_number(environment, rank_name)
        if rank is not None:
            size = whole_number(environment, size_name) or 1
            return rank, size if size > rank else 1
    return None


def claimed(environment: Mapping[str, str] = os.environ) -> tuple[int, int]:
    """Returns (rank, size) as the launcher, or `srun` without MPI, counts the processes; (0, 1) for one by itself."""
    return launched_as(environment, (*_VARIABLES, _SRUN)) or (0, 1)


def check_launch(environment: Mapping[str, str] = os.environ) -> None:
    """Raises `LaunchError` if `srun` has started several processes without what MPI needs to join them."""
    if launched_as(environment) is None:
        check_size(1, environment)


def check_size(size: int, environment: Mapping[str, str] = os.environ) -> None:
    """Raises `LaunchError` if MPI has `size` 1 where the launcher has started more processes."""
    _, count = claimed(environment)
    if size == 1 < count:
        raise LaunchError(
            "MPI",
            f"{count} processes were started, but each is an MPI job of one rank; start them with the mpirun of this "
            "MPI, or, where `srun --mpi=list` names it, with srun --mpi=pmix (see slurm/README.md)",
        )


def library_version() -> str:
    """Returns the first line of `MPI.Get_library_version()`; '' where mpi4py finds no MPI library. Does not start MPI:
    a login node may forbid that.
    """
    try:
        from fedmpi.mpi.library import MPI
    except (ImportError, RuntimeError, OSError):
        return ""
    first, *_ = MPI.Get_library_version().strip("\0\n ").splitlines()
    return " ".join(first.split())


def keep_to_this_host(environment: MutableMapping[str, str]) -> None:
    """Leaves networks out if all ranks are on this host, shared memory has room for their messages, and the user has
    chosen no transports (`mpirun --mca btl ...`). To be called before MPI starts. With networks every rank opens a TCP
    port on all interfaces and looks for libfabric's networks for a second.
    """
    size = whole_number(environment, "OMPI_COMM_WORLD_SIZE")
    if size is None or size != whole_number(environment, "OMPI_COMM_WORLD_LOCAL_SIZE") or _TRANSPORTS in environment:
        return
    with contextlib.suppress(OSError):
        disk = os.statvfs(environment.get("OMPI_MCA_btl_sm_backing_directory", "/dev/shm"))
        if disk.f_bavail * disk.f_frsize >= size * _SHARED_BYTES:
            environment[_TRANSPORTS] = "^tcp,ofi"


def _launcher() -> psutil.Process | None:
    """Returns Open MPI's process that has started this rank, maybe through a script; None under another launcher."""
    if _VARIABLES[0][0] in os.environ:
        with contextlib.suppress(psutil.Error):
            return next((parent for parent in psutil.Process().parents() if parent.name() in _OPEN_MPI), None)
    return None


def end_launcher() -> bool:
    """Ends all ranks by a signal to Open MPI's mpirun, which then prints nothing and exits with 1. Returns False under
    another launcher.
    """
    launcher = _launcher()
    if launcher is None:
        return False
    time.sleep(_FORWARD_S)
    with contextlib.suppress(psutil.NoSuchProcess):
        launcher.terminate()
    return True


def code_in_order(rank: int, code: int) -> int:
    """Returns the code for this rank to exit with, at once: 0, and rank 0's code once the others here have ended.

    Open MPI's mpirun prints a block below our own lines if a rank exits with a code while others are alive.
    """
    if rank > 0:
        return 0
    launcher = _launcher()
    if launcher is not None:
        this_rank = {os.getpid(), *(parent.pid for parent in psutil.Process().parents())}
        others = [child for child in launcher.children() if child.pid not in this_rank]
        psutil.wait_procs(others, _OTHERS_END_S)
    return code
