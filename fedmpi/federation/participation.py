"""Who takes part beside the uniform draw: other rules, rounds in which clients are away, lost uploads, partial work.

Each answer is a pure function of (config, seed, round, client), so all ranks and a resumed run give the same one.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from hashlib import blake2b
from operator import index
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fedmpi import seeds
from fedmpi.errors import ConfigError, one_line, reason, type_in_words, users_code
from fedmpi.federation.cohort import eligible_clients, sample_among, sample_cohort
from fedmpi.federation.tiers import tier_blocks, tier_of
from fedmpi.registry import import_object

if TYPE_CHECKING:
    from fedmpi.config.schema import Config

SAMPLING = "clients.sampling"
AVAILABILITY = "clients.availability"
Ints = NDArray[np.int64]


@dataclass(frozen=True)
class Availability:
    """The rows of the file `clients.availability`, int64 (rows,): clients, and their first and last rounds there."""

    clients: Ints
    first: Ints
    last: Ints
    digest: str

    def in_round(self, number: int) -> Ints:
        """Returns the clients that are there in this round, sorted."""
        return np.unique(self.clients[(self.first <= number) & (number <= self.last)])


@dataclass(frozen=True)
class Participation:
    """Draws cohorts by the rules of `config.clients`. `sizes` (clients,) has the clients' numbers of examples, None
    where a plan does not know them.
    """

    config: Config
    sizes: Ints | None = None
    availability: Availability | None = None
    function: Callable[[int, int], Iterable[Any]] | None = None
    of_device: Callable[[int, int], int | None] | None = None
    """Returns a client's tier in a round, from its device's memory. None: tiers do not depend on devices."""

    @classmethod
    def of(
        cls, config: Config, sizes: Ints | None = None, of_device: Callable[[int, int], int | None] | None = None
    ) -> Participation:
        """Reads the file and imports the function that `config` names. Raises `ConfigError`."""
        path = config.clients.availability
        sampling = config.clients.sampling
        availability = read_availability(path, config.clients.count) if path else None
        function = import_object(sampling) if ":" in sampling else None
        made = cls(config, sizes, availability, function, of_device)
        for number in range(1, config.rounds + 1 if function else 1):
            if made.named(number) != made.named(number):
                problem = "returns other clients at a second call; draw from its round and seed alone"
                raise ConfigError(SAMPLING, f"{sampling} {problem}")
        return made

    @property
    def is_uniform(self) -> bool:
        """Returns whether every client is there and as likely as the others: no list of all clients is needed."""
        return self.availability is None and self.of_device is None and self.config.clients.sampling == "uniform"

    @cached_property
    def blocks(self) -> tuple[int, ...]:
        return tier_blocks(self.config)

    def tier(self, client: int, round_number: int) -> int | None:
        """Returns a client's tier in a round; None if its device's memory does not hold it."""
        return (self.of_device or self.block_tier)(client, round_number)

    def block_tier(self, client: int, round_number: int) -> int:
        """Returns a client's tier in a round, whatever its device holds."""
        dynamic = self.config.clients.tier_assignment == "dynamic"
        return tier_of(client, self.blocks, dynamic=dynamic, seed=self.config.seed, round_number=round_number)

    def cohort(
        self, round_number: int, phase: str, num_clients: int | None = None, tiers: Collection[int] | None = None
    ) -> list[tuple[int, int]]:
        """Returns (client, tier) of every client that takes part in a phase, sorted: `num_clients` (None:
        `clients.per_round`) of these tiers (None: all), or all of them if there are fewer.
        """
        clients = self.config.clients
        size = clients.per_round if num_clients is None else num_clients
        generator = seeds.numpy_generator(f"cohort:{phase}", self.config.seed, round_number)

        def can_take_part(client: int) -> bool:
            own = self.tier(client, round_number)
            return own is not None and (tiers is None or own in tiers)

        if not self.is_uniform:
            cohort = self._of_list(size, round_number, can_take_part, generator)
        elif clients.tier_assignment == "dynamic" and any(self.blocks[wanted] for wanted in tiers or ()):
            cohort = sample_among(clients.count, can_take_part, size, generator)
        else:
            cohort = sample_cohort(eligible_clients(self.blocks, tiers), size, generator)
        return [(client, own) for client in cohort if (own := self.tier(client, round_number)) is not None]

    def _of_list(
        self, size: int, round_number: int, can_take_part: Callable[[int], bool], generator: np.random.Generator
    ) -> list[int]:
        """Lists the clients that are there and can take part, and draws `size` of them. Returns these sorted."""
        number = self.config.clients.count
        present = self.availability.in_round(round_number) if self.availability else np.arange(number)
        pool = [client for client in present.tolist() if can_take_part(client)]
        if self.function:
            return sorted(self.named(round_number) & set(pool))
        if self.config.clients.sampling == "by_size" and self.sizes is not None:
            return draw_by_size(pool, self.sizes[pool], size, generator)
        return sample_cohort([pool], size, generator)

    def named(self, round_number: int) -> set[int]:
        """Returns the clients that the user's function names for a round. Raises `ConfigError`."""
        clients = self.config.clients
        where = f"{clients.sampling} for round {round_number}"
        assert self.function is not None
        with users_code(SAMPLING, where, ConfigError):
            returned = self.function(round_number, self.config.seed)
            chosen = list(returned) if isinstance(returned, Iterable) and getattr(returned, "ndim", None) != 0 else None
        if chosen is None:
            raise ConfigError(SAMPLING, f"{where} returns {type_in_words(returned)}; allowed: a list of clients")
        numbers = set()
        for client in chosen:
            number = _whole(client)
            if not 0 <= number < clients.count:
                allowed = f"allowed: whole numbers, 0 to {clients.count - 1}"
                shown = repr(client) if isinstance(client, str) else client
                raise ConfigError(SAMPLING, f"{where} returns client {shown}; {allowed}")
            if number in numbers:
                raise ConfigError(SAMPLING, f"{where} returns client {client} twice")
            numbers.add(number)
        if len(numbers) > clients.per_round:
            most = f"allowed: clients.per_round={clients.per_round} at most"
            raise ConfigError(SAMPLING, f"{where} returns {len(numbers)} clients; {most}")
        return numbers

    def arrives(self, client: int, round_number: int, phase: str) -> bool:
        """Returns whether the client's upload reaches the server in this phase (`clients.dropout`)."""
        share = self.config.clients.dropout
        if not share:
            return True
        return seeds.numpy_generator(f"arrival:{phase}", self.config.seed, round_number, client).random() >= share

    def work_share(self, client: int, round_number: int) -> float:
        """Returns which share of a round's local work the client does in this round (`clients.work`)."""
        work = self.config.clients.work
        if not work.partial:
            return 1.0
        is_partial, place = seeds.numpy_generator("work", self.config.seed, round_number, client).random(2).tolist()
        return work.least + (1 - work.least) * place if is_partial < work.partial else 1.0

    @property
    def mean_work_share(self) -> float:
        """Returns the mean of `work_share` over clients and rounds."""
        work = self.config.clients.work
        return 1 - work.partial * (1 - work.least) / 2


