"""The end of the program: together, soon, and not for ever where a rank does not come.

The ranks meet asleep, end MPI, run what is registered for their end (`atexit`), and are gone. Python would take its
modules apart instead, which with torch is a second of work for each rank: half a minute for 40 ranks on two cores.

A job that outlives its ranks skips MPI's own end, which can wait for the dead for ever.
"""

from __future__ import annotations

import atexit
import contextlib
import faulthandler
import os
import sys
import threading
from typing import NoReturn

from fedmpi.errors import FAILED, RankLossError
from fedmpi.mpi.communicator import Communicator
from fedmpi.mpi.launch import code_in_order
from fedmpi.mpi.library import MPI
from fedmpi.mpi.starting import MAX_LIMIT_S


def leave(comm: Communicator, code: int) -> NoReturn:
    """Ends the process with this exit code, on all ranks. A rank that waits for longer than `comm.patience_s` for one
    that hangs ends the job with another code.
    """
    limit_s = min(comm.patience_s, MAX_LIMIT_S)
    if comm.recovers:
        _meet_survivors(comm, limit_s)
    else:
        _meet_and_end_mpi(comm, limit_s)
        code = code and code_in_order(comm.rank, code)
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError, AttributeError):  # it is full, or closed
            stream.flush()
    os._exit(code)


def _meet_and_end_mpi(comm: Communicator, limit_s: float) -> None:
    # MPI's own end holds the interpreter, so no thread of Python could set the limit. It prints where the rank waits.
    faulthandler.dump_traceback_later(limit_s, exit=True, file=2)
    comm.wait_for_all()
    MPI.Finalize()
    faulthandler.cancel_dump_traceback_later()


def _meet_survivors(comm: Communicator, limit_s: float) -> None:
    """Waits for all that are left, because the launcher may end the job with the first exit code."""
    hurry = threading.Timer(limit_s, _give_up, [comm])
    hurry.daemon = True
    hurry.start()
    while True:
        try:
            return comm.agree()
        except RankLossError:
            comm.recover()


def _give_up(comm: Communicator) -> None:
    os.write(2, b"fedmpi: not all ranks come to the end, so this rank ends the job\n")
    comm.abort(FAILED)
