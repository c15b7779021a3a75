"""What bits depend on beside the config and the data: the code, its packages, the CPU, the GPU, a few variables.

The ranks of a start compare theirs with each other, a resumed run compares its own with those in the checkpoint, and
the source of what is not built in (`brought`) with what the manifest notes of its last start.
"""

from __future__ import annotations

import contextlib
import functools
import importlib.metadata
import json
import os
import platform
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any

import torch

import fedmpi
from fedmpi import registry
from fedmpi.config.schema import NAMED_SECTIONS, Config
from fedmpi.errors import one_line
from fedmpi.mpi.communicator import Communicator
from fedmpi.mpi.placement import Device
from fedmpi.store import manifest
from fedmpi.store.files import DIGEST_BYTES, read_bytes
from fedmpi.store.run_dir import RunDir

# MPI and HDF5 only move and store numbers, so their versions are not compared.
_DEVICES = ("cpu", "device", "server_device", "gpu")
COMPARED = ("fedmpi", "python", "torch", "torchvision", "numpy", "libc", *_DEVICES, "environment")
# Variables that choose other kernels on the same machine. Measured with torch 2.15 on an AVX-512 CPU: MKL_CBWR changes
# a matrix product, DNNL_MAX_CPU_ISA a convolution; numbers of threads change nothing, because `mpi.threads` sets them.
# ATEN_CPU_CAPABILITY is part of "cpu".
VARIABLES = (
    "MKL_CBWR",
    "MKL_ENABLE_INSTRUCTIONS",
    "MKL_DEBUG_CPU_TYPE",
    "OPENBLAS_CORETYPE",
    "NPY_DISABLE_CPU_FEATURES",
    "ONEDNN_MAX_CPU_ISA",
    "DNNL_MAX_CPU_ISA",
    "ONEDNN_DEFAULT_FPMATH_MODE",
    "DNNL_DEFAULT_FPMATH_MODE",
)
GPU_VARIABLES = ("CUBLAS_WORKSPACE_CONFIG", "NVIDIA_TF32_OVERRIDE", "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE")
_MOST_CHARACTERS = 100
_MAX_SOURCE_BYTES = 2**27


def computed_with(worker_device: str, server_device: str, device: Device) -> dict[str, str]:
    """What this rank computes with: `COMPARED`, and the versions of other packages. Takes some 10 ms."""
    variables = VARIABLES + (GPU_VARIABLES if device.has_gpu else ())
    found = {
        **{name: version for name, version in manifest.versions().items() if name != "torchvision"},
        "fedmpi": f"{fedmpi.__version__} (code {_digest_of_code(Path(fedmpi.__file__).parent)})",
        "libc": " ".join(platform.libc_ver()),
        "cpu": f"{_cpu_model()} ({torch.backends.cpu.get_cpu_capability()})",
        "device": worker_device,
        "server_device": server_device,
        "environment": " ".join(f"{name}={os.environ[name]}" for name in variables if name in os.environ),
    }
    if "torchvision" in sys.modules:  # where the model is one of its
        found["torchvision"] = importlib.metadata.version("torchvision")
    if device.has_gpu:
        found["gpu"] = _gpu(device)
    return found


@functools.cache
def _digest_of_code(folder: Path) -> str:
    """The digest of all modules in `folder`, computed once: a version number says nothing of a checkout."""
    state = blake2b(digest_size=4)
    for path in sorted(folder.rglob("*.py")):
        state.update(f"{path.relative_to(folder)}\0".encode() + path.read_bytes())
    return state.hexdigest()


def _cpu_model() -> str:
    """Libraries choose kernels and block sizes by more than the instruction set that torch reports."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        lines = []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.machine())


def _gpu(device: Device) -> str:
    used = device.train if device.train != "cpu" else device.server
    cudnn: Callable[[], int | None] = torch.backends.cudnn.version
    libraries = f"CUDA {torch.version.cuda}, cuDNN {cudnn()}"
    return f"{torch.cuda.get_device_name(used)} ({libraries})"


def changes(then: Mapping[str, str], now: Mapping[str, str]) -> str:
    """A warning if `now` gives other bits than `then`, with all that differs; empty if nothing does. What only one of
    them has is left out: older versions recorded less.
    """
    names = [name for name in COMPARED if name in then and name in now and _telling(name, then) != _telling(name, now)]
    if not names:
        return ""
    before, after = (", ".join(f"{name} {_short(side[name])}" for name in names) for side in (then, now))
    return one_line(f"begun with {before}; continuing with {after}: bits may differ from now on")


def _telling(name: str, found: Mapping[str, str]) -> str:
    """The last number of Python's version changes no results."""
    return str(found[name]).rpartition(".")[0] if name == "python" else str(found[name])


