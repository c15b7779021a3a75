"""One round, as every rank runs it; read `train_round` from top to bottom.

Rank 0 is the server, the others simulate clients; alone, rank 0 does both. Who is in the cohort,
with which capacity, and who simulates whom is computed by every rank and never sent. Whatever
`is_root` selects here is a value, never a call that others wait in.

The steps, each in a module of its name: `setup.plan_phase`, `simulate`, `exchange`, the method's
`update` and `refresh`, `publish`, `learning.evaluate`, `personal`.

Where ranks may be lost (`mpi.recovery`), a phase ends with an agreement of all ranks, and what
`OpenRound` has of it stays: those left train only clients whose results nobody has.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from fedmpi import seeds
from fedmpi.federation.cohort import learning_rate
from fedmpi.federation.plan import Assignment, Task, assign
from fedmpi.learning.client_scores import ClientScores
from fedmpi.learning.evaluate import TierScore, test_nets
from fedmpi.learning.flat import FlatNet
from fedmpi.methods.values import Client, Contributions, Phase
from fedmpi.rounds.client import simulate_client
from fedmpi.rounds.exchange import (
    ADDED,
    AT_HAND,
    CONTRIBUTED,
    ClientReport,
    Exchange,
    OpenPhase,
    Results,
    choose,
    open_exchange,
)
from fedmpi.rounds.personal import test_clients
from fedmpi.rounds.publish import publish
from fedmpi.rounds.state import Published, ServerState, Setup, client_of, is_evaluated, plan_phase, reestimates


@dataclass(frozen=True)
class RoundResult:
    """What a round brought, for the records (reports on rank 0 only)."""

    reports: tuple[ClientReport, ...]
    tasks: tuple[Task, ...]
    scores: tuple[TierScore, ...] | None
    client_scores: ClientScores | None
    diagnostics: Mapping[str, object]
    exchange: str


@dataclass
class OpenRound:
    """How far round `number` (from 1) has come: all that outlives a loss of ranks."""

    number: int
    state: ServerState
    """After the phases that are done; on rank 0."""
    published: Published | None = None
    """Of that state, for the step that comes next; None if this rank has yet to get it."""
    kinds: tuple[str, ...] = ()
    """Of the exchange of each phase that was begun."""
    num_phases: int = 0
    """Phases that are done; the same on all ranks."""
    exchange: Exchange | None = None
    """Of the phase that is not; None if this rank has yet to open it."""
    has_lost_ranks: bool = False
    """Since the last phase that is done. Those left may have come to different places in it."""
    reports: tuple[ClientReport, ...] = ()
    tasks: tuple[Task, ...] = ()
    diagnostics: Mapping[str, object] = field(default_factory=dict)
    seconds: Mapping[str, float] = field(default_factory=dict)
    """Of this rank, by stage."""
    before: ServerState = field(init=False)
    """The round: what is saved where it cannot be finished."""

    def __post_init__(self) -> None:
        self.before = self.state


def train_round(setup: Setup, opened: OpenRound) -> RoundResult:
    """Takes a round from where it is to its end, and tells what there is to report.

    Raises `RankLossError` where ranks have died; those left call it again.
    """
    for phase in setup.method.phases(opened.number)[opened.num_phases :]:
        train_phase(setup, opened, phase)
    published = published_now(setup, opened, opened.number + 1, 0)
    scores = client_scores = None
    if is_evaluated(setup.config, opened.number):
        scores = test_tiers(setup, opened.number, published)
        client_scores = test_clients(setup, opened.number, opened.state, published)
    return RoundResult(opened.reports, opened.tasks, scores, client_scores, opened.diagnostics, opened.kinds[-1])


def train_phase(setup: Setup, opened: OpenRound, phase: Phase) -> None:
    """Publish, broadcast; narrow, train and contribute each client; exchange, update. Done by all ranks or by none."""
    number, comm, clock = opened.number, setup.comm, setup.clock
    planned = assignment = plan_phase(setup, number, phase)
    if len(opened.kinds) == opened.num_phases:
        opened.kinds += (choose(setup.config.mpi.exchange, setup.method, planned),)
    published = published_now(setup, opened, number, opened.num_phases)
    exchange = opened.exchange or open_exchange(opened.kinds[-1], open_phase(setup, planned, published))
    opened.exchange = exchange
    if opened.has_lost_ranks:
        assignment = plan_rest(setup, planned, exchange)
        exchange.begin_again(assignment)
    num_done = len(planned.tasks) - len(assignment.tasks)
    for wave in assignment.waves:
        task = wave[comm.rank]
        is_new = task is not None and not exchange.can_repeat(task)
        report, upload = simulate_client(setup, task, published) if task and is_new else (None, None)
        with clock.stage("aggregation" if comm.is_root else "communication", number):
            exchange.post(task, report, upload)
        num_done += sum(task is not None for task in wave)
        setup.tell(num_done, len(planned.tasks))
    with clock.stage("aggregation", number):
        results = exchange.finish(opened.state.params)
        comm.agree()
        state, brought = update(setup, opened.state, results, phase, number, planned.tasks)
    with clock.stage("svd", number):
        opened.state, noted = refresh(setup, state, brought)
    opened.num_phases += 1
    opened.published, opened.exchange, opened.has_lost_ranks = None, None, False
    opened.reports, opened.tasks = opened.reports + results.reports, opened.tasks + planned.tasks
    opened.diagnostics = {**opened.diagnostics, **noted}


def published_now(setup: Setup, opened: OpenRound, round_number: int, phase_number: int) -> Published:
    """What the coming step works with, published if it is not yet; after a loss, if anybody has it not."""
    published = opened.published
    if opened.has_lost_ranks and not setup.comm.allgather_rows(np.array([published is not None])).all():
        published = None
    opened.published = published or publish(setup, opened.state, round_number, phase_number)
    return opened.published


def plan_rest(setup: Setup, planned: Assignment, exchange: Exchange) -> Assignment:
    """After a loss: the clients whose results nobody has added, first those whose results somebody has at hand."""
    has = exchange.has()
    own = np.array([has.get(task.client, 0) for task in planned.tasks], np.uint8)
    rows = setup.comm.allgather_rows(own)
    rest = [task for task, added in zip(planned.tasks, (rows == ADDED).any(0), strict=True) if not added]
    places = {task.client: column for task, column in zip(planned.tasks, (rows == AT_HAND).T, strict=True)}
    at_hand = {task.client: int(places[task.client].argmax()) for task in rest if places[task.client].any()}
    return assign(rest, setup.workers, setup.comm.size, at_hand)


def open_phase(setup: Setup, assignment: Assignment, published: Published) -> OpenPhase:
    """What the exchange of a phase needs to know."""

    def trained(task: Task, memory_digest: str) -> Client:
        version = (task.round_number, memory_digest) if memory_digest else published.versions.get(task.client)
        return client_of(setup, task, published, version)

    place = setup.device
    return OpenPhase(
        setup.comm, setup.method, assignment, published.bounds, trained, place.server, pinned=place.has_gpu
    )


def update(
    setup: Setup, state: ServerState, results: Results, phase: Phase, round_number: int, tasks: Sequence[Task]
) -> tuple[ServerState, Contributions | None]:
    """The new server state, and who made it (None if nobody); new client memories become valid with it."""
    of = {report.client: report for report in results.reports if report.status == CONTRIBUTED}
    if not (setup.comm.is_root and of):
        return state, None
    contributed = [task for task in tasks if task.client in of]
    lr = learning_rate(setup.config.train, round_number, setup.config.rounds)
    brought = Contributions(phase, round_number, lr, contributed, results.shares)
    fresh = {client: (round_number, report.memory_digest) for client, report in of.items() if report.memory_digest}
    params = setup.method.update(state.params, results.means, brought)
    return ServerState(params, {**state.memories, **fresh} if fresh else state.memories), brought


def refresh(
    setup: Setup, state: ServerState, brought: Contributions | None
) -> tuple[ServerState, Mapping[str, object]]:
    """What the method recomputes of a new state, and what it notes of it for the record (rank 0)."""
    if brought is None:
        return state, {}
    params = setup.method.refresh(state.params)
    return replace(state, params=params), setup.method.diagnostics(params, brought)


def test_tiers(setup: Setup, round_number: int, published: Published) -> tuple[TierScore, ...]:
    """The nets that the method has tested, on the whole test set; the work is spread over the workers."""

    tested = setup.method.tested()

    def load(place: int) -> FlatNet:
        net = setup.trainers[tested[place].net].net
        setup.method.narrow(published.params, tested[place].net, net.params)
        return net

    def restat_seed(batch: int) -> int:
        return seeds.mix("restat", setup.config.seed, round_number, batch)

    with setup.clock.stage("evaluation", round_number):
        scores = test_nets(
            setup.evaluation,
            load,
            setup.data,
            setup.comm.allreduce_sum,
            worker=setup.workers.index(setup.comm.rank) if setup.comm.rank in setup.workers else None,
            num_workers=len(setup.workers),
            restat_seed=restat_seed if reestimates(setup.config, round_number) else None,
        )
    return tuple(scores)
