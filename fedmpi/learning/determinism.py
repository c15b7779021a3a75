"""Everything in torch that could make two equal runs differ: threads, kernels, the global generators."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from operator import attrgetter
from typing import Any

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
    settings: Any = torch.utils.deterministic
    settings.fill_uninitialized_memory = False
    torch.set_float32_matmul_precision("highest")  # first: torch refuses to read a precision that is set in two ways
    torch.backends.cudnn.benchmark = False
    torch.backends.cudnn.allow_tf32 = False
    torch.backends.cuda.matmul.allow_tf32 = False
    # Else torch's transformer layers, in a test, read weights of their linear layers and never call these.
    torch.backends.mha.set_fastpath_enabled(False)


_FUNCTIONS = ("num_threads", "default_dtype", "deterministic_debug_mode", "float32_matmul_precision")
"""Of settings that torch has a getter and a setter for."""
_ATTRIBUTES = (
    "utils.deterministic.fill_uninitialized_memory",
    "backends.cudnn.benchmark",
    "backends.cudnn.allow_tf32",
    "backends.cuda.matmul.fp32_precision",
    "backends.cudnn.conv.fp32_precision",
    "backends.cudnn.rnn.fp32_precision",
    "backends.mkldnn.matmul.fp32_precision",
)


@contextmanager
def settings_kept() -> Iterator[None]:
    """Gives torch its defaults within the block (float32, gradients, the CPU); puts all settings back after it.

    A run may change every setting that this module sets.
    """
    with ExitStack() as stack:
        # Setting an older precision changes the newer ones of torch 2.9, so these are put back last. A precision may be
        # missing in this torch, or set in two ways, and then cannot be read.
        for path in reversed(_ATTRIBUTES):
            owner, _, attribute = path.rpartition(".")
            with suppress(RuntimeError, AttributeError):
                stack.callback(setattr, attrgetter(owner)(torch), attribute, attrgetter(path)(torch))
        for name in _FUNCTIONS:
            with suppress(RuntimeError):
                stack.callback(getattr(torch, f"set_{name}"), getattr(torch, f"get_{name}")())
        stack.callback(torch.backends.mha.set_fastpath_enabled, torch.backends.mha.get_fastpath_enabled())
        if torch.get_default_device().type != "cpu":
            stack.callback(torch.set_default_device, torch.get_default_device())
            torch.set_default_device(None)
        if torch.cuda.is_initialized():
            stack.callback(torch.cuda.set_device, torch.cuda.current_device())
        torch.set_default_dtype(torch.float32)
        with torch.inference_mode(False), torch.enable_grad():
            yield
