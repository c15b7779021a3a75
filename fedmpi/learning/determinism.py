"""Everything in torch that could make two equal runs differ: threads, kernels, the global generators."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import numpy as np
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
    torch.set_float32_matmul_precision("highest")  # first: torch refuses to read a precision that is set in two ways
    torch.backends.cudnn.benchmark = False
    torch.backends.cudnn.allow_tf32 = False
    torch.backends.cuda.matmul.allow_tf32 = False


@contextmanager
def settings_kept() -> Iterator[None]:
    """Within the block torch has its defaults (float32, gradients, the CPU), and a run may change every setting that
    this module sets; then all of them are as they were before.
    """
    before = [(write, value) for read, write in _settings() if (value := _readable(read)) is not None]
    with ExitStack() as stack:
        for write, value in reversed(before):  # undone in the order of `_settings`
            stack.callback(write, value)
        if torch.get_default_device().type != "cpu":
            stack.callback(torch.set_default_device, torch.get_default_device())
            torch.set_default_device(None)
        if torch.cuda.is_initialized():
            stack.callback(torch.cuda.set_device, torch.cuda.current_device())
        torch.set_default_dtype(torch.float32)
        with torch.inference_mode(False), torch.enable_grad():
            yield


def _settings() -> Iterator[tuple[Callable[[], Any], Callable[[Any], object]]]:
    """How each setting is read and written. The precisions that torch 2.9 has beside the older ones come last, because
    writing an older one changes them.
    """
    yield torch.get_num_threads, torch.set_num_threads
    yield torch.get_default_dtype, torch.set_default_dtype
    yield torch.get_deterministic_debug_mode, torch.set_deterministic_debug_mode
    yield torch.get_float32_matmul_precision, torch.set_float32_matmul_precision  # `matmul.allow_tf32`, too
    backends: Any = torch.backends
    matmul, cudnn = backends.cuda.matmul, backends.cudnn
    named = [(torch.utils.deterministic, "fill_uninitialized_memory"), (cudnn, "benchmark"), (cudnn, "allow_tf32")]
    named += [(matmul, "fp32_precision")]
    named += [(getattr(cudnn, part, None), "fp32_precision") for part in ("conv", "rnn")]
    named += [(getattr(backends.mkldnn, "matmul", None), "fp32_precision")]
    for owner, name in named:
        yield partial(getattr, owner, name, None), partial(setattr, owner, name)


def _readable(read: Callable[[], Any]) -> Any:
    """The value; None where this torch has no such setting, or will not read one that is set in the newer way, too."""
    try:
        return read()
    except RuntimeError:
        return None


def generator_states(device: torch.device) -> tuple[object, ...]:
    """What the global generators of torch, of Python and of numpy would draw next; equal states compare equal."""
    found = [torch.get_rng_state()]
    if device.type == "cuda":
        found.append(torch.cuda.get_rng_state(device))
    _, keys, *rest = np.random.get_state()
    return (*(state.numpy().tobytes() for state in found), random.getstate(), np.asarray(keys).tobytes(), *rest)


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
