"""Runs whose ranks train on the pretend accelerator: placement finds two GPUs on each node, called `pretend`."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from fedmpi.mpi import placement
from fedmpi.rounds import exchange, publish
from pretend import device

ARCHITECTURE = 90


@contextmanager
def with_accelerators() -> Iterator[list[Tensor]]:
    """Within the block `mpi.device=cuda` means the pretend accelerator, and so does `auto`. Yields each page-locked
    buffer that exchanges and broadcasts ask for.
    """
    place, host_buffer, pinned = placement.place, exchange.host_buffer, list[Tensor]()

    def placed(*args: Any, **kwargs: Any) -> placement.Device:
        found = place(*args, **kwargs)
        return replace(found, **{key: _renamed(getattr(found, key)) for key in ("train", "server", "description")})

    def unpinned(num_bytes: int, *, is_pinned: bool = False) -> Tensor:
        buffer = host_buffer(num_bytes)
        pinned.extend([buffer] * is_pinned)
        return buffer

    with pytest.MonkeyPatch.context() as patch, device.available():
        gpus = tuple(placement.Gpu("Pretend", ARCHITECTURE) for _ in range(device.NUM_DEVICES))
        patch.setattr(placement, "visible_gpus", lambda: gpus)
        patch.setattr(placement, "place", placed)
        patch.setattr(torch.cuda, "get_arch_list", lambda: [f"sm_{ARCHITECTURE}"])
        patch.setattr(torch.cuda, "set_device", lambda chosen: None)
        patch.setattr(torch.cuda, "get_device_name", lambda chosen: "Pretend")
        for module in (exchange, publish):
            patch.setattr(module, "host_buffer", unpinned)
        yield pinned


def _renamed(text: str) -> str:
    return text.replace("cuda", device.NAME)
