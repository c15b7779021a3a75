"""One round, as every rank runs it; read `train_round` from top to bottom.

Rank 0 is the server, the others simulate clients; alone, rank 0 does both. Who is in the cohort,
with which capacity, and who simulates whom is computed by every rank and never sent. Whatever
`is_root` selects here is a value, never a call that others wait in.

The steps, each in a module of its name: `setup.plan_phase`, `simulate`, `exchange`, the method's
`update` and `refresh`, `publish`, `learning.evaluate`, `personal`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from fedmpi import seeds
from fedmpi.exchange import CONTRIBUTED, ClientReport, OpenPhase, Results, choose, open_exchange
from fedmpi.federation import Assignment, Task, learning_rate
from fedmpi.learning import FlatNet, TierScore, test_nets
from fedmpi.learning.personal import ClientScores
from fedmpi.methods.protocol import Client, Contributions, Phase
from fedmpi.personal import test_clients
from fedmpi.publish import publish
from fedmpi.setup import Published, ServerState, Setup, client_of, is_evaluated, plan_phase, reestimates
from fedmpi.simulate import simulate_client


@dataclass(frozen=True)
class RoundResult:
    """What a round brought, for the records (reports on rank 0 only)."""

    reports: tuple[ClientReport, ...]
    tasks: tuple[Task, ...]
    scores: tuple[TierScore, ...] | None
    client_scores: ClientScores | None
    diagnostics: Mapping[str, object]
    exchange: str


def train_round(
    setup: Setup, round_number: int, state: ServerState, published: Published
) -> tuple[ServerState, Published, RoundResult]:
    """The state after round `round_number` (from 1), what was published of it, and what there is to report."""
    reports: tuple[ClientReport, ...] = ()
    tasks: tuple[Task, ...] = ()
    diagnostics: Mapping[str, object] = {}
    phases = setup.method.phases(round_number)
    for number, phase in enumerate(phases):
        assignment = plan_phase(setup, round_number, phase)
        kind = choose(setup.config.mpi.exchange, setup.method, assignment)
        exchange = open_exchange(kind, open_phase(setup, assignment, published))
        num_done = 0
        for wave in assignment.waves:
            task = wave[setup.comm.rank]
            report, upload = simulate_client(setup, task, published) if task else (None, None)
            with setup.clock.stage("aggregation" if setup.comm.is_root else "communication", round_number):
                exchange.post(task, report, upload)
            num_done += sum(task is not None for task in wave)
            setup.tell(num_done, len(assignment.tasks))
        with setup.clock.stage("aggregation", round_number):
            results = exchange.finish(state.params)
            state, brought = update(setup, state, results, phase, round_number, assignment.tasks)
        with setup.clock.stage("svd", round_number):
            state, noted = refresh(setup, state, brought)
        last = number == len(phases) - 1
        published = publish(setup, state, *((round_number + 1, 0) if last else (round_number, number + 1)))
        reports, tasks, diagnostics = reports + results.reports, tasks + assignment.tasks, {**diagnostics, **noted}
    scores = client_scores = None
    if is_evaluated(setup.config, round_number):
        scores = test_tiers(setup, round_number, published)
        client_scores = test_clients(setup, round_number, state, published)
    return state, published, RoundResult(reports, tasks, scores, client_scores, diagnostics, kind)


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