def _short(value: object) -> str:
    return str(value)[:_MOST_CHARACTERS] or "(nothing set)"


def brought(config: Config) -> dict[str, Any]:
    """What the manifest notes: an entry for each section that names something not built in; empty if none does."""
    found = {section: _source(section, getattr(config, section).name) for section in NAMED_SECTIONS}
    found = {section: entry for section, entry in found.items() if entry}
    return {manifest.BROUGHT: found} if found else {}


def _source(section: str, name: str) -> dict[str, str]:
    """The file of the module that defines what `name` means, its digest, and the distribution it is installed by. Empty
    for a built-in name. A module without a file has no `file` and no `digest`.
    """
    if registry.is_built_in(section, name):
        return {}
    found = registry.made(section, name)
    entry = {"name": name, "module": str(getattr(found, "__module__", name.partition(":")[0]))}
    if file := getattr(sys.modules.get(entry["module"]), "__file__", None):
        entry["file"] = file
        with contextlib.suppress(OSError):
            entry["digest"] = blake2b(read_bytes(file, _MAX_SOURCE_BYTES), digest_size=DIGEST_BYTES).hexdigest()
    top = entry["module"].partition(".")[0]
    installed = _distributions().get(top, [])
    if installed:
        entry["distribution"] = f"{installed[0]} {importlib.metadata.version(installed[0])}"
    return entry


# Reads the files of every installed package, once.
_distributions = functools.cache(importlib.metadata.packages_distributions)


def changed_sources(run_dir: RunDir, config: Config) -> str:
    """One line about sources that are not those of the run's last start; empty if they are, or are not known."""
    told = unlike_sources(manifest.brought(run_dir), config)
    if not told:
        return ""
    return f"the source of {' and of '.join(told)} has changed since the last start; the rounds from here on may differ"


def unlike_sources(before: Mapping[str, Mapping[str, Any]], config: Config) -> list[str]:
    """What of a config is not built in and has another source than `before` (as `manifest.brought` has it) knows."""
    return [
        f"{section} {entry['name']} ({entry.get('file', entry['module'])})"
        for section, entry in brought(config).get(manifest.BROUGHT, {}).items()
        if before.get(section, {}).get("digest") not in (None, entry.get("digest"))
    ]


@dataclass(frozen=True)
class Gathered:
    """A row of words from each rank, known to all of them."""

    ranks: Sequence[int]
    """As the job started."""
    hosts: Sequence[str]
    rows: Sequence[Mapping[str, str]]

    @classmethod
    def of(cls, comm: Communicator, row: Mapping[str, str]) -> Gathered:
        """Every rank calls it with its own row."""
        found = [json.loads(text) for text in comm.allgather_text(json.dumps([comm.host, dict(row)]))]
        return cls(comm.members, [host for host, _ in found], [row for _, row in found])

    def merged(self) -> dict[str, str]:
        """All that the ranks have; different values of a name are joined."""
        names = sorted({name for row in self.rows for name in row})
        return {name: " and ".join(sorted({row[name] for row in self.rows if name in row})) for name in names}

    def unlike(self, name: str) -> str:
        """Which ranks have which value, the rarest first; empty if all ranks that have one have the same."""
        groups: dict[str, list[int]] = {}
        for place, row in enumerate(self.rows):
            if name in row:
                groups.setdefault(row[name], []).append(place)
        if len(groups) < 2:
            return ""
        rarest_first = sorted(groups.items(), key=lambda group: len(group[1]))
        return "; ".join(f"{_short(value)} on {self._who(places)}" for value, places in rarest_first)

    def _who(self, places: Sequence[int]) -> str:
        hosts = list(dict.fromkeys(self.hosts[place] for place in places))
        more = f" and {len(hosts) - 3} more" if len(hosts) > 3 else ""
        return f"{_ranges([self.ranks[place] for place in places])} ({', '.join(hosts[:3])}{more})"


def _ranges(ranks: Sequence[int]) -> str:
    """`rank 3`, or `ranks 0-2, 5`."""
    runs: list[list[int]] = []
    for rank in ranks:
        if runs and rank == runs[-1][-1] + 1:
            runs[-1][1:] = [rank]
        else:
            runs.append([rank])
    return f"rank{'s' * (len(ranks) > 1)} {', '.join('-'.join(map(str, run)) for run in runs)}"
