"""The order in which ranks end where a job ends with an exit code: the others first, with 0, then rank 0 with the code.

Below all that the ranks have said, Open MPI's mpirun prints a block of its own where a rank exits with a code while
others are alive; with this order it prints nothing, and its exit code is rank 0's (5.0.11, tried with 2 to 8 ranks).
Rank 0 sees the others end only where all are on one host; over several hosts the block stays.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable
from pathlib import Path

from fedmpi.mpi.launch import stat_of
from fedmpi.mpi.neighbours import Neighbours

SILENT_S = 3.0
"""For ranks that leave it to rank 0 to print: the launcher ends all ranks as soon as one exits with an error."""
# The launcher's own folder for this job on this host, which it removes.
_FOLDER = "PMIX_SERVER_TMPDIR"
# The names of notes there end in a process number: one mpirun may run a script of several commands.
_WAITS, _ENDS = "fedmpi-waits-", "fedmpi-ends-"
_PATIENCE_S = 10.0
_LOOKS_EVERY_S = 0.02
_NOTICED_S = 0.1


def code_in_turn(rank: int, code: int, silent_s: float = 0.0) -> int:
    """The code that this rank is to exit with, now; every rank of the job calls it.

    Rank 0 returns when the others have ended, or after 10 s: they may not have met what rank 0 has met. The others
    return 0 when rank 0 is here, too; if it does not come, they return the code, which ends the job. Where they cannot
    see each other, all return the code, and rank 0 before the others, which wait `silent_s`.
    """
    job = Neighbours.of_this_process()
    folder = os.environ.get(_FOLDER, "")
    if job is None or job.here != job.size or not folder:
        if rank > 0:
            time.sleep(silent_s)
        return code
    if rank > 0:
        return 0 if _may_end(Path(folder)) else code
    with contextlib.suppress(OSError, ValueError):  # without notes the others stay
        _let_others_end(Path(folder), job)
        time.sleep(_NOTICED_S)  # so that the launcher has noted it, too
    return code


def _may_end(folder: Path) -> bool:
    """Whether rank 0 has answered the note that this rank waits. Raises no error: without notes it has not."""
    with contextlib.suppress(OSError):
        (folder / f"{_WAITS}{os.getpid()}").touch()
        return _becomes(lambda: os.path.exists(folder / f"{_ENDS}{os.getpid()}"))
    return False


def _let_others_end(folder: Path, job: Neighbours) -> None:
    """Answers every rank that waits, until the others have ended. Raises OSError."""
    started = job.alive()
    answered: list[int] = []

    def have_ended() -> bool:
        for pid in (int(note.name.removeprefix(_WAITS)) for note in folder.glob(f"{_WAITS}*")):
            if pid not in answered and _is_alive(pid):
                (folder / f"{_ENDS}{pid}").touch()
                answered.append(pid)
        if any(map(_is_alive, answered)):
            return False
        others = [pid for rank, pid in (started or {}).items() if rank != job.rank]
        return len(answered) == job.size - 1 or (started is not None and not any(map(_is_alive, others)))

    _becomes(have_ended)


def _is_alive(pid: int) -> bool:
    try:
        return stat_of(pid)[0] != "Z"  # ended, and its parent has not asked yet
    except (OSError, IndexError):
        return False


def _becomes(is_so: Callable[[], bool]) -> bool:
    until = time.monotonic() + _PATIENCE_S
    while not (found := is_so()) and time.monotonic() < until:
        time.sleep(_LOOKS_EVERY_S)
    return found
