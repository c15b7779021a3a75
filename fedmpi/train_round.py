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
    Under `mpirun --with-ft ulfm` those left get a `RankLossError`, become the ranks of the job (`mpi/recovery.py`) and
    call `train_round` again. `OpenRound` has kept the finished phases and the results that arrived, so only clients
    whose results died are trained again (`rounds/recovering.py`). If rank 0 died, the next rank starts the run again
    from the last checkpoint. With fewer ranks than `mpi.min_ranks` the run saves and stops (`running/losses.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from fedmpi.federation.assignment import Task
from fedmpi.federation.cohort import learning_rate
from fedmpi.methods.values import Contributions, Phase
from fedmpi.rounds.client import simulate_client
from fedmpi.rounds.evaluate import test_clients, test_tiers
from fedmpi.rounds.exchange import CONTRIBUTED, Results
from fedmpi.rounds.publish import publish
from fedmpi.rounds.recovering import OpenRound
from fedmpi.rounds.state import Published, RoundResult, ServerState, Setup, drawn, is_evaluated, plan_phase


def train_round(setup: Setup, opened: OpenRound) -> RoundResult:
    """Takes a round from where it is to its end; the new state is in `opened`, and what there is to report is returned.
    Raises `RankLossError` where ranks have died; those left call it again.
    """
    opened.settle(setup.comm)
    for phase in setup.method.phases(opened.number)[opened.num_phases :]:
        train_phase(setup, opened, phase)
    # One broadcast serves this round's test and the clients of the next round.
    opened.published = published = opened.published or publish(setup, opened.state, opened.number + 1, 0)
    opened.state = audited(setup, opened)  # rank 0, while the others go on
    result = noted(setup, opened, published)
    if not is_evaluated(setup.config, opened.number):
        return result
    scores = test_tiers(setup, opened.number, published)
    client_scores = test_clients(setup, opened.number, opened.state, published)
    return replace(result, scores=scores, client_scores=client_scores)


def train_phase(setup: Setup, opened: OpenRound, phase: Phase) -> None:
    """Publish, broadcast; narrow, train and contribute each client; exchange, update. Done by all ranks or by none."""
    number, comm, clock = opened.number, setup.comm, setup.clock
    planned = plan_phase(setup, number, phase)
    opened.published = published = opened.published or publish(setup, opened.state, number, opened.num_phases)
    exchange, left = opened.exchange_for(setup, planned, published)  # after a loss of ranks: for what is left
    with clock.stage("submodel_creation", number):  # for the record; workers train meanwhile
        draws = tuple(drawn(setup, task, published) for task in planned.tasks) if comm.is_root else ()
    num_done = len(planned.tasks) - len(left.tasks)
    for wave in left.waves:
        task = wave[comm.rank]
        result = simulate_client(setup, task, published) if task and exchange.wants(task) else None
        with clock.stage("aggregation" if comm.is_root else "communication", number):
            exchange.post(task, result)
        num_done += sum(task is not None for task in wave)
        setup.show_progress(num_done - exchange.num_awaited(), len(planned.tasks))
    with clock.stage("aggregation", number):
        results = exchange.finish(opened.state.params)
        comm.agree()  # the phase counts only if all ranks came through it
        state, brought = update(setup, opened.state, results, phase, planned.tasks, published)
    with clock.stage("svd", number):
        opened.close_phase(planned, draws, results, refresh(setup, state, brought), brought)


def update(
    setup: Setup, state: ServerState, results: Results, phase: Phase, tasks: Sequence[Task], published: Published
) -> tuple[ServerState, Contributions | None]:
    """The new server state, and who made it (None if no client did); new client memories become valid with it."""
    of = {report.client: report for report in results.reports if report.status == CONTRIBUTED}
    if not (setup.comm.is_root and of):
        return state, None
    contributed = [task for task in tasks if task.client in of]
    round_number = contributed[0].round_number
    lr = learning_rate(setup.config.train, round_number, setup.config.rounds)
    brought = Contributions(phase, round_number, lr, contributed, results.shares, published.params)
    fresh = {client: (round_number, report.memory_digest) for client, report in of.items() if report.memory_digest}
    params = setup.method.update(state.params, results.means, brought)
    return ServerState(params, {**state.memories, **fresh} if fresh else state.memories), brought


def refresh(setup: Setup, state: ServerState, brought: Contributions | None) -> ServerState:
    """What the method recomputes of a new state (rank 0)."""
    return state if brought is None else replace(state, params=setup.method.refresh(state.params))


def audited(setup: Setup, opened: OpenRound) -> ServerState:
    """The round's state with what the method finds out about it (rank 0). After a loss of ranks it may happen again."""
    audit = setup.method.traits.audit
    if audit is None or opened.brought is None:
        return opened.state
    with setup.clock.stage("svd", opened.number):
        return replace(opened.state, params=audit(opened.state.params))


def noted(setup: Setup, opened: OpenRound, published: Published) -> RoundResult:
    """The round's result with what the method notes of it for the record (rank 0)."""
    if opened.brought is None:
        return opened.result
    with setup.clock.stage("svd", opened.number):
        notes = setup.method.diagnostics(opened.state.params, published.params, opened.brought)
    return replace(opened.result, diagnostics=notes)
