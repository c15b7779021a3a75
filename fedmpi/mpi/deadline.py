"""A limit to what cannot be interrupted: MPI's own start, which holds the interpreter.

Neither a thread nor a signal handler of Python runs meanwhile, so faulthandler's thread ends the process and a child
says why. (A process that is killed instead would not count: where a job outlives its ranks, that is no failure.)
"""

from __future__ import annotations

import faulthandler
import os
import select
from collections.abc import Iterator
from contextlib import contextmanager

_TO_SPEAK_S = 1.0
LONGEST_S = 1e8
"""What the system's timers take; three years."""


@contextmanager
def at_most(limit_s: float, text: str) -> Iterator[None]:
    """If what happens within takes longer, writes `text` to stderr and ends this process with exit code 1.

    It forks, so nothing must run yet that does not outlive that: no MPI, no GPU. 0 is no limit.
    """
    if limit_s <= 0:
        yield
        return
    limit_s = min(limit_s, LONGEST_S)
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(write)
        # Readable once the other end is closed: because all is well, or because our parent died.
        if not select.select([read], [], [], limit_s)[0]:
            os.write(2, f"{text}\n".encode(errors="replace"))
        os._exit(0)
    os.close(read)
    with open(os.devnull, "w") as nowhere:
        faulthandler.dump_traceback_later(limit_s + _TO_SPEAK_S, exit=True, file=nowhere)
        try:
            yield
        finally:
            faulthandler.cancel_dump_traceback_later()
            os.close(write)
            os.waitpid(child, 0)
