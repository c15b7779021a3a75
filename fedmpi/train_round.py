"""One round, as every rank runs it; read `train_round` from top to bottom.

Rank 0 is the server, the others simulate clients; alone, rank 0 does both. Who is in the cohort,
with which capacity, and who simulates whom is computed by every rank and never sent. Whatever
`is_root` selects here is a value, never a call that others wait in.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import torch

from fedmpi import seeds
from fedmpi.clock import Clock
from fedmpi.config.schema import Config
from fedmpi.data import DeviceData, Partition, present_labels
from fedmpi.errors import DivergenceError
from fedmpi.exactsum import bound_of
from fedmpi.exchange import CONTRIBUTED, DROPPED, ClientReport, choose, open_exchange
from fedmpi.federation import Assignment, Task, assign, learning_rate, sample_cohort, tier_of
from fedmpi.federation.plan import worker_ranks
from fedmpi.learning import EvaluationPlan, FlatNet, LocalTrainer, MaskedCrossEntropy, TierScore, test_nets
from fedmpi.methods.protocol import Client, Method, Phase
from fedmpi.output.memory import MemoryStore, Version
from fedmpi.tensors import Layout, Params, Spec, max_magnitudes

if TYPE_CHECKING:
    from fedmpi.mpi.comm import Comm
    from fedmpi.mpi.placement import Device

_BOUNDS, _VERSIONS = "#bounds", "#versions"
_VERSION = np.dtype([("round", "i8"), ("digest", "V16")])


@dataclass(frozen=True)
class Setup:
    """What a rank is given once for all rounds; nothing in it changes what is computed next."""

    config: Config
    comm: Comm
    device: Device
    method: Method
    data: DeviceData
    labels: np.ndarray
    partition: Partition
    blocks: tuple[int, ...]
    trainers: tuple[LocalTrainer, ...]
    evaluation: EvaluationPlan
    memories: MemoryStore
    clock: Clock

    @property
    def workers(self) -> range:
        return worker_ranks(self.comm.size, server_trains=self.config.mpi.server_trains)


@dataclass(frozen=True)
class ServerState:
    """All that the next round needs beside the config: the method's tensors and the versions of client memories.

    Only rank 0 has one with content.
    """

    params: Params = field(default_factory=dict)
    memories: Mapping[int, Version] = field(default_factory=dict)


@dataclass(frozen=True)
class Published:
    """What rank 0 broadcast, on this rank's training device; `bounds` has B of each server tensor."""

    params: Params
    bounds: dict[str, float]
    versions: dict[int, Version]


@dataclass(frozen=True)
class RoundResult:
    """What a round brought, for the records (reports on rank 0 only)."""

    reports: tuple[ClientReport, ...]
    tasks: tuple[Task, ...]
    scores: tuple[TierScore, ...] | None
    exchange: str


def train_round(
    setup: Setup, round_number: int, state: ServerState, published: Published
) -> tuple[ServerState, Published, RoundResult]:
    """The state after round `round_number` (from 1), what was published of it, and what there is to report."""
    reports: tuple[ClientReport, ...] = ()
    tasks: tuple[Task, ...] = ()
    phases = setup.method.phases(round_number)
    for number, phase in enumerate(phases):
        assignment = plan_phase(setup, round_number, phase)
        kind = choose(setup.config.mpi.exchange, setup.method, assignment)
        exchange = open_exchange(kind, setup.comm, setup.method, assignment, published.bounds, setup.device.server)
        for wave in assignment.waves:
            task = wave[setup.comm.rank]
            report, upload = simulate_client(setup, task, published) if task else (None, None)
            with setup.clock.stage("aggregation" if setup.comm.is_root else "communication", round_number):
                exchange.post(task, report, upload)
        with setup.clock.stage("aggregation", round_number):
            results = exchange.finish(state.params)
            state = update(setup, state, results.means, results.reports, phase, round_number)
        last = number == len(phases) - 1
        published = publish(setup, state, *((round_number + 1, 0) if last else (round_number, number + 1)))
        reports, tasks = reports + results.reports, tasks + assignment.tasks
    scores = test_tiers(setup, round_number, published) if is_evaluated(setup.config, round_number) else None
    return state, published, RoundResult(reports, tasks, scores, kind)


# The plan: pure functions of (config, seed, round).


