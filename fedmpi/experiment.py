"""A run: build once, resume, then round after round; save and report at round ends only.

A run outlives its ranks where the launcher lets it; what it does then is in `running/losses.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

import numpy as np

from fedmpi.clock import STAGES
from fedmpi.config.schema import Config
from fedmpi.errors import RankLossError, StartupError
from fedmpi.mpi.communicator import Communicator, together
from fedmpi.rounds.state import ServerState, Setup
from fedmpi.running import folder as run_folder
from fedmpi.running import observers, resuming, start
from fedmpi.running.advice import Advice
from fedmpi.running.folder import RunRequest
from fedmpi.running.init_from import save_first_state
from fedmpi.running.losses import RunContext, abort_run, continue_run, end_together, train_through_losses
from fedmpi.running.results import Times
from fedmpi.running.server import Server
from fedmpi.running.stopping import Stopping
from fedmpi.store.checkpoint import Snapshot
from fedmpi.store.lock import RunLock
from fedmpi.train_round import train_round


def run(
    config: Config,
    comm: Communicator,
    request: RunRequest,
    *,
    stopping: Stopping | None = None,
    advice: Advice | None = None,
) -> bool:
    """Trains to the last round. Returns False if the run was stopped before; `advice` gets the run directory.

    Raises `StartupError` or `TooFewRanksError` (on all ranks), or a `RoundError` where something broke.
    """
    context = RunContext(config, comm, request, stopping or Stopping(), advice or Advice(config))
    return train_through_losses(context, _start_and_train)


def _start_and_train(context: RunContext) -> bool:
    """Trains from the newest checkpoint, or from nothing, to the end."""
    config = context.config
    comm = context.comm
    request = context.request
    context.limits.clock = None
    context.allow_more_than_a_round()
    if why := context.too_few():
        abort_run(context, why)
    observed = together(comm, lambda: observers.named(config) if comm.is_root else [])
    training_data = context.training_data()
    folder = context.folder()
    with ExitStack() as stack:
        lock = together(comm, lambda: _lock(stack, context) if comm.is_root else None)
        config, server_device = resuming.with_server_device(config, comm, folder)
        context.config = config  # from here on the config that the run was begun with
        setup = start.prepare(config, comm, folder, training_data, server_device)
        context.limits.clock = setup.clock
        first_state = save_first_state(setup, folder, request.origin)
        snapshot = resuming.restore(setup, folder, resume=context.resumes or request.origin is not None)
        done = int(comm.allgather_text(str(snapshot.round if snapshot else 0))[0])
        context.rounds_are_over = done >= config.rounds
        if not (why := context.too_few()):
            server = _server(stack, context, setup, lock, snapshot, observed, first_state)
            context.begun_after = done if context.begun_after is None else context.begun_after
            context.report(server, done + 1)
            if server is not None:
                setup = replace(setup, show_progress=server.show_progress)
            state = resuming.initial_state(setup, snapshot)
            comm.wait_for_all()  # a rank that begins a round counts how long the others take
            setup.clock.take()  # so that the first round is not charged for the start
            return _train(context, setup, server, done + 1, state)
    abort_run(context, why)


def _lock(stack: ExitStack, context: RunContext) -> RunLock:
    """Holds the run directory on rank 0 until `stack` closes."""
    folder = context.folder()
    has_origin = context.request.origin is not None
    lock = run_folder.lock_within(context.patience_s, stack, folder, context.comm)
    if has_origin and context.made_folder:
        stack.push(lambda _, error, __: folder.remove_unbegun() if isinstance(error, StartupError) else None)
    run_folder.take(folder, context.config, resumes=context.resumes, has_origin=has_origin)
    return lock


def _server(
    stack: ExitStack,
    context: RunContext,
    setup: Setup,
    lock: RunLock | None,
    snapshot: Snapshot | None,
    observed: list[observers.Observed],
    first_state: Mapping[str, Any],
) -> Server | None:
    """Makes rank 0's part, which says who got what; None on the other ranks."""
    comm = setup.comm
    folder = context.folder()
    places = comm.allgather_text(f"{comm.host}: {setup.device.description}")
    warnings = start.check_nets(setup) if context.begun_after is None else ()
    request = context.request
    advice = context.advice
    server = together(
        comm, lambda: Server(stack, setup, folder, lock, snapshot, request, advice, observed) if lock else None
    )
    together(comm, lambda: server.announce(places, warnings, first_state) if server else None)
    comm.agree()
    return server


def _train(context: RunContext, setup: Setup, server: Server | None, number: int, state: ServerState) -> bool:
    """Trains all rounds from `number` on; returns whether it came to the last. Raises `ServerLossError`."""
    config = context.config
    stops = ""
    published = None
    while number <= config.rounds and not stops:
        try:
            context.round_number = number
            context.limits.of_a_round()
            new_state, new_published, result = train_round(setup, number, state, published)
            times, stop_vote = _timings_and_stop_vote(context, setup)
            setup.comm.agree()
        except RankLossError:
            setup = continue_run(context, setup, server, state)
            published = None  # some ranks may lack it, or it lies on another device
            continue
        state = new_state
        published = new_published
        stops = context.stopping.why(stop_vote) if number < config.rounds else ""
        if server is not None:
            server.round_done(number, state, result, times, stops)
        number += 1
    context.rounds_are_over = not stops
    context.allow_more_than_a_round()
    if server is not None and context.rounds_are_over:
        server.close_run()
    end_together(context, server, number)
    return not stops


def _timings_and_stop_vote(context: RunContext, setup: Setup) -> tuple[Times, int]:
    """Returns the seconds of the round, and the highest wish to stop; the same on all ranks.

    Rank 0 knows best how long a round takes: it is the one that saves.
    """
    names = (*STAGES, "wall")
    taken = setup.clock.take()
    stop_vote = context.stopping.vote(taken["wall"])
    rows = setup.comm.allgather_rows(np.array([*(taken[name] for name in names), stop_vote]))
    busy_s = rows[:, names.index("wall")] - rows[:, names.index("idle")]
    means = dict(zip(names, rows[:, :-1].mean(axis=0).tolist(), strict=True))
    busy = dict(zip(map(str, setup.comm.members), busy_s.tolist(), strict=True))
    return {"seconds": means, "busy_s": busy}, int(rows[:, -1].max())
