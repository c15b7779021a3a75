"""What a plan says of devices: a turn on each tier and class, who holds a round up, and the hours of the run."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice

from fedmpi.devices.fleet import Fleet, Spent
from fedmpi.devices.model import NS_PER_S, UJ_PER_J, energy_uj
from fedmpi.devices.profiles import Profile
from fedmpi.federation.assignment import Task
from fedmpi.methods.values import ClientLoad
from fedmpi.report.table_text import text_lines
from fedmpi.report.terminal import wrapped
from fedmpi.store.units import joules, short_duration, size, span

_MOST_DEVICES = 1000
"""So many devices of a fleet are in the table."""


@dataclass(frozen=True)
class Turn:
    """A turn of a mean client of a tier on the devices of a class, from the lowest to the highest number of these."""

    tier: str
    device: str
    turn_s: tuple[float, float]
    turn_j: tuple[float, float]
    needed_bytes: int
    memory_bytes: tuple[int, int]


@dataclass(frozen=True)
class Expected:
    """The run on the clients' devices."""

    turns: tuple[Turn, ...]
    slowest_client: int
    slowest_device: str
    """The class of its device."""
    run_s: float
    run_j: float
    late_share: float
    """Share of turns that would miss the deadline."""
    late_shares: Mapping[str, float]
    """The same of the turns of each `class ...` of devices and each `tier ...` that is ever late."""
    empty_rounds: tuple[int, ...]
    """Rounds in which nobody is done by the deadline."""
    sizes_are_known: bool
    """Whether each client's number of examples is known; else all have the mean."""

    def lines(self) -> list[str]:
        """Returns them as text."""
        heads = ("tier", "device", "turn", "energy", "needs", "memory")
        rows = []
        for turn in self.turns:
            row = [turn.tier, turn.device, span(turn.turn_s, short_duration), span(turn.turn_j, joules)]
            rows.append([*row, size(turn.needed_bytes), span(turn.memory_bytes, size)])
        run = f"{short_duration(self.run_s)}, {joules(self.run_j)}"
        slowest = f"client {self.slowest_client} ({self.slowest_device}) is the slowest"
        how = "" if self.sizes_are_known else ", if all clients have the mean number of examples (the data say it)"
        said = [f"on these devices the run takes {run}{how}; {slowest}"]
        if self.late_share:
            shares = ", ".join(f"{100 * share:.0f} % of {whose}" for whose, share in self.late_shares.items())
            said += wrapped(f"{100 * self.late_share:.0f} % of turns are late: {shares}")
        return ["", *text_lines(heads, rows, 2), *said]

    def warnings(self, num_rounds: int, *, fits: bool) -> Iterator[str]:
        """Yields how many rounds a deadline leaves empty, and, unless tiers are chosen so that they fit, tiers that
        devices of a class cannot hold."""
        if self.empty_rounds:
            how_many = f"in {len(self.empty_rounds)} of {num_rounds} rounds (the first: {self.empty_rounds[0]})"
            yield f"{how_many} nobody is done within devices.deadline_s: nothing changes then"
        for turn in () if fits else self.turns:
            least, most = turn.memory_bytes
            if turn.needed_bytes > least:
                which = turn.device if turn.needed_bytes > most else f"some {turn.device}"
                takes = f"training tier {turn.tier} takes {size(turn.needed_bytes)}"
                yield f"{takes}, more than the {size(least)} of {which}"


@dataclass
class Expectation:
    """Adds up the rounds of a plan on the clients' devices."""

    fleet: Fleet
    _total: Spent = field(default_factory=Spent)
    _slowest: tuple[int, int, str] = (-1, 0, "")
    """Nanoseconds, client, class."""
    _turns_of: Counter[str] = field(default_factory=Counter)
    """Turns by class, by tier, and in all (`''`)."""
    _late_of: Counter[str] = field(default_factory=Counter)
    _empty_rounds: list[int] = field(default_factory=list)
    _most_in_phase: int = 1
    _done: set[int] = field(default_factory=set)
    """Clients whose upload has arrived in some round."""
    _devices: dict[Profile, None] = field(default_factory=dict)

    def add(self, tasks: Sequence[Task]) -> None:
        """Adds a round, as the server does that has got these clients' reports."""
        turns = []
        up_bytes = 0
        for task in tasks:
            profile = self.fleet.profile(task.client, task.round_number)
            load = replace(ClientLoad.of_task(task), is_first=task.client not in self._done)
            costs = self.fleet.method.costs(load)
            turn = self.fleet.turn(task, load, costs)
            turns.append(Spent() if task.is_late else turn)
            up_bytes += costs.up_bytes if task.arrives else 0
            self._slowest = max(self._slowest, (turn.ns, -task.client, profile.name))
            self._devices[profile] = None
            self._most_in_phase = max(self._most_in_phase, task.cohort_size)
            whose = ("", f"class {profile.name}", f"tier {self.fleet.method.tiers[task.tier].name}")
            self._turns_of.update(whose)
            self._late_of.update(whose if task.is_late else ())
        if any(task.is_late for task in tasks) and not any(task.arrives for task in tasks):
            self._empty_rounds.append(tasks[0].round_number)
        self._done.update(task.client for task in tasks if task.arrives)
        self._total = self.fleet.round_record(tasks, turns, up_bytes, self._total)[1]

    def result(self, samples: float, share: float, *, sizes_are_known: bool) -> Expected:
        """Returns what to expect; in its table a client has `samples` examples and does `share` of a round's work."""
        _, client, device = self._slowest
        return Expected(
            turns=tuple(self._turns(samples, share)),
            slowest_client=-client,
            slowest_device=device,
            run_s=self._total.ns / NS_PER_S,
            run_j=self._total.uj / UJ_PER_J,
            late_share=self._late_of[""] / max(1, self._turns_of[""]),
            late_shares={whose: late / self._turns_of[whose] for whose, late in sorted(self._late_of.items()) if whose},
            empty_rounds=tuple(self._empty_rounds),
            sizes_are_known=sizes_are_known,
        )

    def _turns(self, samples: float, share: float) -> Iterator[Turn]:
        fleet = self.fleet
        classes: dict[str, list[Profile]] = {}
        devices = self._devices if fleet.config.devices.name == "lognormal" else dict.fromkeys(fleet.listed)
        for profile in islice(devices, _MOST_DEVICES):
            classes.setdefault(profile.name, []).append(profile)
        for tier, needed in zip(fleet.method.tiers, fleet.needed_bytes, strict=True):
            load = ClientLoad(tier.index, samples, share=share)
            for name, profiles in classes.items():
                all_parts = [fleet.parts(profile, load, self._most_in_phase) for profile in profiles]
                times_s = [parts.total_ns / NS_PER_S for parts in all_parts]
                energies_j = [energy_uj(*pair) / UJ_PER_J for pair in zip(profiles, all_parts, strict=True)]
                memories = [profile.memory_bytes for profile in profiles]
                turn_s = (min(times_s), max(times_s))
                turn_j = (min(energies_j), max(energies_j))
                yield Turn(tier.name, name, turn_s, turn_j, needed, (min(memories), max(memories)))