def plan_phase(setup: Setup, round_number: int, phase: Phase) -> Assignment:
    """This phase's clients with their tiers, and who simulates them: longest job first."""
    seed, clients, train = setup.config.seed, setup.config.clients, setup.config.train
    dynamic = clients.tier_assignment == "dynamic"

    def tier(client: int) -> int:
        return tier_of(client, setup.blocks, dynamic=dynamic, seed=seed, round_number=round_number)

    eligible: int | list[int] = clients.count
    if phase.tiers is not None:
        eligible = [client for client in range(clients.count) if tier(client) in phase.tiers]
    size = clients.per_round if phase.num_clients is None else phase.num_clients
    cohort = sample_cohort(eligible, size, seed=seed, round_number=round_number, phase=phase.name)
    tasks = []
    for client in cohort:
        examples = int(setup.partition.sizes[client])
        cost = train.local_epochs * examples * setup.evaluation.costs[tier(client)]
        tasks.append(Task(client, tier(client), round_number, phase.name, examples, cost))
    return assign(tasks, setup.workers, setup.comm.size)


def is_evaluated(config: Config, round_number: int) -> bool:
    return round_number % config.evaluation.every == 0 or round_number == config.rounds


# Server half.


def publish(setup: Setup, state: ServerState, round_number: int, phase_number: int) -> Published:
    """Broadcasts what the coming phase's clients need and, after the last phase of a round, what its test needs.

    After round t this is called for round t + 1: one factorization serves the test of round t and
    the clients of round t + 1.
    """
    method, comm = setup.method, setup.comm
    phase = method.phases(round_number)[phase_number]
    tasks = plan_phase(setup, round_number, phase).tasks
    tested = phase_number == 0 and round_number > 1 and is_evaluated(setup.config, round_number - 1)
    tiers = {task.tier for task in tasks} | (set(range(len(method.tiers))) if tested else set())
    layout = _published_layout(method, tiers, len(tasks))
    buffer = layout.new_buffer(setup.device.server if comm.is_root else "cpu")
    with setup.clock.stage(method.publishing_is, round_number):
        if comm.is_root:
            views = layout.views(buffer)
            _write_head(views, state, tasks)
            method.publish(state.params, tiers, views)
    with setup.clock.stage("communication", round_number):
        buffer = buffer.cpu()
        comm.bcast(buffer)
        views = layout.views(buffer)
        bounds = dict(zip(method.state_specs(), views.pop(_BOUNDS).tolist(), strict=True))
        versions = _read_versions(views.pop(_VERSIONS), tasks)
        if setup.data.device.type != "cpu":
            views = {name: v for name, v in layout.views(buffer.to(setup.data.device)).items() if name in views}
    return Published(views, bounds, versions)


def _published_layout(method: Method, tiers: Collection[int], num_tasks: int) -> Layout:
    num_bounds, num_versions = len(method.state_specs()), num_tasks if method.keeps_memory else 0
    head = {
        _BOUNDS: Spec((num_bounds,), torch.float64),
        _VERSIONS: Spec((num_versions * _VERSION.itemsize,), torch.uint8),
    }
    return Layout.of(head | method.published_specs(tiers))


def _write_head(views: Params, state: ServerState, tasks: Collection[Task]) -> None:
    magnitudes = max_magnitudes(state.params.values()).tolist()
    views[_BOUNDS].copy_(torch.tensor([bound_of(m) for m in magnitudes], dtype=torch.float64))
    rows = views.pop(_VERSIONS).numpy().view(_VERSION)
    for place, task in enumerate(tasks) if len(rows) else ():
        number, digest = state.memories.get(task.client, (-1, ""))
        rows[place] = (number, bytes.fromhex(digest))


def _read_versions(view: torch.Tensor, tasks: Collection[Task]) -> dict[int, Version]:
    rows = zip(view.numpy().view(_VERSION), tasks, strict=False)
    return {task.client: (int(row["round"]), bytes(row["digest"]).hex()) for row, task in rows if row["round"] >= 0}


def update(
    setup: Setup, state: ServerState, means: Params, reports: Collection[ClientReport], phase: Phase, round_number: int
) -> ServerState:
    """The new server state; new client memories become valid with it."""
    if not setup.comm.is_root:
        return state
    fresh = {r.client: (round_number, r.memory_digest) for r in reports if r.memory_digest and r.status == CONTRIBUTED}
    params = setup.method.update(state.params, means, phase) if _anybody(reports) else state.params
    return ServerState(params, {**state.memories, **fresh})


def _anybody(reports: Collection[ClientReport]) -> bool:
    return any(report.status == CONTRIBUTED for report in reports)


