"""The GPU benchmark with the pretend accelerator for a GPU: its steps are recorded, its memory is 0 bytes at most."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch

from fedmpi.learning.determinism import settings_kept
from fedmpi.studies.bench import gpu_steps
from fedmpi.tensors import host_buffer
from pretend import device
from pretend.graphs import Graphs
from pretend.runs import with_accelerators

ON_IT = ("mpi.device=cuda", "mpi.server_device=cuda")


@contextmanager
def benchmarked() -> Iterator[list[str]]:
    """Within the block `mpi.device=cuda` means the pretend accelerator. Yields a log: "recorded", "replayed", and
    "forgotten" where the most memory so far is.
    """
    log: list[str] = []
    with with_accelerators(), pytest.MonkeyPatch.context() as patch:
        more = {
            "empty_cache": lambda: None,
            "reset_peak_memory_stats": lambda _: log.append("forgotten"),
            "max_memory_allocated": lambda _: 0,
            "max_memory_reserved": lambda _: 0,
            # Nothing has rules for autocast on it: all of it stays in float32.
            "get_amp_supported_dtype": lambda: [torch.bfloat16, torch.float16],
        }
        for name, function in more.items():
            patch.setattr(torch.get_device_module(device.NAME), name, function, raising=False)
        patch.setattr(gpu_steps, "CudaGraphs", lambda chosen: Graphs(log))
        patch.setattr(gpu_steps, "host_buffer", _unpinned)
        patch.setattr(gpu_steps, "settings_kept", _kept_in_one_thread)
        yield log


@contextmanager
def _kept_in_one_thread() -> Iterator[None]:
    """`torch.inference_mode(False)` lets torch's threads for devices compute gradients again (`device.available`)."""
    with settings_kept(), torch.autograd.set_multithreading_enabled(False):
        yield


def _unpinned(num_bytes: int, **_: Any) -> torch.Tensor:
    return host_buffer(num_bytes)
