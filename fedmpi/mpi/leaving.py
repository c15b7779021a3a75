"""The end of the program: together, soon, and not for ever where a rank does not come.

The ranks meet asleep, end MPI, run what is registered for their end (`atexit`), and are gone. Python would take its
modules apart instead, which with torch is a second of work for each rank: half a minute for 40 ranks on two cores.

A job that may have lost ranks must not end as programs do: MPI_Finalize can wait for the dead for ever. Nor may
a rank leave before all that are left are here: the launcher may end the job with the first, and rank 0 may be
saving. All is saved by then, so a rank that waits too long for one that hangs ends the job, with the exit code that it
has anyway.
"""

from __future__ import annotations

import atexit
import contextlib
import faulthandler
import os
import sys
import threading
from typing import NoReturn

from fedmpi.errors import RankLossError
from fedmpi.mpi.communicator import Communicator
from fedmpi.mpi.in_turn import code_in_turn
from fedmpi.mpi.library import MPI
from fedmpi.mpi.starting import LONGEST_S


def leave(comm: Communicator, code: int, patience_s: float) -> NoReturn:
    """On all ranks: ends the process with this exit code."""
    limit_s = min(patience_s, LONGEST_S)
    if comm.recovers:
        _meet_those_left(comm, code, limit_s)
        atexit._run_exitfuncs()
    else:
        _meet(comm, code)
        _finalize(limit_s)
        atexit._run_exitfuncs()
        code = code and code_in_turn(comm.rank, code)
    _exit(code)


def _meet(comm: Communicator, code: int) -> None:
    """Waits for all ranks; a rank that waits here sleeps, and can still be interrupted."""
    try:
        comm.wait_for_all()
    except TimeoutError:
        _leave_others(comm, code or 1)  # with a code, so that the launcher ends them


def _meet_those_left(comm: Communicator, code: int, limit_s: float) -> None:
    hurry = threading.Timer(limit_s, lambda: _leave_others(comm, code))
    hurry.daemon = True
    hurry.start()
    try:
        while True:
            try:
                return comm.agree()
            except RankLossError:
                comm.recover()
    except (MPI.Exception, TimeoutError):
        _leave_others(comm, code)


def _finalize(limit_s: float) -> None:
    """MPI's own end, which holds the interpreter: no thread of Python would run meanwhile."""
    with open(os.devnull, "w") as nowhere:
        faulthandler.dump_traceback_later(limit_s, exit=True, file=nowhere)
        MPI.Finalize()
        faulthandler.cancel_dump_traceback_later()


def _leave_others(comm: Communicator, code: int) -> NoReturn:
    with contextlib.suppress(OSError):
        os.write(2, b"fedmpi: all is saved, but not all ranks come to the end; the job ends\n")
    comm.end_all()
    _exit(code)


def _exit(code: int) -> NoReturn:
    for stream in filter(None, (sys.stdout, sys.stderr)):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    os._exit(code)
