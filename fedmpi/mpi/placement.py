"""Which device each rank computes on: a pure function of the node's ranks and GPUs.

Workers of a node take its visible GPUs in turn; more workers than GPUs share them. A rank 0 that does not train and
computes on a GPU (`mpi.server_device`) takes the last one of its node that is like the first: no worker has that one
where there are more GPUs than workers.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from fedmpi.errors import UserError


@dataclass(frozen=True)
class Gpu:
    """One visible GPU: its name and compute capability, as `major * 10 + minor`."""

    name: str
    capability: int


@dataclass(frozen=True)
class Device:
    """Where a rank trains and where it factorizes and lifts."""

    train: str
    server: str
    description: str

    @property
    def has_gpu(self) -> bool:
        return (self.train, self.server) != ("cpu", "cpu")


def visible_gpus() -> tuple[Gpu, ...]:
    """Returns the GPUs that this process may use."""
    if not torch.cuda.is_available():
        return ()
    found = (torch.cuda.get_device_properties(index) for index in range(torch.cuda.device_count()))
    return tuple(Gpu(gpu.name, gpu.major * 10 + gpu.minor) for gpu in found)


def worker_index(rank: int, here: Sequence[int], *, server_trains: bool) -> int | None:
    """Returns the number of a rank among the workers of its node, or None for a server that does not train.
    `here` has the node's ranks, in order.
    """
    workers = [other for other in here if server_trains or other > 0]
    return workers.index(rank) if rank in workers else None


def resolve(want: str, *, has_gpus: bool) -> str:
    """Returns the kind for `mpi.device` or `mpi.server_device`: `auto` means GPUs if there are some."""
    return {"auto": "cuda" if has_gpus else "cpu"}.get(want, want)


def place(worker: int | None, gpus: Sequence[Gpu], *, train: str, server: str, built_for: Sequence[str]) -> Device:
    """Returns the devices of one rank, which is the `worker`-th of its node (None: it does not train). `train` and
    `server` are "cpu" or "cuda"; `built_for` is torch's list of architectures ("sm_70", "compute_90"). Raises
    `UserError` where a GPU is requested and this rank sees none, or torch has no code for it.
    """
    trains_on_gpu = train == "cuda" and worker is not None
    if not trains_on_gpu and server != "cuda":
        return Device("cpu", "cpu", "CPU")
    if not gpus:
        raise UserError(
            "mpi.device",
            "a GPU is asked for, but this rank sees none; ask the scheduler for GPUs (and see CUDA_VISIBLE_DEVICES), "
            "or use mpi.device=cpu mpi.server_device=cpu",
        )
    like_the_first = [index for index, gpu in enumerate(gpus) if gpu == gpus[0]]
    index = like_the_first[-1] if worker is None else worker % len(gpus)
    gpu = gpus[index]
    if not any(_runs_on(gpu, architecture) for architecture in built_for):
        raise UserError(
            "torch",
            f"{gpu.name} has architecture sm_{gpu.capability}, but this torch was built for {', '.join(built_for)}; "
            "install a build that has it (for V100: FEDMPI_TORCH_INDEX=https://download.pytorch.org/whl/cu126, see "
            "README)",
        )
    name = f"cuda:{index}"
    return Device(name if trains_on_gpu else "cpu", name if server == "cuda" else "cpu", f"{name} ({gpu.name})")


def _runs_on(gpu: Gpu, architecture: str) -> bool:
    """Returns True if the GPU runs torch's code for this architecture: a binary of the same major one and no newer
    minor one, or any older PTX.
    """
    version = int(re.sub(r"\D", "", architecture) or 0)
    is_ptx = architecture.startswith("compute")
    return version <= gpu.capability and (is_ptx or version // 10 == gpu.capability // 10)
