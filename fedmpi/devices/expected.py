"""What a plan says of devices: a turn on each tier and class, who holds a round up, and the hours of the run."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from fedmpi.devices.fleet import Fleet, Spent
from fedmpi.devices.model import NS_PER_S, energy_uj
from fedmpi.federation.assignment import Task
from fedmpi.methods.values import ClientLoad
from fedmpi.report.table_text import text_lines
from fedmpi.store.units import seconds, short_duration, si, size

_UJ_PER_J = 10**6
Cohort = tuple[int, str, Sequence[tuple[int, int]]]
"""Round, phase, and (client, tier) of each client."""


@dataclass(frozen=True)
class Turn:
    """A turn of a mean client of a tier on a device of a class."""

    tier: str
    device: str
    turn_s: float
    turn_j: float
    needed_bytes: int
    memory_bytes: int


@dataclass(frozen=True)
class Expected:
    """The run on the clients' devices, as if each client had the mean number of examples."""

    turns: tuple[Turn, ...]
    slowest_client: int
    run_s: float
    run_j: float
    late_share: float
    """Share of turns that miss the deadline."""

    def lines(self) -> list[str]:
        """Returns them as text."""
        heads = ("tier", "device", "turn", "energy", "needs", "memory")
        rows = []
        for turn in self.turns:
            row = [turn.tier, turn.device, seconds(turn.turn_s), f"{si(round(turn.turn_j, 2))} J"]
            rows.append([*row, size(turn.needed_bytes), size(turn.memory_bytes)])
        late_words = f"; {100 * self.late_share:.0f} % of turns are late" if self.late_share else ""
        run = f"{short_duration(self.run_s)}, {si(round(self.run_j, 2))} J"
        said = f"on these devices the run takes {run}; client {self.slowest_client} is the slowest{late_words}"
        return ["", *text_lines(heads, rows, 2), said]

    def warnings(self) -> Iterable[str]:
        """Yields tiers that a class of devices cannot hold."""
        for turn in self.turns:
            if turn.needed_bytes > turn.memory_bytes:
                needs = f"{size(turn.needed_bytes)}, more than the {size(turn.memory_bytes)} of {turn.device}"
                yield f"training tier {turn.tier} takes {needs}"


def expected(
    fleet: Fleet, samples: float, share: float, cohorts: Sequence[Cohort], arrives: Callable[[int, int, str], bool]
) -> Expected:
    """Returns what to expect of the rounds with these cohorts. A client has `samples` examples and does `share` of its
    work; `arrives` says of (client, round, phase) whether its upload is not lost.
    """
    loads = [ClientLoad(tier.index, samples, share=share) for tier in fleet.method.tiers]
    per_phase = max([1, *(len(cohort) for _, _, cohort in cohorts)])
    turns = []
    for tier, needed in zip(fleet.method.tiers, fleet.needed_bytes, strict=True):
        for profile in dict.fromkeys(fleet.listed):
            parts = fleet.parts_on(profile, loads[tier.index], per_phase)
            spent_j = energy_uj(profile, parts) / _UJ_PER_J
            turns.append(
                Turn(tier.name, profile.name, parts.total_ns / NS_PER_S, spent_j, needed, profile.memory_bytes)
            )
    total = Spent()
    longest_ns: dict[int, int] = {}
    num_late = 0
    for number, phase, cohort in cohorts:
        tasks = []
        spent = []
        up_bytes = 0
        for client, own in cohort:
            load = replace(loads[own], round_number=number)
            late = fleet.is_late(client, load, number, len(cohort))
            num_late += late
            if not late and arrives(client, number, phase):
                up_bytes += fleet.method.costs(load).up_bytes
            task = Task(client, own, number, phase, round(samples), 0.0, cohort_size=len(cohort), is_late=late)
            tasks.append(task)
            spent.append(fleet.turn(task, load))
            longest_ns[client] = max(spent[-1].ns, longest_ns.get(client, 0))
        total = fleet.round_record(tasks, spent, up_bytes, total)[1]
    num_turns = sum(len(cohort) for _, _, cohort in cohorts)
    return Expected(
        turns=tuple(turns),
        slowest_client=max(longest_ns, key=lambda client: longest_ns[client], default=0),
        run_s=total.ns / NS_PER_S,
        run_j=total.uj / _UJ_PER_J,
        late_share=num_late / max(1, num_turns),
    )
