"""What bits depend on beside the config and the data: the code, its packages, the CPU, the GPU, a few variables. The
ranks of a start compare theirs with each other, a resumed run its own with those of its checkpoint and last start.
"""

import functools
import os
import platform
from collections.abc import Iterator, Mapping, Sequence
from hashlib import blake2b
from pathlib import Path
from typing import Any

import torch

import fedmpi
from fedmpi import registry
from fedmpi.config.schema import Config, named_in_full
from fedmpi.errors import one_line
from fedmpi.mpi.communicator import Communicator
from fedmpi.mpi.placement import Device
from fedmpi.store import manifest
from fedmpi.store.run_dir import RunDir

FROZEN = "frozen values"
DEVICES = "devices"
"""The keys of the digests of what is not trained of `model.weights`, and of the file `devices.path`."""
# MPI and HDF5 only move and store numbers, so their versions are not compared.
_DEVICES = ("cpu", "device", "server_device", "gpu")
COMPARED = ("fedmpi", "python", "torch", "torchvision", "numpy", "libc", *_DEVICES, "environment", "availability")
# Variables that choose other kernels on the same machine. ATEN_CPU_CAPABILITY is part of "cpu".
VARIABLES = """
    MKL_CBWR MKL_ENABLE_INSTRUCTIONS MKL_DEBUG_CPU_TYPE OPENBLAS_CORETYPE NPY_DISABLE_CPU_FEATURES
    ONEDNN_MAX_CPU_ISA DNNL_MAX_CPU_ISA ONEDNN_DEFAULT_FPMATH_MODE DNNL_DEFAULT_FPMATH_MODE
    CUBLAS_WORKSPACE_CONFIG NVIDIA_TF32_OVERRIDE TORCH_ALLOW_TF32_CUBLAS_OVERRIDE
""".split()
_MOST_CHARACTERS = 100
_MOST_RANKS = 3


def computed_with(worker_device: str, server_device: str, device: Device) -> dict[str, str]:
    """Returns what this rank computes with: packages, processor and variables. Takes some 10 ms."""
    found = {
        **manifest.versions(),
        "python": ".".join(platform.python_version_tuple()[:2]),  # its last number changes no results
        "fedmpi": f"{fedmpi.__version__} (code {_digest_of_code(Path(fedmpi.__file__).parent)})",
        "libc": " ".join(platform.libc_ver()),
        "cpu": f"{_cpu_model()} ({torch.backends.cpu.get_cpu_capability()})",
        "device": worker_device,
        "server_device": server_device,
        "environment": " ".join(f"{name}={os.environ[name]}" for name in VARIABLES if name in os.environ),
    }
    if device.has_gpu:
        used = device.train if device.train != "cpu" else device.server
        cudnn: Any = torch.backends.cudnn
        found["gpu"] = f"{torch.cuda.get_device_name(used)} (CUDA {torch.version.cuda}, cuDNN {cudnn.version()})"
    return found


@functools.cache
def _digest_of_code(folder: Path) -> str:
    """Returns the digest of all modules in `folder`: a version number says nothing of a checkout."""
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


def changes(then: Mapping[str, str], now: Mapping[str, str]) -> str:
    """Returns a warning that names all that differs and may change bits; '' if nothing does."""
    names = [name for name in COMPARED if name in then and name in now and then[name] != now[name]]
    lines = [f"{name} {_short(then[name])}, now {_short(now[name])}" for name in names]
    return one_line(f"begun with {'; '.join(lines)}: bits may differ from now on") if lines else ""


def _short(value: object) -> str:
    return str(value)[:_MOST_CHARACTERS] or "(nothing set)"


def user_code(config: Config, *, as_loaded: bool = True) -> dict[str, Any]:
    """Returns what the manifest notes of code that is not built in, for each section (or `aggregate`, `sampling`,
    `loss`, `metric` with its name) that names some: name, module, and, if that is a file, the file and the digest of
    what was loaded, or without `as_loaded` of the file as it is now.
    """
    names = {f"metric {name}": name for name in config.evaluation.metrics if registry.is_in_full(name)}
    for (section, key), name in named_in_full(config.to_dict(), trains=False).items():
        names[section if key == "name" else key] = name
    sources = {}
    for key, name in names.items():
        module = str(getattr(registry.import_object(name), "__module__", name.partition(":")[0]))
        sources[key] = {"name": name, "module": module}
        if digest := registry.loaded_digest(module) if as_loaded else registry.file_digest(module):
            sources[key] |= {"file": registry.file_of(module), "digest": digest}
    return sources


def source_warnings(run_dir: RunDir, config: Config) -> Iterator[str]:
    """Yields a line for each module of the user's whose file is another than this process has loaded, and one for what
    is another than at the run's last start."""
    code = user_code(config)
    for module in sorted({entry["module"] for entry in code.values()}):
        if registry.file_digest(module) != registry.loaded_digest(module):
            again = f"import importlib, {module}; importlib.reload({module})"
            yield (
                f"the source of {module} ({registry.file_of(module)}) has changed since this process has loaded it; "
                f"the run has what was loaded; for the file as it is now start Python again, or: {again}"
            )
    before = manifest.user_code(run_dir)
    changed = []
    for section, entry in code.items():
        if before.get(section, {}).get("digest") not in (None, entry.get("digest")):
            changed.append(f"{section.partition(' ')[0]} {entry['name']} ({entry.get('file', entry['module'])})")
    if changed:
        which = " and of ".join(changed)
        yield f"the source of {which} has changed since the last start; the rounds from here on may differ"


Values = Mapping[str, Mapping[str, Sequence[str]]]
"""By name the values that ranks have of it, each with these ranks."""


def values_of_ranks(comm: Communicator, own: Mapping[str, str]) -> Values:
    """Returns what the ranks have. Every rank calls it with its own."""
    found: dict[str, dict[str, list[str]]] = {}
    for rank, values in comm.allgather_object((f"rank {comm.started_as} ({comm.host})", own)):
        for name, value in values.items():
            found.setdefault(name, {}).setdefault(value, []).append(rank)
    return found


def differences(values: Values) -> dict[str, str]:
    """Returns, of each name that has several values, which ranks have which, the rarest first."""
    lines = {}
    for name, ranks in values.items():
        parts = []
        for value, who in sorted(ranks.items(), key=lambda item: len(item[1])):
            more = f" and {len(who) - _MOST_RANKS} more" if len(who) > _MOST_RANKS else ""
            parts.append(f"{_short(value)} on {', '.join(who[:_MOST_RANKS])}{more}")
        if len(parts) > 1:
            lines[name] = "; ".join(parts)
    return lines
