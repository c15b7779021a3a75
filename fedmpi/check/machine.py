"""Says whether this machine, container or allocation is ready for a run, alone or under the launcher of a run."""

import contextlib
import io
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from fedmpi.check import findings
from fedmpi.check.bits import difference
from fedmpi.check.findings import Finding
from fedmpi.check.small import Finished, finished, run_all, small_config
from fedmpi.command.job import repeatable_cublas
from fedmpi.command.manners import describe_failure, say, show
from fedmpi.config.load import load, one_config
from fedmpi.config.schema import Config
from fedmpi.errors import LaunchError, UserError, counted
from fedmpi.mpi.communicator import Communicator, SerialComm
from fedmpi.mpi.launch import check_launch, code_in_order
from fedmpi.mpi.starting import world
from fedmpi.store.files import user_path

_STARTUP_LIMIT_S = 120.0
# Three rounds of 50 ms: a rank that works for longer than this hangs, and ends itself.
_TRIAL_LIMIT_S = 60


def check_machine(words: Sequence[str], rank: int) -> int:
    """Prints the page; returns the exit code, on all ranks. Raises `ConfigError`."""
    config = load(*one_config(words))
    repeatable_cublas()
    try:
        check_launch()
        comm = world(_STARTUP_LIMIT_S)
    except LaunchError as error:  # the ranks do not find each other: rank 0's one problem, for which the others wait
        advice = "see the table of MPI libraries in slurm/README.md"
        finding = Finding("mpi", "problem", "; ".join(error.problems), advice)
        return code_in_order(rank, show_page([finding], is_silent=rank > 0))
    try:
        code = show_page(all_findings(comm, config), is_silent=not comm.is_root)
    except BaseException as error:  # on this rank alone: the others wait for it
        say(describe_failure(error, comm))
        comm.abort(1)
        raise
    return comm.leave(comm.bcast_object(code))


def all_findings(comm: Communicator, config: Config) -> Iterator[Finding]:
    """Yields all of them, in the order of the page; every rank takes all, and those of rank 0 count."""
    seen = findings.see(comm)
    yield findings.software(seen)
    yield findings.mpi(seen)
    yield findings.cores(seen, config.mpi.threads)
    yield findings.gpus(seen, has_driver=Path("/proc/driver/nvidia/version").exists())
    yield findings.run_folder(Path(user_path(config.output.dir)), comm)
    yield same_bits(comm)


def show_page(found: Iterable[Finding], *, is_silent: bool) -> int:
    """Prints the lines as they are found, unless this rank is silent; returns the exit code."""
    states = []
    for finding in found:
        states.append(finding.state)
        if not is_silent:
            show(finding.line())
    num_problems = states.count("problem")
    if not is_silent:
        counts = f"{counted(num_problems, 'problem')}, {counted(states.count('warning'), 'warning')}"
        show(f"{'not ready' if num_problems else 'ready'}: {counts}")
    return 1 if num_problems else 0


def same_bits(comm: Communicator) -> Finding:
    """Makes a small run on all ranks, which all call this, and again in one process, and compares their bits.

    An error of one rank alone is raised there, and the caller ends the job.
    """
    output = io.StringIO()  # of the runs: it is not about the machine
    config = small_config(f"mpi.round_timeout_s={_TRIAL_LIMIT_S}", f"mpi.startup_timeout_s={_TRIAL_LIMIT_S}")
    with contextlib.ExitStack() as stack:
        own = stack.enter_context(tempfile.TemporaryDirectory(prefix="fedmpi-check-"))
        folder = Path(comm.bcast_object(own))
        stack.enter_context(contextlib.redirect_stdout(io.StringIO()))
        stack.enter_context(contextlib.redirect_stderr(output))
        started = time.perf_counter()
        try:
            run_all(config, comm, folder / "together")
        except UserError as error:  # all ranks have it
            print(output.getvalue(), end="", file=sys.__stderr__, flush=True)
            return Finding("same bits", "problem", f"a small run does not start: {error.text()}", "see the lines above")
        took_s = time.perf_counter() - started
        if not comm.is_root:
            return Finding("same bits", "ok", "")
        run_all(config, SerialComm(), folder / "alone")
        return compared(finished(folder / "together"), finished(folder / "alone"), comm.size, took_s)


def compared(together: Finished, alone: Finished, size: int, took_s: float) -> Finding:
    """Returns the finding on two finished runs."""
    if different := difference(together, alone):
        advice = "do not trust results of this installation: compare CPUs, torch builds and variables of all nodes"
        return Finding(
            "same bits", "problem", f"on {counted(size, 'rank')} a run differs from one alone: {different}", advice
        )
    return Finding(
        "same bits", "ok", f"three rounds on {counted(size, 'rank')} in {took_s:.1f} s: the bits of one process alone"
    )
