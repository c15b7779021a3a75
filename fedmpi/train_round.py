"""One round, as every rank runs it; read `train_round` from top to bottom, beside its twin `tests/plain_round.py`.

Rank 0 is the server, the others simulate clients; alone, rank 0 does both. Whatever `is_root` selects here is a value,
never a call that others wait in.

What is sent. Before each phase rank 0 broadcasts what the clients need, in one packed buffer: the method's published
    tensors, bounds for the sums, versions of client memories (`rounds/publish.py`); the test of a round uses what is
    broadcast for the next one. With `mpi.factorization=shared` dense weights are broadcast instead of their
    factors, which the ranks compute and add up (`rounds/factors.py`). Then each client's upload travels to rank 0 with
    a report of 128 bytes, or each worker's sums and reports do (`rounds/exchange.py`). Client memories travel as files
    of the run directory (`store/memory.py`). A test adds up its counts (`rounds/evaluate.py`). Cohort, tiers and who
    simulates whom are computed by every rank (`rounds/state.py`).
What is summed. Weight times upload in the server's coordinates (the method's `lift`), as whole numbers: int64 sums of
    rint(w x 2^k), which depend on no order and on no rank (`exactsum.py`). The server divides once, by the weights of
    the clients that sent an entry; an entry that no client sent keeps its value (`rounds/exchange.py`). A client that
    diverges ends the run, or sends nothing, or its last finite net (`train.on_divergence`, `rounds/client.py`).
What is random. The cohort, and tiers that are dynamic (`federation/`); each client's batches and augmentation
    (`data/batches.py`); what a method draws; the order of re-estimation (`rounds/evaluate.py`). Their generators are
    seeded by purpose, seed, round and client (`seeds.py`). Dropout draws from torch's global generator, which is seeded
    for that client alone (`rounds/client.py`). So any rank trains a client to the same bits, at any time.
What happens if a rank dies here. Under plain `mpirun` the job ends, and `--resume` continues after the last checkpoint.
    Under `mpirun --with-ft ulfm` the other ranks get a `RankLossError`, become the ranks of the job (`mpi/comm.py`)
    and call `train_round` again with the same state: a round changes nothing but the files of client memories, and
    writes those again with the same names and bytes. If rank 0 died, the next rank starts the run again from the last
    checkpoint. With fewer ranks than `mpi.min_ranks` the run saves and stops (`running/losses.py`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from fedmpi.federation.assignment import Task
from fedmpi.federation.cohort import learning_rate
from fedmpi.methods.values import Contributions, Phase
from fedmpi.rounds.client import simulate_client
from fedmpi.rounds.evaluate import test_clients, test_tiers
from fedmpi.rounds.exchange import CONTRIBUTED, Results, choose, open_exchange
from fedmpi.rounds.publish import publish
from fedmpi.rounds.state import Published, RoundResult, ServerState, Setup, drawn, is_evaluated, open_phase


def train_round(
    setup: Setup, number: int, state: ServerState, published: Published | None = None
) -> tuple[ServerState, Published, RoundResult]:
    """Trains round `number` (from 1). Returns the new state (rank 0), what the server published of it, and the result.

    `published` is what the round before has published of `state`; None publishes it anew. Raises `RankLossError` where
    ranks have died; the others may call it again with the same state.
    """
    result = RoundResult()
    contributions = None
    for place, phase in enumerate(setup.method.phases(number)):
        published = published or publish(setup, state, number, place)
        state, result, made = train_phase(setup, number, phase, state, published, result)
        contributions = made or contributions
        published = None
    # One broadcast serves this round's test and the clients of the next round.
    published = publish(setup, state, number + 1, 0)
    if contributions is not None:
        result = replace(result, diagnostics=diagnose(setup, number, state, published, contributions))
    if is_evaluated(setup.config, number):
        scores = test_tiers(setup, number, published)
        client_scores = test_clients(setup, number, state, published)
        result = replace(result, scores=scores, client_scores=client_scores)
    return state, published, result


def train_phase(
    setup: Setup, number: int, phase: Phase, state: ServerState, published: Published, result: RoundResult
) -> tuple[ServerState, RoundResult, Contributions | None]:
    """Narrows, trains and uploads each client; exchanges, updates. Returns the new state, the round's result so far,
    and what made the state (rank 0; None if no client contributed)."""
    comm, clock, plan = setup.comm, setup.clock, published.plan
    kind = choose(setup.config.mpi.exchange, setup.method, plan)
    exchange = open_exchange(kind, open_phase(setup, published))
    with clock.stage("submodel_creation", number):  # for the record; workers train meanwhile
        draws = tuple(drawn(setup, task, published) for task in plan.tasks) if comm.is_root else ()
    num_done = 0
    for wave in plan.waves:
        task = wave[comm.rank]
        client_result = simulate_client(setup, task, published) if task else None
        with clock.stage("aggregation" if comm.is_root else "communication", number):
            exchange.post(task, client_result)
        num_done += sum(task is not None for task in wave)
        setup.show_progress(num_done - exchange.num_awaited(), len(plan.tasks))
    with clock.stage("aggregation", number):
        results = exchange.finish(state.params)
        state, contributions = update(setup, state, results, phase, plan.tasks, published)
    with clock.stage("svd", number):
        state = refresh(setup, state, contributions)
    result = replace(
        result,
        reports=result.reports + results.reports,
        tasks=result.tasks + plan.tasks,
        draws=result.draws + draws,
        exchange=kind,
    )
    return state, result, contributions


def update(
    setup: Setup, state: ServerState, results: Results, phase: Phase, tasks: Sequence[Task], published: Published
) -> tuple[ServerState, Contributions | None]:
    """Returns the new server state and what made it (None if no client contributed); new client memories become valid
    with it."""
    report_of = {report.client: report for report in results.reports if report.status == CONTRIBUTED}
    if not (setup.comm.is_root and report_of):
        return state, None
    contributed = [task for task in tasks if task.client in report_of]
    number = contributed[0].round_number
    lr = learning_rate(setup.config.train, number, setup.config.rounds)
    contributions = Contributions(phase, number, lr, contributed, results.shares, published.params)
    written = {client: (number, report.memory_digest) for client, report in report_of.items() if report.memory_digest}
    params = setup.method.update(state.params, results.means, contributions)
    return ServerState(params, {**state.memories, **written} if written else state.memories), contributions


def refresh(setup: Setup, state: ServerState, contributions: Contributions | None) -> ServerState:
    """Returns the state with what the method recomputes of a new one (rank 0)."""
    return state if contributions is None else replace(state, params=setup.method.refresh(state.params))


def diagnose(
    setup: Setup, number: int, state: ServerState, published: Published, contributions: Contributions
) -> Mapping[str, object]:
    """Returns what the method adds to the round's record; rank 0 only."""
    with setup.clock.stage("svd", number):
        return setup.method.diagnostics(state.params, published.params, contributions)
