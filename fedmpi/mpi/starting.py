"""The communicator of this job, and a limit to MPI's own start, which holds the interpreter.

Neither a thread nor a signal handler of Python runs meanwhile, so a child process ends the job: also where a rank died
before MPI started under `mpirun --with-ft ulfm`, which would let the others wait without limit.
"""

from __future__ import annotations

import os
import platform
import select
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import NoReturn

from fedmpi.mpi.communicator import MAX_LIMIT_S, Communicator, SerialComm
from fedmpi.mpi.launch import check_size, end_launcher, keep_to_this_host, launched_as

# The limits of two ranks are over one after the other, so that one rank prints.
_NEXT_RANK_S = 1.0


def world(limit_s: float = 0.0) -> Communicator:
    """Returns this job's ranks: MPI's if a launcher started us, else this process alone. Where MPI does not start
    within `limit_s` (0: without limit), the job ends. Raises `LaunchError` where MPI knows of one rank only, and the
    launcher has started more.
    """
    launched = launched_as()
    if launched is None:
        return SerialComm()
    rank, _ = launched
    keep_to_this_host(os.environ)
    text = f"fedmpi: rank {rank} on {platform.node()}: MPI did not start within {limit_s:g} s: another rank "
    text += "died or hangs; the job ends: start it again, or set mpi.startup_timeout_s"
    mpi = sys.modules.get("mpi4py.MPI")
    has_started = mpi is not None and mpi.Is_initialized()  # as after an earlier run
    own_limit_s = min(limit_s, MAX_LIMIT_S) + rank * _NEXT_RANK_S
    with at_most(own_limit_s, text) if limit_s > 0 and not has_started else nullcontext():
        from fedmpi.mpi.comm import all_ranks  # starts MPI

        comm = all_ranks()
    check_size(comm.started_size)
    return comm


@contextmanager
def at_most(limit_s: float, text: str) -> Iterator[None]:
    """Prints `text` to stderr and ends the job if the block takes longer. It forks, so nothing must run yet that does
    not outlive that: no MPI, no GPU.
    """
    reading, writing = os.pipe()
    rank_pid = os.getpid()
    guard_pid = os.fork()
    if guard_pid == 0:
        os.close(writing)
        _guard(reading, limit_s, text, rank_pid)
    os.close(reading)
    try:
        yield
    finally:
        os.close(writing)
        os.waitpid(guard_pid, 0)


def _guard(reading: int, limit_s: float, text: str, rank_pid: int) -> NoReturn:
    """Waits until the other end of the pipe closes: the block has ended, or the rank has died."""
    os.setsid()  # a launcher signals all processes of a rank's group, and the rank's own handlers say what there is
    if not select.select([reading], [], [], limit_s)[0]:
        os.write(2, f"{text}\n".encode(errors="replace"))
        if not end_launcher():
            os.kill(rank_pid, signal.SIGKILL)
    os._exit(0)