def _whole(value: Any) -> int:
    """Returns a whole number as an int, and -1 for anything else."""
    with suppress(TypeError):
        return -1 if isinstance(value, (bool, np.bool_)) else index(value)
    return -1


def draw_by_size(pool: Sequence[int], sizes: Ints, size: int, generator: np.random.Generator) -> list[int]:
    """Returns `size` distinct clients of `pool`, sorted, each drawn with a probability that is proportional to its size
    among those that remain; clients without examples are never drawn.

    The smallest of independent exponential numbers divided by sizes are such a sample (Efraimidis and Spirakis,
    Information Processing Letters 97(5), 2006).
    """
    waits = generator.exponential(size=len(pool))
    keys = np.divide(waits, sizes, out=np.full(len(pool), np.inf), where=sizes > 0)
    order = np.argsort(keys, kind="stable")[:size]
    return sorted(pool[place] for place in order.tolist() if sizes[place] > 0)


def read_availability(path: str, count: int) -> Availability:
    """Reads lines `client,from,to`, with or without a head. Raises `ConfigError` with the line that is wrong."""
    from fedmpi.store.files import user_path  # only where a file is named

    try:
        with open(user_path(path), encoding="utf-8-sig") as file:
            text = file.read()
    except (OSError, ValueError) as error:
        raise ConfigError(AVAILABILITY, f"{path} cannot be read: {reason(error)}") from error
    rows = []
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip() or (number == 1 and line.strip()[0].isalpha()):
            continue
        row: list[int] = []
        with suppress(ValueError):
            row = [int(number) for number in line.split(",")]
        if len(row) != 3 or not (0 <= row[0] < count and 1 <= row[1] <= row[2]):
            expected = f"expected client (0 to {count - 1}), first and last round, as 0,1,10"
            raise ConfigError(AVAILABILITY, one_line(f"{path}: line {number}: {expected}; got {line.strip()[:60]!r}"))
        rows.append(row)
    clients, first, last = np.array(rows, np.int64).reshape(-1, 3).T
    return Availability(clients, first, last, blake2b(text.encode(), digest_size=16).hexdigest())
