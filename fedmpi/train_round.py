"""One round, as every rank runs it; read `train_round` from top to bottom.

Rank 0 is the server, the others simulate clients; alone, rank 0 does both. Who is in the cohort,
with which capacity, and who simulates whom is computed by every rank and never sent. Whatever
`is_root` selects here is a value, never a call that others wait in.

The steps, each in a module of its name: `setup.plan_phase`, `simulate`, `exchange`, the method's
`update`, `publish`, `learning.evaluate`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fedmpi import seeds
from fedmpi.config.schema import Config
from fedmpi.exchange import CONTRIBUTED, ClientReport, OpenPhase, Results, choose, open_exchange
from fedmpi.federation import Assignment, Task
from fedmpi.learning import FlatNet, TierScore, test_nets
from fedmpi.methods.protocol import Client, Phase
from fedmpi.publish import publish
from fedmpi.setup import Published, ServerState, Setup, client_of, is_evaluated, plan_phase
from fedmpi.simulate import simulate_client


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
            state = update(setup, state, results, phase, assignment.tasks)
        last = number == len(phases) - 1
        published = publish(setup, state, *((round_number + 1, 0) if last else (round_number, number + 1)))
        reports, tasks = reports + results.reports, tasks + assignment.tasks
    scores = test_tiers(setup, round_number, published) if is_evaluated(setup.config, round_number) else None
    return state, published, RoundResult(reports, tasks, scores, kind)


def open_phase(setup: Setup, assignment: Assignment, published: Published) -> OpenPhase:
    """What the exchange of a phase needs to know."""

    def trained(task: Task, memory_digest: str) -> Client:
        version = (task.round_number, memory_digest) if memory_digest else None
        return client_of(setup, task, published, version)

    place = setup.device
    return OpenPhase(
        setup.comm, setup.method, assignment, published.bounds, trained, place.server, pinned=place.has_gpu
    )


def update(setup: Setup, state: ServerState, results: Results, phase: Phase, tasks: Sequence[Task]) -> ServerState:
    """The new server state; new client memories become valid with it."""
    if not setup.comm.is_root:
        return state
    of = {report.client: report for report in results.reports if report.status == CONTRIBUTED}
    contributed = [task for task in tasks if task.client in of]
    fresh = {task.client: (task.round_number, of[task.client].memory_digest) for task in contributed}
    params = setup.method.update(state.params, results.means, phase, contributed) if contributed else state.params
    return ServerState(params, {**state.memories, **fresh} if setup.method.keeps_memory else state.memories)


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
            restat_seed=restat_seed if _reestimates(setup.config, round_number) else None,
        )
    return tuple(scores)


def _reestimates(config: Config, round_number: int) -> bool:
    """Whether BatchNorm is tested with re-estimated statistics in this round (`evaluation.bn`)."""
    if config.evaluation.bn != "milestone":
        return config.evaluation.bn == "restat"
    milestones = getattr(config.train.schedule, "milestones", ())
    return bool(milestones) and round_number >= min(milestones)
