"""Which capacity a client has: fixed blocks of clients, or a draw in every round.

FedHM, section 4.1: under the fixed setting clients are split into contiguous blocks, largest
capacity first; under the dynamic one every client draws its tier anew in each round, with the
blocks' shares as probabilities and independently of the others.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING

from fedmpi import seeds

if TYPE_CHECKING:
    from fedmpi.config.schema import Config


@dataclass(frozen=True)
class Tier:
    """One level of capacity, or a net that is only tested."""

    index: int
    """Which of the method's nets it is: those of the tiers come first."""
    name: str
    capacity: float
    """What the method makes of it: FedHM's gamma, HeteroFL's width, PriSM's keep ratio; 1 is the whole model."""


def equal_blocks(num_clients: int, num_tiers: int) -> tuple[int, ...]:
    """Returns block sizes as equal as can be; the last tier has the remainder, as in HeteroFL."""
    size = num_clients // num_tiers
    return (*[size] * (num_tiers - 1), num_clients - size * (num_tiers - 1))


def tier_blocks(config: Config) -> tuple[int, ...]:
    """Returns the clients per tier, largest capacity first."""
    own: tuple[int, ...] = config.method.tier_blocks(config.clients.count)
    return config.clients.tier_blocks or own


def tier_of(client: int, blocks: Sequence[int], *, dynamic: bool, seed: int, round_number: int) -> int:
    """Returns the index of a client's tier in a round; `blocks` has the clients per tier, largest capacity first."""
    number = client
    if dynamic:
        number = int(seeds.numpy_generator("tier", seed, round_number, client).integers(sum(blocks)))
    return next(tier for tier, end in enumerate(accumulate(blocks)) if number < end)
