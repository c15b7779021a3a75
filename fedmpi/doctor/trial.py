"""A small run on all ranks, whose bits must be those of the same run in one process."""

from __future__ import annotations

import contextlib
import io
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from fedmpi.check.bits import difference
from fedmpi.check.small import Finished, finished, run_all, small_config
from fedmpi.doctor.finding import Finding, ok, problem
from fedmpi.errors import UserError
from fedmpi.mpi.communicator import Communicator
from fedmpi.mpi.serial import SerialComm

NAME = "same bits"
# Three rounds of 50 ms: a rank that works for longer than this hangs, and ends itself.
_LIMIT_S = 60


def same_bits(comm: Communicator) -> Finding:
    """Every rank calls it; the finding is rank 0's. In one process the run is made twice.

    What fails on one rank alone is raised there, and the caller ends the job.
    """
    with tempfile.TemporaryDirectory(prefix="fedmpi-doctor-") as folder, _saying_nothing() as warned:
        own = Path(comm.allgather_text(folder)[0])
        config = small_config(f"mpi.round_timeout_s={_LIMIT_S}", f"mpi.startup_timeout_s={_LIMIT_S}")
        started = time.perf_counter()
        try:
            run_all(config, comm, own / "together")
        except UserError as error:  # all ranks have it
            print(warned.getvalue(), end="", file=sys.__stderr__, flush=True)
            return problem(NAME, f"a small run does not start: {error.text()}", "see the lines above")
        took_s = time.perf_counter() - started
        if not comm.is_root:
            return ok(NAME, "")
        run_all(config, SerialComm(), own / "alone")
        return compared(finished(own / "together"), finished(own / "alone"), comm.size, took_s)


@contextlib.contextmanager
def _saying_nothing() -> Iterator[io.StringIO]:
    """What the runs print is not about the machine; gives what they print on stderr."""
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()) as warned:
        yield warned


def compared(together: Finished, alone: Finished, ranks: int, took_s: float) -> Finding:
    """The finding on two finished runs."""
    on_all = f"{ranks} ranks" if ranks > 1 else "one process"
    if different := difference(together, alone):
        advice = "do not trust results of this installation: compare CPUs, torch builds and variables of all nodes"
        return problem(NAME, f"a run on {on_all} differs from one alone: {different}", advice)
    twice = "the bits of one process alone" if ranks > 1 else "the same bits twice"
    return ok(NAME, f"three rounds on {on_all} in {took_s:.1f} s: {twice}")
