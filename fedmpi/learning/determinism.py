"""One switch for everything in torch that could make two equal runs differ."""

from __future__ import annotations

import torch


def make_deterministic(num_threads: int) -> None:
    """Fixes the number of compute threads and asks torch for deterministic kernels only.

    The thread count is the config's, never derived from cores or ranks: sums inside a kernel are
    split by it. TF32 stays off, so that a float32 result means the same on every GPU.
    """
    torch.set_num_threads(num_threads)
    torch.use_deterministic_algorithms(True)
    # Filling every fresh tensor with NaN finds bugs, but it is a pass over memory in each kernel.
    torch.utils.deterministic.fill_uninitialized_memory = False
    torch.backends.cudnn.benchmark = False
    torch.backends.cudnn.allow_tf32 = False
    torch.backends.cuda.matmul.allow_tf32 = False
