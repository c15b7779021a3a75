"""The communicator of this job, and a limit to MPI's own start, which holds the interpreter.

Neither a thread nor a signal handler of Python runs meanwhile, so faulthandler's thread ends the process and a child
says why. (A process that is killed instead would not count: where a job outlives its ranks, that is no failure.)

Under `mpirun --with-ft ulfm` a rank may die meanwhile, and the others would wait for it without limit. The child sees
that in /proc (`neighbours`).
"""

from __future__ import annotations

import contextlib
import faulthandler
import os
import platform
import select
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NoReturn

from fedmpi.mpi.communicator import Communicator
from fedmpi.mpi.launch import check_size, keep_to_this_host, launched_as, outlives_ranks
from fedmpi.mpi.neighbours import Neighbours
from fedmpi.mpi.serial import SerialComm

_TO_SPEAK_S = 1.0
_ENDING = (signal.SIGINT, signal.SIGTERM)
_LOOKS_EVERY_S = 2.0
# In a row: the launcher may still be starting a rank.
_MOST_MISSES = 3
LONGEST_S = 1e8
"""What the system's timers take; three years."""


def world(limit_s: float = 0.0) -> Communicator:
    """This job's ranks: MPI's if a launcher started us, else this process alone. Raises `LaunchError` where MPI knows
    of one rank only, and the launcher has started more. Where MPI does not start within `limit_s` (0: without limit),
    because a rank died before it or hangs, this process ends itself; where the job outlives its ranks and is on one
    host, a rank that died then ends the job at once. MPI that this process has started before, as for another run, is
    there at once.
    """
    if (launched := launched_as()) is None:
        return SerialComm()
    if _has_started():
        return _all_ranks()
    text = f"fedmpi: rank {launched[0]} on {platform.node()}: MPI did not start within {limit_s:g} s: another rank "
    text += "died or hangs; start again, or set mpi.startup_timeout_s"
    keep_to_this_host(os.environ)
    neighbours = Neighbours.of_this_process() if outlives_ranks() else None  # else the job ends with its ranks anyway
    with at_most(limit_s, text, neighbours) as has_started:
        return _all_ranks(has_started)


def _has_started() -> bool:
    """Whether MPI runs in this process; it can be started once only."""
    if "mpi4py.MPI" not in sys.modules:
        return False
    from fedmpi.mpi.library import MPI

    return bool(MPI.Is_initialized())


def _all_ranks(has_started: Callable[[], object] = lambda: None) -> Communicator:
    from fedmpi.mpi.comm import all_ranks  # starts MPI

    has_started()
    comm = all_ranks()
    check_size(comm.started_size)
    return comm


@contextmanager
def at_most(limit_s: float, text: str, neighbours: Neighbours | None = None) -> Iterator[Callable[[], object]]:
    """If what happens within takes longer, writes `text` to stderr and ends this process with exit code 1; with
    `neighbours` one for all on this host writes it, and ends the job. So it does if a rank of a job on one host is
    gone, until the yielded function is called: MPI has started, and takes notice of deaths itself. It forks, so nothing
    must run yet that does not outlive that: no MPI, no GPU. 0 is no limit.
    """
    if limit_s <= 0 and neighbours is None:
        yield lambda: None
        return
    limit_s = min(limit_s, LONGEST_S) if limit_s > 0 else LONGEST_S
    read, write = os.pipe()
    child = _silent_fork()
    if child == 0:
        os.close(write)
        _guard(read, limit_s, text, neighbours)
    os.close(read)
    with open(os.devnull, "w") as nowhere:
        faulthandler.dump_traceback_later(limit_s + _TO_SPEAK_S, exit=True, file=nowhere)
        try:
            yield lambda: os.write(write, b".")
        finally:
            faulthandler.cancel_dump_traceback_later()
            os.close(write)
            os.waitpid(child, 0)


def _silent_fork() -> int:
    """`os.fork`, with a child that SIGINT and SIGTERM end without a word. A launcher sends them to all processes of a
    rank, and the handlers of the rank's own process say what there is to say.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _ENDING)
    try:
        child = os.fork()
        for number in _ENDING if child == 0 else ():
            signal.signal(number, signal.SIG_DFL)
        return child
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _guard(read: int, limit_s: float, text: str, neighbours: Neighbours | None) -> NoReturn:
    """The child's work. The other end of the pipe closes when all is well, or when our parent died."""
    over, misses, watches = time.monotonic() + limit_s, 0, neighbours is not None
    while (left_s := over - time.monotonic()) > 0:
        if select.select([read], [], [], min(left_s, _LOOKS_EVERY_S) if watches else left_s)[0]:
            if not os.read(read, 1):
                os._exit(0)
            watches = False
        elif watches and neighbours is not None and (alive := neighbours.alive()) is not None:
            misses = misses + 1 if neighbours.lost(alive) else 0
            if misses >= _MOST_MISSES and neighbours.rank == min(alive):
                ranks = ", ".join(map(str, sorted(neighbours.lost(alive))))
                lost = f"fedmpi: lost rank {ranks} on {platform.node()} before MPI had started"
                _end(neighbours, f"{lost}; the job ends: start it again")
    alive = neighbours.alive() if neighbours else None
    if neighbours is None or alive is None:
        _say(text)
    elif neighbours.rank == min(alive):
        _end(neighbours, f"{text}; alive on this host: rank {', '.join(map(str, sorted(alive)))}")
    os._exit(0)


def _end(neighbours: Neighbours, text: str) -> NoReturn:
    """Says it, and asks the launcher to end the job."""
    _say(text)
    time.sleep(2 * _TO_SPEAK_S)  # by then the launcher has passed it on, and knows our parent's exit code
    with contextlib.suppress(OSError):  # the launcher has ended
        os.kill(neighbours.launcher, signal.SIGTERM)
    os._exit(0)


def _say(text: str) -> None:
    os.write(2, f"{text}\n".encode(errors="replace"))
