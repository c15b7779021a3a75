"""The communicator of this job, and a limit to MPI's own start."""

import faulthandler
import os

from fedmpi.mpi.communicator import MAX_LIMIT_S, Communicator, SerialComm
from fedmpi.mpi.launch import check_size, keep_to_this_host, launched_as


def world(limit_s: float = 0.0) -> Communicator:
    """Returns this job's ranks: MPI's if a launcher started us, else this process alone.

    Where MPI does not start within `limit_s` (0: without limit), because another rank has died or hangs, the rank
    prints where it waits and ends. Raises `LaunchError` where MPI knows of one rank only, and the launcher has started
    more.
    """
    if launched_as() is None:
        return SerialComm()
    keep_to_this_host(os.environ)
    if limit_s > 0:
        # MPI's own start holds the interpreter, so neither a thread nor a signal handler of Python could set the limit.
        faulthandler.dump_traceback_later(min(limit_s, MAX_LIMIT_S), exit=True, file=2)
    from fedmpi.mpi.comm import all_ranks  # starts MPI

    comm = all_ranks()
    faulthandler.cancel_dump_traceback_later()
    check_size(comm.started_size)
    return comm
