"""Which rank this process is, read from what launchers leave in the environment, and what MPI is told there.

Needed before MPI starts: a mistake in a config must be reported by one rank, within seconds, on a
login node that may have no working MPI at all. One table, so that a new launcher is one line.

Also known here: launches that make N jobs of one rank each out of one job of N, which would all run
the same. They are refused.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Mapping, MutableMapping
from dataclasses import dataclass
from pathlib import Path

from fedmpi.errors import LaunchError

# (rank, size) as Open MPI, MPICH / Intel MPI / Slurm's PMI-2, MVAPICH and Cray PALS set them.
_VARIABLES = (
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    ("PMI_RANK", "PMI_SIZE"),
    ("MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_SIZE"),
    ("PALS_RANKID", "PALS_SIZE"),
)
_MOST_RANKS = 2**31 - 1  # MPI counts ranks in a C int
_TRANSPORTS = "OMPI_MCA_btl"
# Twice Open MPI's segment of shared memory for each rank. A container's /dev/shm may be smaller; then TCP is needed.
_SHARED_BYTES = 2 * 16 * 2**20
# More digits than any count or time has, and few enough for `int` and for a float.
_MOST_DIGITS = 18
_PR_SET_PDEATHSIG = 1  # linux/prctl.h


def whole_number(environment: Mapping[str, str], name: str, at_most: int = 10**_MOST_DIGITS) -> int | None:
    """The whole number from 0 to `at_most` that the variable `name` holds; None if it is unset or holds anything else.

    Variables are input like any other. Only ASCII digits count: `int` would also read "+1", "1_000" and the digits of
    other scripts.

    >>> whole_number({"PMI_SIZE": "4"}, "PMI_SIZE"), whole_number({"PMI_SIZE": "4 "}, "PMI_SIZE")
    (4, None)
    """
    text = environment.get(name, "")
    if not (text.isascii() and text.isdecimal() and len(text) <= _MOST_DIGITS):
        return None
    return number if (number := int(text)) <= at_most else None


def launched_as(environment: Mapping[str, str] = os.environ) -> tuple[int, int] | None:
    """(rank, size) if a launcher started this process, else None. A variable that holds no rank is left over from
    something else, and ignored. Raises `LaunchError` where the size that belongs to a rank is no number above it.
    """
    for rank_name, size_name in _VARIABLES:
        if (rank := whole_number(environment, rank_name, _MOST_RANKS)) is None:
            continue
        if size_name not in environment:
            return rank, 1
        size = whole_number(environment, size_name, _MOST_RANKS)
        if size is None or size <= rank:
            raise LaunchError(
                f"environment variable {size_name}",
                f"is {environment[size_name]!r}, and must be a whole number above {rank_name}, which is {rank}; "
                "start the ranks with mpirun, or unset both variables",
            )
        return rank, size
    if (rank := whole_number(environment, "PMIX_RANK", _MOST_RANKS)) is None:
        return None
    # PMIx itself names no size. Slurm's is that of another launcher if the rank does not fit.
    size = whole_number(environment, "SLURM_STEP_NUM_TASKS", _MOST_RANKS) or 1
    return rank, size if size > rank else 1


def claimed(environment: Mapping[str, str] = os.environ) -> tuple[int, int]:
    """(rank, size) as the launcher, or Slurm's `srun` alone, counts the processes; (0, 1) for a process by itself.
    Raises `LaunchError` as `launched_as` does.
    """
    return launched_as(environment) or _of_slurm_step(environment) or (0, 1)


def check_launch(environment: Mapping[str, str] = os.environ) -> None:
    """Raises `LaunchError` if `srun` has started several processes without what MPI needs to join them."""
    if launched_as(environment) is None:
        check_size(1, environment)


def check_size(size: int, environment: Mapping[str, str] = os.environ) -> None:
    """Raises `LaunchError` if MPI has `size` 1 where the launcher has started more processes."""
    count = claimed(environment)[1]
    if size == 1 < count:
        raise LaunchError(
            "MPI",
            f"{count} processes were started, but each is an MPI job of one rank; start them with the mpirun of this "
            "MPI, or, where `srun --mpi=list` names it, with srun --mpi=pmix (see slurm/README.md)",
        )


def outlives_ranks(environment: Mapping[str, str] = os.environ) -> bool:
    """Whether the job was started to outlive its ranks: `mpirun --with-ft ulfm`."""
    return environment.get("OMPI_MCA_mpi_ft_enable", "").lower() in ("1", "true", "yes", "enabled")


def _of_slurm_step(environment: Mapping[str, str]) -> tuple[int, int] | None:
    """A batch script's own shell is in no step. What makes no sense is left over: Slurm itself sets both variables."""
    rank, size = (whole_number(environment, name, _MOST_RANKS) for name in ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS"))
    return (rank, size) if rank is not None and size is not None and rank < size else None


def keep_to_this_host(environment: MutableMapping[str, str]) -> None:
    """Before MPI starts: leaves networks out if all ranks are here, shared memory has room for their messages, and
    the user has chosen no transports (`mpirun --mca btl ...`). With networks every rank opens a TCP port on all
    interfaces and looks for libfabric's networks for a second, even if all messages go through shared memory.
    """
    names = ("OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE")
    size, here = (whole_number(environment, name) for name in names)
    if size is None or size != here or _TRANSPORTS in environment:
        return
    try:
        disk = os.statvfs(environment.get("OMPI_MCA_btl_sm_backing_directory", "/dev/shm"))
    except OSError:
        return
    if disk.f_bavail * disk.f_frsize >= size * _SHARED_BYTES:
        environment[_TRANSPORTS] = "^tcp,ofi"


def end_with_parent() -> None:
    """From here on the kernel kills this process when the one that started it ends (on Linux; elsewhere nothing)."""
    if not sys.platform.startswith("linux"):
        return
    import ctypes  # takes a while to load, and few commands come here

    parent = os.getppid()
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it has ended in between
        os.kill(os.getpid(), signal.SIGKILL)


@dataclass(frozen=True)
class Launcher:
    """The process that started this one (mpirun, or its daemon on this node), and no later one of its number."""

    pid: int
    started: str
    """The clock tick of its start; empty where /proc does not tell."""

    @classmethod
    def of_this_process(cls) -> Launcher:
        try:
            return cls(os.getppid(), stat_of(os.getppid())[19])
        except (OSError, IndexError):
            return cls(os.getppid(), "")

    def end_after(self, delay_s: float) -> None:
        """Sends it SIGTERM then, if it is still there: from a shell, which outlives this process."""
        import subprocess  # as above

        if self.pid <= 1 or not self.started:
            return
        start = f"$(sed 's/.*) //' /proc/{self.pid}/stat | cut -d ' ' -f 20)"
        words = ["sh", "-c", f'sleep {delay_s:g}; [ "{start}" = {self.started} ] && kill {self.pid}']
        nothing = subprocess.DEVNULL
        subprocess.Popen(words, start_new_session=True, stdin=nothing, stdout=nothing, stderr=nothing)


def stat_of(pid: int) -> list[str]:
    """What /proc says of a process, from its state on: [1] is its parent, [19] the clock tick of its start. Raises
    `OSError` where /proc does not tell. The name before these words, in parentheses, may hold anything.
    """
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
