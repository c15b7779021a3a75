"""One round, as every rank runs it. Read `train_round` from top to bottom, beside its twin in `tests/plain_round.py`.

Rank 0 is the server, the others simulate clients; alone, rank 0 does both. All ranks make the same collective calls in
the same order, whatever `is_root` is.

What is sent. Before each phase rank 0 broadcasts the method's published tensors, bounds for the sums, and versions of
    client memories. Tensors that take long to compute (factors of weights) follow in a second broadcast. A worker waits
    for them at its first net that needs them, so dense nets train while rank 0 factorizes. If every net needs them, all
    ranks get the state and factorize some layers each, unless rank 0 has a GPU (`rounds/publish.py`). The test of a
    round uses the broadcast for the next one. Then each client's upload travels to rank 0 with a report, or each
    worker's sums and reports do (`rounds/exchange.py`). Client memories travel as files of the run directory
    (`store/memory.py`). A test adds up its counts (`rounds/evaluate.py`). After the round all ranks exchange their
    seconds and votes to stop (`experiment.py`). Every rank computes the cohort, the tiers and who simulates whom
    (`rounds/state.py`).
What is summed. Weight times upload in the server's coordinates (the method's `lift`), as whole numbers: int64 sums of
    rint(w x 2^k), which depend on no order and on no rank (`exactsum.py`). The server divides once, by the weights of
    the clients that hold an entry (`regions`); an entry that no client holds keeps its value (`rounds/exchange.py`).
    Another aggregate than the mean gets the uploads themselves (`methods/aggregate.py`). A client that diverges ends
    the run, or sends nothing, or its last finite net (`train.on_divergence`, `rounds/client.py`).
What is random. Once a run the partition, the initial values, the clients' devices, and the order of the examples that
    re-estimate BatchNorm statistics (`running/start.py`). Each round the cohort, tiers that are dynamic, shares of the
    work and lost uploads (`federation/`); each client's batches and augmentation (`data/batches.py`), also where its
    net adapts before a test; what a method draws; the augmentation of re-estimation (`rounds/evaluate.py`). The seed of
    each generator is a hash of its purpose, the run's seed and, where they matter, round, client or batch (`seeds.py`).
    Dropout, and code of the user, draw from the global generators of torch, numpy and Python, which are seeded for that
    client (`rounds/client.py`). So any rank trains a client to the same bits, at any time.
What happens if a rank dies here. Under plain `mpirun` the job ends, and `--resume` continues after the last checkpoint.
    Under `mpirun --with-ft ulfm` the other ranks get a `RankLossError`, become the ranks of the job (`mpi/comm.py`)
    and call `train_round` again with the same state. A round changes nothing but the files of client memories, and
    writes those again with the same names and bytes. If rank 0 died, the next rank starts the run again from the last
    checkpoint. With fewer ranks than `mpi.min_ranks` the run saves and stops (`running/losses.py`).
"""

from collections.abc import Mapping
from dataclasses import replace

from fedmpi.federation.cohort import learning_rate
from fedmpi.methods.aggregate import least_uploads
from fedmpi.methods.values import Contributions, Phase
from fedmpi.rounds.client import simulate_client
from fedmpi.rounds.evaluate import test_clients, test_tiers
from fedmpi.rounds.exchange import EXCHANGES, Results, choose
from fedmpi.rounds.publish import publish_early, publish_late, take_late
from fedmpi.rounds.state import CONTRIBUTED, Published, RoundResult, ServerState, Setup, client_of, is_evaluated


def train_round(
    setup: Setup, number: int, state: ServerState, published: Published | None = None
) -> tuple[ServerState, Published, RoundResult]:
    """Trains round `number` (from 1). Returns the new state (rank 0), what the server published of it, and the result.

    `published` is what the round before published of `state`; None publishes it anew. Raises `RankLossError` if ranks
    have died; the others may call it again with the same state.
    """
    result = RoundResult()
    contributions = None
    for place, phase in enumerate(setup.method.phases(number)):
        published = published or publish_early(setup, state, number, place)
        published = publish_late(setup, state, number, published)
        draws = list_draws(setup, number, published)
        exchange = choose(setup.config.mpi.exchange, setup.method, published.plan)
        results = train_clients(setup, number, state, published, exchange)
        state, of_phase = update(setup, number, phase, state, published, results)
        contributions = of_phase or contributions
        result = replace(
            result,
            reports=result.reports + results.reports,
            tasks=result.tasks + published.plan.tasks,
            draws=result.draws + draws,
            exchange=exchange,
        )
        published = None
    # One broadcast serves this round's test and the clients of the next round.
    published = publish_early(setup, state, number + 1, 0)
    if is_evaluated(setup.config, number):
        published = publish_late(setup, state, number, published)
        if contributions is not None:
            with setup.clock.stage("svd", number):
                diagnostics = setup.method.diagnostics(state.params, published.params, contributions)
            result = replace(result, diagnostics=diagnostics)
        scores = test_tiers(setup, number, published)
        client_scores = test_clients(setup, number, state, published)
        result = replace(result, scores=scores, client_scores=client_scores)
    return state, published, result


def train_clients(setup: Setup, number: int, state: ServerState, published: Published, exchange: str) -> Results:
    """Narrows, trains and uploads each client, in waves of one per worker. Returns what rank 0 makes of the uploads."""
    plan = published.plan
    uploads = EXCHANGES[exchange](setup, published)
    for wave in plan.waves:
        task = wave[setup.comm.rank]
        if task:
            with setup.clock.stage("communication", number):
                take_late(setup, published, task.tier)
        client_result = simulate_client(setup, task, published) if task else None
        with setup.clock.stage("aggregation" if setup.comm.is_root else "communication", number):
            uploads.post(wave, client_result)
        setup.show_progress(uploads.num_done, len(plan.tasks))
    with setup.clock.stage("communication", number):
        published.wait()
    with setup.clock.stage("aggregation", number):
        return uploads.finish(state.params)


def update(
    setup: Setup, number: int, phase: Phase, state: ServerState, published: Published, results: Results
) -> tuple[ServerState, Contributions | None]:
    """Returns the new server state, which has the versions of new client memories, and the phase's contributions.

    Returns the state as it is and None if too few clients contributed for the aggregate, and on all ranks but rank 0.
    """
    method = setup.method
    reports = {report.client: report for report in results.reports if report.status == CONTRIBUTED}
    if len(reports) < least_uploads(method.options.aggregate):
        return state, None
    tasks = [task for task in published.plan.tasks if task.client in reports]
    lr = learning_rate(setup.config.train, number, setup.config.rounds)
    contributions = Contributions(phase, number, lr, tasks, results.shares, published.params)
    with setup.clock.stage("aggregation", number):
        params = method.update(state.params, results.means, contributions)
    memories = dict(state.memories)
    for client, report in reports.items():
        if report.memory_digest:
            memories[client] = (number, report.memory_digest)
    return ServerState(params, memories), contributions


def list_draws(setup: Setup, number: int, published: Published) -> tuple[Mapping[str, object], ...]:
    """Returns each client's phase, tier and what the method draws for it, for the record; rank 0 only."""
    draws = []
    with setup.clock.stage("submodel_creation", number):
        for task in published.plan.tasks if setup.comm.is_root else ():
            of_method = setup.method.drawn(client_of(setup, task, published))
            tier = setup.method.tiers[task.tier].name
            partial = {"work": task.share} if task.share < 1 else {}
            draws.append({"client": task.client, "phase": task.phase, "tier": tier, **partial, **of_method})
    return tuple(draws)
