"""Everything in torch that could make two equal runs differ: threads, kernels, the global generators."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from fedmpi import seeds


def make_deterministic(num_threads: int) -> None:
    """Fixes the number of compute threads and asks torch for deterministic kernels only.

    The thread count is the config's, never derived from cores or ranks: sums inside a kernel are
    split by it. TF32 stays off, so that a float32 result means the same on every GPU.
    """
    torch.set_num_threads(num_threads)
    # The same as use_deterministic_algorithms(True), which imports torch's compiler: 2 s at the start of every rank.
    torch.set_deterministic_debug_mode("error")
    # Filling every fresh tensor with NaN finds bugs, but it is a pass over memory in each kernel.
    settings: Any = torch.utils.deterministic
    settings.fill_uninitialized_memory = False
    torch.backends.cudnn.benchmark = False
    torch.backends.cudnn.allow_tf32 = False
    torch.backends.cuda.matmul.allow_tf32 = False


@contextmanager
def global_generator(seed: int, device: torch.device) -> Iterator[None]:
    """Within the block, the global generators of torch, Python and numpy start from `seed`; then they are as before.

    A net may draw from these (dropout, stochastic depth) and from no generator of its own. Every
    caller that runs a net in training mode seeds them, so that the numbers depend neither on the rank
    nor on what ran before.
    """
    gpus = [device] if device.type == "cuda" else []
    with torch.random.fork_rng(devices=gpus), seeds.python_and_numpy(seed):
        torch.default_generator.manual_seed(seed)
        for gpu in gpus:
            torch.cuda.default_generators[gpu.index or 0].manual_seed(seed)
        yield
