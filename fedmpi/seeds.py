"""Every random number of a run: (purpose, seed, and what it is for) -> an independent generator.

What is drawn depends neither on the number of ranks nor on what ran before, also where nets draw from the global
generators of torch (dropout), Python or numpy (`global_generators`). BLAKE2b over the words makes the streams as
independent as a cryptographic hash can.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import torch


def mix(purpose: str, *numbers: int) -> int:
    """Mixes a 63-bit seed out of a purpose ("cohort", "batches", ...) and whole numbers (seed, round, client, ...)."""
    words = ":".join([purpose, *(str(int(number)) for number in numbers)])
    digest = hashlib.blake2b(words.encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1


def numpy_generator(purpose: str, *numbers: int) -> np.random.Generator:
    return np.random.Generator(np.random.PCG64(mix(purpose, *numbers)))


def torch_generator(purpose: str, *numbers: int) -> torch.Generator:
    """Returns a generator on the CPU: the same numbers whatever device trains."""
    import torch

    return torch.Generator().manual_seed(mix(purpose, *numbers))


@contextmanager
def global_generators(seed: int, device: torch.device | None = None) -> Iterator[None]:
    """Starts the global generators of torch (of a GPU, too, with `device`), Python and numpy from `seed` within the
    block; puts them back. Every caller that makes or runs a net does so, because it may draw from these.
    """
    import torch

    gpus = [device] if device is not None and device.type == "cuda" else []
    before = random.getstate(), np.random.get_state()
    random.seed(seed)
    np.random.seed(seed % 2**32)
    try:
        with torch.random.fork_rng(devices=gpus):
            # Not torch.manual_seed: that one would reseed all GPUs.
            torch.default_generator.manual_seed(seed)
            for gpu in gpus:
                torch.cuda.default_generators[gpu.index or 0].manual_seed(seed)
            yield
    finally:
        random.setstate(before[0])
        np.random.set_state(before[1])
