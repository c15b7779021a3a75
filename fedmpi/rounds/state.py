"""What a rank is given once, the state that travels from round to round, and the plan of a phase."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING

from fedmpi.errors import ConfigError
from fedmpi.federation.assignment import Assignment, Task, assign, worker_ranks
from fedmpi.federation.participation import SAMPLING, Participation
from fedmpi.methods.values import Client, ClientLoad, Phase
from fedmpi.tensors import Params, Spec

if TYPE_CHECKING:
    from torch import nn

    from fedmpi.clock import Clock
    from fedmpi.config.schema import Config
    from fedmpi.costs import Costs
    from fedmpi.data.batches import DeviceData
    from fedmpi.data.dataset import DataInfo, Dataset
    from fedmpi.data.partition import Partition
    from fedmpi.devices.fleet import Fleet
    from fedmpi.learning.evaluate import ClientScores, EvaluationPlan, TierScore
    from fedmpi.learning.local import LocalTrainer
    from fedmpi.methods.protocol import Method
    from fedmpi.mpi.communicator import Communicator
    from fedmpi.mpi.placement import Device
    from fedmpi.store.memory import MemoryStore, Version


@dataclass(frozen=True)
class Design:
    """What a plan knows: who takes part, and what the method makes of the model. It has no examples."""

    config: Config
    info: DataInfo
    participation: Participation
    fleet: Fleet | None
    """The clients' devices, where a clock runs (`devices`)."""
    method: Method
    skeletons: Sequence[nn.Module]
    nets: Sequence[Costs]
    """All nets of the method without values, and what they cost."""


@dataclass(frozen=True)
class Federation(Design):
    """The design, the examples, and whose they are: the same on all ranks."""

    dataset: Dataset
    partition: Partition
    personal_tests: Partition | None
    """Which test examples are each client's own, where clients are tested with nets of their own."""
    file_digests: Mapping[str, str]
    """Of the files beside the data that the run is computed with, by the names in `made_with`."""


@dataclass(frozen=True)
class Setup(Federation):
    """What a rank is given once for all rounds; nothing in it changes what is computed next."""

    comm: Communicator
    device: Device
    data: DeviceData
    computed_with: Mapping[str, str]
    """What bits depend on beside the config and the data, of all ranks (`made_with`)."""
    trainers: tuple[LocalTrainer, ...]
    """One for each of the method's nets (none on a rank 0 that does not train)."""
    evaluation: EvaluationPlan
    memories: MemoryStore
    clock: Clock
    show_progress: Callable[[int, int], None] = lambda done, total: None
    """Is called after each wave with how many of a phase's clients are done, and how many there are."""

    @cached_property
    def macs(self) -> tuple[float, ...]:
        """Returns the multiply-accumulates per example of each net."""
        return tuple(net.weight for net in self.nets)

    @property
    def workers(self) -> range:
        return worker_ranks(self.comm.size, server_trains=self.config.mpi.server_trains)


@dataclass(frozen=True)
class ServerState:
    """All that the next round needs beside the config, and so what a checkpoint holds: the method's tensors and the
    versions of client memories. Only rank 0 has one with content.
    """

    params: Params = field(default_factory=dict)
    memories: Mapping[int, Version] = field(default_factory=dict)


@dataclass(frozen=True)
class Published:
    """What rank 0 broadcast for a phase, on this rank's training device.

    `bounds` has B of each server tensor, `versions` those of the clients' memories, `plan` the clients of the phase.
    `nets` are those that it is for. `late` names the tensors that `publish_late` sends. Call `wait` before you
    read them from `params`.
    """

    params: Params
    bounds: dict[str, float]
    versions: dict[int, Version]
    plan: Assignment
    nets: Sequence[int] = ()
    late: Mapping[str, Spec] = field(default_factory=dict)
    wait: Callable[[], None] = lambda: None


CONTRIBUTED = 1
DROPPED = 2
LOST = 3
"""What became of a client in this phase: its upload counts, its training diverged, or its upload never arrived (or it
was too late for the deadline)."""