# Client half.


def simulate_client(setup: Setup, task: Task, published: Published) -> tuple[ClientReport, Params | None]:
    """Fetch the client's memory, narrow, train, and what it contributes (None if it is dropped)."""
    method, trainer, clock = setup.method, setup.trainers[task.tier], setup.clock
    where = task.round_number, task.client
    with clock.stage("submodel_creation", *where):
        memory = setup.memories.get(task.client, published.versions.get(task.client)) if method.keeps_memory else None
        client = Client(task, published.params, memory)
        method.narrow(published.params, task.tier, trainer.net.params)
        method.restore(trainer.net, client)
    with clock.stage("local_training", *where) as timer:
        examples = setup.partition.client(task.client)
        generator = seeds.torch_generator("batches", setup.config.seed, task.round_number, task.client)
        draws = setup.data.draws(examples, setup.config.train.local_epochs, generator)
        outcome = trainer.run(
            draws,
            learning_rate(setup.config.train, task.round_number, setup.config.rounds),
            _loss(setup, examples),
            lambda net, x, y, loss: method.backward(net, x, y, loss, client),
            lambda net: method.after_backward(net, client),
        )
        contributes = _settle_divergence(setup, trainer, client, published.bounds, outcome.finite)
        upload = method.upload(trainer.net, client)
        digest = ""
        if contributes and method.keeps_memory:
            _, digest = setup.memories.put(task.client, task.round_number, method.remember(trainer.net, client))
    status = CONTRIBUTED if contributes else DROPPED
    report = ClientReport(task.client, status, outcome.steps, outcome.loss, timer.seconds, digest)
    return report, upload if contributes else None


def _loss(setup: Setup, examples: np.ndarray) -> MaskedCrossEntropy:
    if not setup.config.train.masked_loss:
        return MaskedCrossEntropy(None)
    present = present_labels(setup.labels, examples, setup.data.info.num_classes)
    return MaskedCrossEntropy(torch.from_numpy(present).to(setup.data.device))


def _settle_divergence(
    setup: Setup, trainer: LocalTrainer, client: Client, bounds: Mapping[str, float], finite: bool
) -> bool:
    """Whether the client contributes, after `train.on_divergence` has had its say. One synchronization."""
    policy = setup.config.train.on_divergence
    if finite and _is_bounded(setup.method, trainer.net, client, bounds):
        return True
    if policy == "fail":
        raise DivergenceError(
            "training diverged: a loss was not finite or above 1000, or a parameter left its bound; lower train.lr, "
            "or choose train.on_divergence=drop or upload_last_finite"
        )
    if policy == "drop":
        return False
    trainer.restore_last_finite()
    return _is_bounded(setup.method, trainer.net, client, bounds)


def _is_bounded(method: Method, net: FlatNet, client: Client, bounds: Mapping[str, float]) -> bool:
    """Whether everything this client would add is finite and within the bounds that exact sums need."""
    largest = method.magnitudes(method.upload(net, client), client.task).double()
    limits = torch.tensor(list(bounds.values()), dtype=torch.float64, device=largest.device)
    return bool((largest <= limits).all())  # False for NaN, too


# Evaluation.


def test_tiers(setup: Setup, round_number: int, published: Published) -> tuple[TierScore, ...]:
    """Every tier's net on the whole test set; the work is spread over the workers."""

    def load(tier: int) -> FlatNet:
        net = setup.trainers[tier].net
        setup.method.narrow(published.params, tier, net.params)
        return net

    def augmentation(batch: int) -> torch.Generator:
        return seeds.torch_generator("restat", setup.config.seed, round_number, batch)

    with setup.clock.stage("evaluation", round_number):
        scores = test_nets(
            setup.evaluation,
            load,
            setup.data,
            setup.comm.allreduce_sum,
            worker=setup.workers.index(setup.comm.rank) if setup.comm.rank in setup.workers else None,
            num_workers=len(setup.workers),
            restat_generator=augmentation if _reestimates(setup.config, round_number) else None,
        )
    return tuple(scores)


def _reestimates(config: Config, round_number: int) -> bool:
    """Whether BatchNorm is tested with re-estimated statistics in this round (`evaluation.bn`)."""
    if config.evaluation.bn != "milestone":
        return config.evaluation.bn == "restat"
    milestones = getattr(config.train.schedule, "milestones", ())
    return bool(milestones) and round_number >= min(milestones)


