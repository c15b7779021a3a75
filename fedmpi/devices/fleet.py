"""The clients' devices: who has which, whose memory holds which tier, and what a round takes on them.

A device is a function of (config, seed, client, round), so every rank and a resumed run know it. The engine calls
`is_late` for a client before its training, `turn` after it, and `round_record` once a round; `tier` says who may
take part, and with which tier.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Any

from fedmpi import seeds
from fedmpi.config.schema import Config
from fedmpi.costs import FLOAT32_BYTES
from fedmpi.costs import Costs as NetCosts
from fedmpi.devices.model import (
    NS_PER_S,
    PJ_PER_UJ,
    UJ_PER_J,
    Parts,
    batch_ns,
    download_ns,
    energy_uj,
    memory_bytes,
    optimizer_values,
    remaining,
    server_ns,
    update_ns,
    upload_ns,
)
from fedmpi.devices.profiles import Profile, built_in, read
from fedmpi.errors import ConfigError
from fedmpi.federation.tiers import tier_blocks, tier_of
from fedmpi.methods.protocol import Method
from fedmpi.methods.values import ClientLoad, Costs, Passes, Training
from fedmpi.store.units import size, span
from fedmpi.tensors import frozen_values, total_bytes

if TYPE_CHECKING:
    from fedmpi.federation.assignment import Task

_MOST_CACHED = 100_000
_MOST_TURNS = 10_000


@dataclass(frozen=True)
class Spent:
    """Simulated time and energy."""

    ns: int = 0
    uj: int = 0

    def __add__(self, other: Spent) -> Spent:
        return Spent(self.ns + other.ns, self.uj + other.uj)


@dataclass(frozen=True)
class Fleet:
    """The devices of a run; `nets` are the costs of the method's nets."""

    config: Config
    method: Method
    nets: Sequence[NetCosts]
    listed: Sequence[Profile]
    """The devices of `classes` or of the file; the median of `lognormal`."""
    digest: str = ""
    """Of the file."""

    @classmethod
    def of(cls, config: Config, method: Method, nets: Sequence[NetCosts]) -> Fleet | None:
        """Returns the fleet; None if `devices` is off. Raises `ConfigError`."""
        devices = config.devices
        if not devices.is_on:
            return None
        if not all(net.layers for net in nets):
            problem = f"the MACs of '{config.model.name}' are not counted: it does not run without values"
            todo = "take a net that runs on zeros in place of its weights, or devices.name=off"
            raise ConfigError("model.name", f"{problem}, so a clock of devices would guess; {todo}")
        if devices.name == "file":
            listed, digest = read(devices.path)
        else:
            names = devices.classes if devices.name == "classes" else [devices.median]
            listed, digest = tuple(built_in()[name] for name in names), ""
        return cls(config, method, nets, listed, digest)

    def check(self) -> None:
        """Raises `ConfigError` if a device is too small and is not dropped, or if no device is large enough."""
        clients = range(self.config.clients.count)
        if self.config.devices.too_small == "drop":
            if all(self.tier(client, 1) is None for client in clients):
                raise self._too_small(0, 1)
            return
        is_dynamic = self.config.clients.tier_assignment == "dynamic"
        num_tiers = sum(count > 0 for count in self.blocks) if is_dynamic else 1
        for number in self._rounds_of_devices:
            for client in clients:
                if len(self._possible_tiers(client, number)) < num_tiers:
                    raise self._too_small(client, number)

    def _too_small(self, client: int, round_number: int) -> ConfigError:
        profile = self.profile(client, round_number)
        has = f"client {client} ({profile.name}) has {size(profile.memory_bytes)} of memory"
        least = min(self.needed_bytes)
        takes = f"training takes {span((least, max(self.needed_bytes)), size)}"
        todo = ["take smaller tiers or batches"]
        if self.config.clients.tier_assignment != "fits" and least <= profile.memory_bytes:
            todo.append("clients.tier_assignment=fits")
        if self.config.devices.too_small != "drop":
            todo.append("devices.too_small=drop")
        return ConfigError("devices", f"{has}, and {takes}; {', or '.join(todo)}")

    # Who has what.

    @cached_property
    def blocks(self) -> tuple[int, ...]:
        return tier_blocks(self.config)

    @cached_property
    def server(self) -> Profile:
        return built_in()[self.config.devices.server]

    @cached_property
    def _profile(self) -> Callable[..., Profile]:
        return lru_cache(maxsize=_MOST_CACHED)(self._draw)

    def profile(self, client: int, round_number: int) -> Profile:
        """Returns the client's device in a round."""
        return self._profile(client, 0 < self.config.devices.change.round <= round_number)

    def _draw(self, client: int, changes: bool) -> Profile:
        devices = self.config.devices
        generator = seeds.numpy_generator("device", self.config.seed, client)
        first = self._drawn(client, generator, None)
        if not changes:
            return first
        another = seeds.numpy_generator("device change", self.config.seed, client)
        if another.random() >= devices.change.share:
            return first
        return self._drawn(int(another.integers(2**31)), another, first)

    def _drawn(self, place: int, generator: Any, but: Profile | None) -> Profile:
        """Draws a device, not of the same numbers as `but`."""
        devices = self.config.devices
        if devices.name == "lognormal":
            return self.listed[0].scaled(generator, devices.spread)
        if devices.name == "file":
            others = [one for one in self.listed if one != but] or self.listed
            return others[place % len(others)]
        shares = devices.shares or [1.0] * len(self.listed)
        likely = [(one, share) for one, share in zip(self.listed, shares, strict=True) if one != but]
        at = generator.random() * sum(share for _, share in likely)
        for one, share in likely:
            at -= share
            if at < 0:
                return one
        return likely[-1][0]

    @cached_property
    def needed_bytes(self) -> list[int]:
        """Returns what training takes of a device's memory, for each tier."""
        needed = []
        for tier in self.method.tiers:
            training = self.method.count_training(ClientLoad(tier.index, 1.0))
            frozen = frozen_values(self.method.net(tier.index, empty=True)).values()
            needed.append(memory_bytes(self.nets[tier.index], self.config.train, training) + total_bytes(frozen))
        return needed

    def count(self, tier: int) -> int:
        """Returns how many clients have this tier in round 1; by the blocks if devices do not decide it."""
        if not self.decides_tiers:
            return self.blocks[tier]
        return sum(self.tier(client, 1) == tier for client in range(self.config.clients.count))

    @property
    def decides_tiers(self) -> bool:
        """Returns whether `tier` is not what the blocks say."""
        return self.config.clients.tier_assignment == "fits" or self.config.devices.too_small == "drop"

    def tier(self, client: int, round_number: int) -> int | None:
        """Returns the client's tier in a round; None if its memory does not hold it."""
        memory = self.profile(client, round_number).memory_bytes
        how = self.config.clients.tier_assignment
        if how == "fits":
            tiers: Sequence[int] = range(len(self.needed_bytes))
        else:
            seed = self.config.seed
            dynamic = how == "dynamic"
            tiers = [tier_of(client, self.blocks, dynamic=dynamic, seed=seed, round_number=round_number)]
        return next((tier for tier in tiers if self.needed_bytes[tier] <= memory), None)

    @cached_property
    def _rounds_of_devices(self) -> list[int]:
        """Returns the first round, and that in which devices change."""
        change = self.config.devices.change.round
        return [1, change] if 1 < change <= self.config.rounds else [1]

    def tiers_in_use(self) -> tuple[int, ...]:
        """Returns the tiers that clients have in some round, of `dynamic` all that they can draw."""
        tiers: set[int] = set()
        for number in self._rounds_of_devices:
            for client in range(self.config.clients.count):
                tiers.update(self._possible_tiers(client, number))
        return tuple(sorted(tiers))

    def _possible_tiers(self, client: int, round_number: int) -> list[int]:
        if self.config.clients.tier_assignment != "dynamic":
            own = self.tier(client, round_number)
            return [] if own is None else [own]
        memory = self.profile(client, round_number).memory_bytes
        return [tier for tier, needed in enumerate(self.needed_bytes) if self.blocks[tier] and needed <= memory]

    def warnings(self) -> Iterator[str]:
        """Yields what the clock does not see, and how many clients never take part."""
        config = self.config
        if any(net.macs and not net.moved_bytes for net in self.nets):
            what = f"the MACs of '{config.model.name}' are of no layer"
            yield f"{what}, so its simulated time has them without traffic and fixed costs of each layer"
        if (change := config.devices.change.round) > config.rounds:
            yield f"devices.change.round={change}, but rounds is {config.rounds}: no device changes in this run"
        if config.devices.too_small == "drop":
            count = config.clients.count
            for number in self._rounds_of_devices:
                left_out = sum(not self._possible_tiers(client, number) for client in range(count))
                since = f"from round {number} on " if number > 1 else ""
                if left_out:
                    yield f"devices.too_small=drop: {since}{left_out} of {count} clients hold no tier, and take no part"

    # What it takes.

    @property
    def deadline_ns(self) -> int:
        """Returns when a phase ends at the latest; 0: never."""
        return round(self.config.devices.deadline_s * NS_PER_S)

    def parts(self, profile: Profile, load: ClientLoad, num_clients: int, costs: Costs | None = None) -> Parts:
        """Returns the time of a turn on this device. `costs` are the method's for this load, if they are known."""
        costs = costs or self.method.costs(load)
        return self._parts(profile, load.tier, costs, self.method.count_training(load), num_clients)

    @cached_property
    def _parts(self) -> Callable[..., Parts]:
        """Returns what computes the time: a client often does the same in many rounds, and then it is computed once."""
        return lru_cache(maxsize=_MOST_TURNS)(self._count)

    def _count(self, profile: Profile, tier: int, costs: Costs, training: Training, num_clients: int) -> Parts:
        num_bytes = self._bytes_per_update[tier] + FLOAT32_BYTES * training.values_per_update
        compute_ns = training.updates * update_ns(profile, num_bytes, training.macs_per_update)
        for each in training.passes:
            compute_ns += each.count * self._batch_ns(profile, each, training)
        return Parts(
            down_ns=download_ns(profile, costs.down_bytes, self.server, num_clients),
            compute_ns=compute_ns,
            up_ns=upload_ns(profile, costs.up_bytes, self.server, num_clients),
        )

    @cached_property
    def _bytes_per_update(self) -> list[int]:
        """Returns what a step of the optimizer reads and writes, for each tier."""
        values = optimizer_values(self.config.train)
        return [FLOAT32_BYTES * values * self.nets[tier.index].params for tier in self.method.tiers]

    def _batch_ns(self, profile: Profile, passes: Passes, training: Training) -> int:
        """Returns the time of one of these mini-batches; where nothing is pruned it is computed once."""
        if not training.kept:
            return self._whole_batch_ns(profile, passes.net, passes.size, passes.backward)
        layers = remaining(self.nets[passes.net].layers, training.kept)
        return batch_ns(profile, layers, passes.size, backward=passes.backward)

    @cached_property
    def _whole_batch_ns(self) -> Callable[[Profile, int, int, bool], int]:
        @lru_cache(maxsize=_MOST_CACHED)
        def computed(profile: Profile, net: int, size: int, backward: bool) -> int:
            return batch_ns(profile, self.nets[net].layers, size, backward=backward)

        return computed

    def is_late(self, task: Task) -> bool:
        """Returns whether the client would miss the deadline, by what is known before its training."""
        if not self.deadline_ns:
            return False
        load = ClientLoad.of_task(task)
        return self.turn(task, load, self.method.costs(load)).ns > self.deadline_ns

    def turn(self, task: Task, load: ClientLoad, costs: Costs) -> Spent:
        """Returns what the client's turn takes; `costs` are the method's for this load."""
        profile = self.profile(task.client, task.round_number)
        parts = self.parts(profile, load, task.cohort_size, costs)
        return Spent(parts.total_ns, energy_uj(profile, parts))

    def round_record(
        self, tasks: Sequence[Task], turns: Sequence[Spent], up_bytes: int, before: Spent
    ) -> tuple[dict[str, Any], Spent]:
        """Returns what the record gets of a round, and time and energy since the start, `before` included.

        A phase lasts until its slowest client is done, or until the deadline if a client would miss that. The others
        wait, and so do late ones, whose `turns` are empty.
        """
        ends_ns: dict[str, int] = {}
        for task, turn in zip(tasks, turns, strict=True):
            end_ns = self.deadline_ns if task.is_late else turn.ns
            ends_ns[task.phase] = max(ends_ns.get(task.phase, 0), end_ns)
        energies = []
        waited_ns = 0
        for task, turn in zip(tasks, turns, strict=True):
            wait_ns = ends_ns[task.phase] - turn.ns
            profile = self.profile(task.client, task.round_number)
            energies.append(turn.uj + energy_uj(profile, Parts(0, 0, 0), wait_ns))
            waited_ns += wait_ns
        # Adding up reads each upload and the sum, and writes that; so does the step to the new state.
        state_bytes = total_bytes(self.method.state_specs().values())
        of_server_ns = server_ns(self.server, list(self.method.layers.values()), 3 * (up_bytes + state_bytes))
        busy_ns = sum(turn.ns for turn in turns)
        server_uj = of_server_ns * self.server.compute_mw // PJ_PER_UJ
        total = Spent(sum(ends_ns.values()) + of_server_ns, sum(energies) + server_uj)
        since = before + total
        trained = [(turn.ns, task.client) for task, turn in zip(tasks, turns, strict=True) if not task.is_late]
        record = {
            "simulated_s": total.ns / NS_PER_S,
            "simulated_j": total.uj / UJ_PER_J,
            "simulated_total_s": since.ns / NS_PER_S,
            "simulated_total_j": since.uj / UJ_PER_J,
            "devices": {
                "server_s": of_server_ns / NS_PER_S,
                "slowest": max(trained, key=lambda pair: pair[0])[1] if trained else None,
                "idle_share": waited_ns / max(1, waited_ns + busy_ns),
                "seconds": [turn.ns / NS_PER_S for turn in turns],
                "joules": [uj / UJ_PER_J for uj in energies],
                **self._late(tasks),
            },
        }
        return record, since

    def _late(self, tasks: Sequence[Task]) -> Mapping[str, Any]:
        """Names the clients that missed the deadline, their tiers, and the share of each class that is left out."""
        late = [task for task in tasks if task.is_late]
        if not self.deadline_ns:
            return {}
        classes = Counter(self.profile(task.client, task.round_number).name for task in tasks)
        left_out = Counter(self.profile(task.client, task.round_number).name for task in late)
        return {
            "late": [task.client for task in late],
            "late_tiers": dict(Counter(self.method.tiers[task.tier].name for task in late)),
            "late_share": {name: left_out[name] / classes[name] for name in sorted(classes)},
        }
