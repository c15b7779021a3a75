"""Everything in torch that could make two equal runs differ: threads, kernels, the global generator."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch


def make_deterministic(num_threads: int) -> None:
    """Fixes the number of compute threads and asks torch for deterministic kernels only.

    The thread count is the config's, never derived from cores or ranks: sums inside a kernel are
    split by it. TF32 stays off, so that a float32 result means the same on every GPU.
    """
    torch.set_num_threads(num_threads)
    # The same as use_deterministic_algorithms(True), which imports torch's compiler: 2 s at the start of every rank.
    torch.set_deterministic_debug_mode("error")
    # Filling every fresh tensor with NaN finds bugs, but it is a pass over memory in each kernel.
    torch.utils.deterministic.fill_uninitialized_memory = False
    torch.backends.cudnn.benchmark = False
    torch.backends.cudnn.allow_tf32 = False
    torch.backends.cuda.matmul.allow_tf32 = False


@contextmanager
def global_generator(seed: int, device: torch.device) -> Iterator[None]:
    """Within, torch's global generator starts from `seed`; afterwards it is as it was.

    Nets may draw from it (dropout, stochastic depth) and know no other; whoever lets a net run in
    train mode says with this what it draws, so that it depends neither on the rank nor on the past.
    """
    gpus = [device] if device.type == "cuda" else []
    with torch.random.fork_rng(devices=gpus):
        torch.default_generator.manual_seed(seed)
        for gpu in gpus:
            torch.cuda.default_generators[gpu.index or 0].manual_seed(seed)
        yield
