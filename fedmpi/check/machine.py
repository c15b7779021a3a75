"""Says whether this machine, container or allocation is ready for a run, alone or under the launcher of a run."""

from __future__ import annotations

import contextlib
import io
import json
import os
import sys
import tempfile
import time
from argparse import Namespace
from collections.abc import Iterator, Mapping
from pathlib import Path

from fedmpi.check import ranks, run_folder
from fedmpi.check.bits import difference
from fedmpi.check.finding import Finding, as_json, is_ready, ok, problem, verdict, warning
from fedmpi.check.small import Finished, finished, run_all, small_config
from fedmpi.command.manners import described, say, show
from fedmpi.config.load import load, one_config
from fedmpi.errors import LaunchError, UserError
from fedmpi.mpi.communicator import Communicator
from fedmpi.mpi.in_turn import SILENT_S, code_in_turn
from fedmpi.mpi.launch import check_launch
from fedmpi.mpi.serial import SerialComm
from fedmpi.mpi.starting import world
from fedmpi.running.stopping import seconds_left

_STARTUP_LIMIT_S = 120.0
_SHORT_S = 600.0
# Three rounds of 50 ms: a rank that works for longer than this hangs, and ends itself.
_TRIAL_LIMIT_S = 60


def check_machine(arguments: Namespace, rank: int) -> int:
    """Prints the page; returns the exit code, on all ranks. Raises `ConfigError`."""
    config = load(*one_config(arguments.words))
    folder = arguments.run_dir or Path(config.output.dir)
    # As for a run: with these, cuBLAS gives the same bits in every run.
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    try:
        check_launch()
        ranks.check_launcher(os.environ)
        comm = world(_STARTUP_LIMIT_S)
    except LaunchError as error:
        return _without_mpi(arguments, rank, error)
    try:
        page = Page(comm, as_json=arguments.json)
        for finding in findings(comm, folder):
            page.add(finding)
        code = page.close()
    except BaseException as error:  # on this rank alone: the others wait for it
        say(described(error, comm))
        comm.abort(1)
        raise
    return comm.leave(int(comm.allgather_text(str(code))[0]))


class Page:
    """Prints, on rank 0 alone: lines as they are found, or all of them as JSON at the end."""

    def __init__(self, comm: Communicator, *, as_json: bool) -> None:
        self._is_silent = not comm.is_root
        self._size = comm.size
        self._as_json = as_json
        self._findings: list[Finding] = []

    def add(self, finding: Finding) -> None:
        self._findings.append(finding)
        if not self._is_silent and not self._as_json:
            show(finding.line())

    def close(self) -> int:
        """Prints the end; returns the exit code."""
        if not self._is_silent:
            text = json.dumps(as_json(self._findings, self._size), indent=2) if self._as_json else None
            show(text or verdict(self._findings))
        return 0 if is_ready(self._findings) else 1


def findings(comm: Communicator, folder: Path) -> Iterator[Finding]:
    """Yields all of them, in the order of the page; every rank takes all, and those of rank 0 count."""
    seen = ranks.see(comm)
    yield ranks.software(seen)
    yield ranks.mpi_library(seen)
    yield ranks.launcher(seen, os.environ, ranks.first_line(["mpirun", "--version"]) if comm.is_root else "")
    yield ranks.cores(seen, ranks.container_quota())
    yield ranks.gpus(seen, has_driver=Path("/proc/driver/nvidia/version").exists())
    if comm.is_root:
        yield from run_folder.findings(folder)
    if (finding := run_folder.shared(folder, comm)) is not None:
        yield finding
    yield time_limit(os.environ, time.time())
    yield same_bits(comm)


def _without_mpi(arguments: Namespace, rank: int, error: LaunchError) -> int:
    """Prints the page where the ranks do not find each other: rank 0's one problem, for which the others wait."""
    if rank > 0:
        return code_in_turn(rank, 1, SILENT_S)
    page = Page(SerialComm(), as_json=arguments.json)
    page.add(problem("launcher", "; ".join(error.problems), "see the table of MPI libraries in slurm/README.md"))
    return code_in_turn(rank, page.close())


def time_limit(environment: Mapping[str, str], now_s: float) -> Finding:
    """Finds the end of the batch job, where Slurm says it."""
    left_s = seconds_left(0.0, environment, now_s)
    job = environment.get("SLURM_JOB_ID", "")
    if left_s is None:
        unknown = f"job {job}; its end is not known here (slurm/life_cycle.sh asks squeue)"
        return ok("time limit", unknown if job else "none: in no batch job")
    found = f"{left_s / 60:.0f} min of job {job} are left"
    if left_s <= 0:
        advice = "unset SLURM_JOB_END_TIME: it is that of another job, and a run would stop after one round"
        return problem("time limit", f"SLURM_JOB_END_TIME was {-left_s / 60:.0f} min ago", advice)
    if left_s < _SHORT_S:
        return warning("time limit", found, "ask for more time, or submit slurm/job.sbatch, whose run continues")
    return ok("time limit", found)


def same_bits(comm: Communicator) -> Finding:
    """Makes a small run on all ranks, which all call this, and again in one process, and compares their bits.

    An error of one rank alone is raised there, and the caller ends the job.
    """
    output = io.StringIO()  # of the runs: it is not about the machine
    silent = contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(output)
    with tempfile.TemporaryDirectory(prefix="fedmpi-check-") as own, silent[0], silent[1]:
        folder = Path(comm.allgather_text(own)[0])
        limits = f"mpi.round_timeout_s={_TRIAL_LIMIT_S}", f"mpi.startup_timeout_s={_TRIAL_LIMIT_S}"
        config = small_config(*limits)
        started = time.perf_counter()
        try:
            run_all(config, comm, folder / "together")
        except UserError as error:  # all ranks have it
            print(output.getvalue(), end="", file=sys.__stderr__, flush=True)
            return problem("same bits", f"a small run does not start: {error.text()}", "see the lines above")
        took_s = time.perf_counter() - started
        if not comm.is_root:
            return ok("same bits", "")
        run_all(config, SerialComm(), folder / "alone")
        return compared(finished(folder / "together"), finished(folder / "alone"), comm.size, took_s)


def compared(together: Finished, alone: Finished, size: int, took_s: float) -> Finding:
    """Returns the finding on two finished runs."""
    on_all = f"{size} ranks" if size > 1 else "one process"
    if different := difference(together, alone):
        advice = "do not trust results of this installation: compare CPUs, torch builds and variables of all nodes"
        return problem("same bits", f"a run on {on_all} differs from one alone: {different}", advice)
    twice = "the bits of one process alone" if size > 1 else "the same bits twice"
    return ok("same bits", f"three rounds on {on_all} in {took_s:.1f} s: {twice}")
