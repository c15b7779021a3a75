"""Every random number of a run: (purpose, seed, and what it is for) -> an independent generator.

Nothing else in fedmpi draws random numbers. Nets that draw from the global generators of torch (dropout),
Python or numpy find them seeded from here (`learning.determinism.global_generator`). So what is drawn depends
neither on the number of ranks nor on what ran before. The mixing is BLAKE2b over
the words, as independent streams as a cryptographic hash can make them.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    import torch


def mix(purpose: str, *numbers: int) -> int:
    """Mixes a 63-bit seed out of a purpose ("cohort", "batches", ...) and whole numbers (seed, round, client, ...)."""
    words = ":".join([purpose, *(str(int(number)) for number in numbers)])
    digest = hashlib.blake2b(words.encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1


def numpy_generator(purpose: str, *numbers: int) -> np.random.Generator:
    import numpy as np

    return np.random.Generator(np.random.PCG64(mix(purpose, *numbers)))


def torch_generator(purpose: str, *numbers: int) -> torch.Generator:
    """Returns a generator on the CPU: the same numbers whatever device trains."""
    import torch

    return torch.Generator().manual_seed(mix(purpose, *numbers))


@contextmanager
def python_and_numpy(seed: int) -> Iterator[None]:
    """Starts the global generators of Python and numpy from `seed` within the block; puts them back."""
    import numpy as np

    before = random.getstate(), np.random.get_state()
    random.seed(seed)
    np.random.seed(seed % 2**32)
    try:
        yield
    finally:
        random.setstate(before[0])
        np.random.set_state(before[1])
