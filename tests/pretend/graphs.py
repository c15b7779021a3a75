"""CUDA graphs on the CPU: kernels are recorded with their numbers and addresses, and a replay runs them again.

As on a GPU, a replay runs no Python, so what the host has computed or decided stays as it was; kernels read and write
the memory that they had; and reading a number back to the host fails the recording.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from fedmpi.running import replaying

_READS_BACK = {torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape}


class _Recording(TorchDispatchMode):
    """Runs kernels and keeps them with all that they were called with."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[Any, Any, Any, list[Any]]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if _READS_BACK & set(func.tags):
            raise RuntimeError("operation not permitted when stream is capturing\nmore of torch's advice")
        found = func(*args, **(kwargs or {}))
        self.calls.append((func, args, kwargs or {}, pytree.tree_leaves(found)))
        return found

    @torch.no_grad()
    def replay(self) -> None:
        for func, args, kwargs, kept in self.calls:
            for old, new in zip(kept, pytree.tree_leaves(func(*args, **kwargs)), strict=True):
                if isinstance(old, Tensor) and _memory(old) != _memory(new):
                    old.copy_(new)


def _memory(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


class Graphs:
    """Stands for `replay.CudaGraphs`; `log` has "recorded" and "replayed" in order."""

    def __init__(self, log: list[str]) -> None:
        self._log = log

    def __call__(self, action: Callable[[], None]) -> Callable[[], None]:
        with _Recording() as recording:
            action()
        self._log.append("recorded")

        def replay() -> None:
            self._log.append("replayed")
            recording.replay()

        return replay


@contextmanager
def on_the_cpu() -> Iterator[list[str]]:
    """Within the block `train.cuda_graph=auto` records on the CPU. Yields the log."""
    log: list[str] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(replaying, "DEVICE", "cpu")
        patch.setattr(replaying, "CudaGraphs", lambda device: Graphs(log))
        yield log
