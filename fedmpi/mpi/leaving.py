"""The end of the program: together, soon, and not for ever where a rank does not come.

The ranks meet asleep, end MPI, run what is registered for their end (`atexit`), and are gone. Python would take its
modules apart instead, which with torch is a second of work for each rank: half a minute for 40 ranks on two cores.

A job that may have lost ranks must not end as programs do: MPI_Finalize can wait for the dead for ever. Nor may
a rank leave before all that are left are here: the launcher may end the job with the first, and rank 0 may be
saving. All is saved by then, so a rank that waits too long for one that hangs ends the job, with the exit code that it
has anyway.

A rank that fails sends its exit code to every other. Each of these finds the message where it waits, or at its next
step of training, and sends one, too. A rank that has all messages knows that all ranks have left the round, and ends
MPI. What was under way between them stays as it is. MPI_Abort would do without this, but MPI and launcher print a dozen
lines below the one that matters.
"""

from __future__ import annotations

import atexit
import contextlib
import faulthandler
import os
import sys
import threading
import time
from typing import Any, NoReturn

import numpy as np

from fedmpi.errors import RankLossError
from fedmpi.mpi.communicator import Communicator
from fedmpi.mpi.in_turn import code_in_turn
from fedmpi.mpi.library import MPI
from fedmpi.mpi.starting import LONGEST_S

ENDS = 1
"""The tag of the message of a rank that ends early; all else that travels is collectives."""
# For the others to find it: a rank looks where it waits and between steps of training.
_COME_S = 10.0
_LOOKS_EVERY_S = 5e-3


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


def leave_after_failure(mpi: Any, own_code: int) -> None:
    """On a rank that has failed, or (with code 0) has found that another has: ends the process with the largest code
    once all ranks are here. Returns where they do not come; the rank that failed gives up first, and says so.
    """
    patience_s = _COME_S if own_code else 2 * _COME_S
    with contextlib.suppress(MPI.Exception):
        if (code := _told(mpi, own_code, patience_s)) is not None:
            rank = mpi.Get_rank()
            _finalize(patience_s)
            atexit._run_exitfuncs()
            _exit(code_in_turn(rank, code))
    if own_code:
        with contextlib.suppress(OSError):
            os.write(2, b"fedmpi: not all ranks could be told, so MPI ends them; what follows is its own text\n")


def _told(mpi: Any, code: int, patience_s: float) -> int | None:
    """Tells every other rank and hears from each of them: the largest code. None if one does not answer in time."""
    rank, missing = mpi.Get_rank(), {*range(mpi.Get_size())}
    missing.discard(rank)
    sent, received = np.array([code], np.int32), np.zeros(1, np.int32)
    requests = [mpi.Isend(sent, other, ENDS) for other in sorted(missing)]
    over, status = time.monotonic() + patience_s, MPI.Status()
    while missing or not MPI.Request.Testall(requests):
        if missing and mpi.Iprobe(tag=ENDS, status=status):
            mpi.Recv(received, status.Get_source(), ENDS)
            missing.discard(status.Get_source())
            code = max(code, int(received[0]))
        elif time.monotonic() > over:
            return None
        else:
            time.sleep(_LOOKS_EVERY_S)
    return code


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
        os.write(2, b"fedmpi: not all ranks come to the end, so this rank ends the job\n")
    comm.end_all()
    _exit(code)


def _exit(code: int) -> NoReturn:
    for stream in filter(None, (sys.stdout, sys.stderr)):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    os._exit(code)
