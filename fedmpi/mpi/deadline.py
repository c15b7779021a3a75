"""A limit to what cannot be interrupted: MPI's own start, which holds the interpreter.

Neither a thread nor a signal handler of Python runs meanwhile, so faulthandler's thread ends the process and a child
says why. (A process that is killed instead would not count: where a job outlives its ranks, that is no failure.) The
child also looks after the other ranks on this host: one that has died never comes.
"""

from __future__ import annotations

import faulthandler
import os
import platform
import select
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NoReturn

from fedmpi.mpi.neighbours import Neighbours

_TO_SPEAK_S = 1.0
_LOOKS_EVERY_S = 2.0
# In a row: the launcher may still be starting a rank.
_MOST_MISSES = 3
LONGEST_S = 1e8
"""What the system's timers take; three years."""


@contextmanager
def at_most(limit_s: float, text: str, neighbours: Neighbours | None = None) -> Iterator[Callable[[], object]]:
    """If what happens within takes longer, writes `text` to stderr and ends this process with exit code 1; with
    `neighbours` one for all on this host writes it, and ends the job. So it does if a rank of a job on one host is
    gone, until the yielded function is called: MPI has started, and takes notice of deaths itself.

    It forks, so nothing must run yet that does not outlive that: no MPI, no GPU. 0 is no limit.
    """
    if limit_s <= 0 and neighbours is None:
        yield lambda: None
        return
    limit_s = min(limit_s, LONGEST_S) if limit_s > 0 else LONGEST_S
    read, write = os.pipe()
    child = os.fork()
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
    _say(text)
    time.sleep(2 * _TO_SPEAK_S)  # by then the launcher has passed it on, and knows our parent's exit code
    neighbours.end_job()
    os._exit(0)


def _say(text: str) -> None:
    os.write(2, f"{text}\n".encode(errors="replace"))