@dataclass(frozen=True)
class ClientReport:
    """What a worker reports of one client in one phase beside its upload."""

    client: int
    status: int
    steps: int = 0
    loss: float = 0.0
    down_bytes: int = 0
    up_bytes: int = 0
    """Protocol bytes: what this client would have moved."""
    restored: int = 0
    """1 if its training diverged and it sent its last finite parameters."""
    left_out: int = 0
    """How many of its steps fp16 left out."""
    simulated_ns: int = 0
    simulated_uj: int = 0
    """Time and energy on the client's own device (`devices`)."""
    memory_digest: str = ""
    """Hexadecimal digest of the client's new memory; '' if it stored none."""


@dataclass(frozen=True)
class RoundResult:
    """What the records get of a round (reports on rank 0 only); without a test there are no scores."""

    reports: tuple[ClientReport, ...] = ()
    tasks: tuple[Task, ...] = ()
    draws: tuple[Mapping[str, object], ...] = ()
    """`train_round.list_draws` of the round's tasks, in the order of `tasks` (on rank 0 only)."""
    scores: Mapping[str, TierScore] = field(default_factory=dict)
    """By name of the net."""
    client_scores: ClientScores | None = None
    diagnostics: Mapping[str, object] = field(default_factory=dict)
    exchange: str = ""
    """How the results of the last phase reached the server: `gather` or `reduce`."""


def plan_phase(setup: Setup, round_number: int, phase: Phase) -> Assignment:
    """Returns this phase's clients with their tiers, and who simulates them: longest job first. Every rank calls it.

    Raises `ConfigError` where the user's function chooses other clients on some ranks.
    """
    chosen = setup.participation
    tasks = draw_tasks(setup, setup.macs, round_number, phase)
    cohort = [(task.client, task.tier) for task in tasks]
    if chosen.function and len(set(setup.comm.allgather_object(str(cohort)))) > 1:
        name = setup.config.clients.sampling
        raise ConfigError(SAMPLING, f"{name} returns other clients on some ranks for round {round_number}")
    return assign(tasks, setup.workers, setup.comm.size, setup.method.late_nets, sum(setup.method.late.values()))


def draw_tasks(design: Design, macs: Sequence[float], round_number: int, phase: Phase) -> list[Task]:
    """Returns the task of every client that takes part in this phase of this round, sorted by client. `macs` are the
    multiply-accumulates per example of each net; without them tasks cost nothing.
    """
    participation = design.participation
    assert participation.sizes is not None
    cohort = participation.cohort(round_number, phase.name, phase.num_clients, phase.tiers)
    tasks = []
    for place, (client, tier) in enumerate(cohort):
        size = int(participation.sizes[client])
        share = participation.work_share(client, round_number)
        arrives = participation.arrives(client, round_number, phase.name)
        task = Task(client, tier, round_number, phase.name, size, 0.0, place, len(cohort), share, arrives)
        if macs:
            task = replace(task, cost=design.method.count_training(ClientLoad.of_task(task)).macs(macs))
        if design.fleet and design.fleet.is_late(task):
            task = replace(task, arrives=False, is_late=True)
        tasks.append(task)
    return tasks


def client_of(setup: Setup, task: Task, published: Published, memory_digest: str = "") -> Client:
    """Returns the client as its method sees it before its training, or after it with the digest of the memory that it
    stored ('' for none). Reads its memory when the method first uses it.
    """
    version = (task.round_number, memory_digest) if memory_digest else published.versions.get(task.client)

    def recall() -> Params | None:
        return setup.memories.get(task.client, version) if setup.method.keeps_memory else None

    return Client(task, published.params, setup.partition.client(task.client), setup.config.seed, recall)


def personal_task(setup: Setup, client: int, round_number: int) -> Task:
    """Returns the task of testing one client's own net after a round."""
    assert setup.personal_tests is not None
    chosen = setup.participation
    tier = chosen.tier(client, round_number)
    if tier is None:
        tier = chosen.block_tier(client, round_number)
    num_examples = len(setup.partition.client(client))
    cost = setup.macs[tier] * (len(setup.personal_tests.client(client)) + num_examples)
    return Task(client, tier, round_number, "test", num_examples, cost)


def is_evaluated(config: Config, round_number: int) -> bool:
    return round_number % config.evaluation.every == 0 or round_number == config.rounds


def reestimates(config: Config, round_number: int) -> bool:
    """Returns whether BatchNorm is tested with re-estimated statistics in this round (`evaluation.bn`)."""
    if config.evaluation.bn != "milestone":
        return config.evaluation.bn == "restat"
    milestones = getattr(config.train.schedule, "milestones", ())
    return bool(milestones) and round_number > min(milestones)
