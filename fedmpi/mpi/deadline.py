"""A limit to what cannot be interrupted: MPI's own start and end, which hold the interpreter.

Neither a thread nor a signal handler of Python runs while they do. So a child process watches: it
ends with its parent, or acts when the time is over.
"""

from __future__ import annotations

import os
import select
import signal
from collections.abc import Callable


def within(limit_s: float, text: str, pid: int, number: signal.Signals) -> Callable[[], None]:
    """Unless what it returns is called within `limit_s`, writes `text` to stderr and sends process `pid` a signal.

    To be called while this process is the only thread that matters: the child only waits, writes and kills.
    """
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(write)
        # Readable when the other end is closed: by who called us off, or by our parent's death.
        if not select.select([read], [], [], limit_s)[0]:
            os.write(2, f"{text}\n".encode(errors="replace"))
            os.kill(pid, number)
        os._exit(0)
    os.close(read)

    def is_over() -> None:
        os.close(write)
        os.waitpid(child, 0)

    return is_over
