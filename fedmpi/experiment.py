"""A run: build once, resume, then round after round; save and report at round ends only."""

from contextlib import ExitStack, suppress
from dataclasses import replace
from pathlib import Path

import numpy as np

from fedmpi.clock import STAGES
from fedmpi.config.schema import Config
from fedmpi.errors import RankLossError, ServerLossError, TooFewRanksError
from fedmpi.learning.freed_memory import give_back_freed_memory
from fedmpi.mpi.communicator import Communicator, together
from fedmpi.report import observer
from fedmpi.rounds.state import ServerState, Setup
from fedmpi.running import resuming, start
from fedmpi.running.folder import Advice, RunRequest, claim
from fedmpi.running.losses import RunContext, continue_round, end_together
from fedmpi.running.server import Server, Times
from fedmpi.running.stopping import GO_ON, OVER, Stopping
from fedmpi.store.checkpoint import Snapshot
from fedmpi.store.lock import RunLock
from fedmpi.store.memory import MemoryStore
from fedmpi.store.run_dir import RunDir
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
    with context.limits:
        while True:
            try:
                return _start_and_train(context)
            except RankLossError:  # while starting
                with suppress(ServerLossError):
                    context.recover()
            except ServerLossError:  # in a round, after `recover`
                pass
            context.resumes |= context.run_dir is not None  # the next start resumes what this one has begun


def _start_and_train(context: RunContext) -> bool:
    """Trains from the newest checkpoint, or from nothing, to the end."""
    config = context.config
    comm = context.comm
    request = context.request
    resumes = context.resumes
    context.limits.clock = None
    context.limits.of_more_than_a_round()
    observed = together(comm, lambda: observer.named(config) if comm.is_root else {})
    data = context.training_data()
    with ExitStack() as stack:
        # A run that resumes is claimed first. A new one has no folder before its nets are accepted.
        claimed = _claim(context, stack) if resumes else None
        setup = start.prepare(config, comm, RunDir(Path()), data)
        warnings = start.check_nets(setup) if context.begun_after is None else ()
        folder, lock = claimed or _claim(context, stack)
        setup = replace(setup, memories=MemoryStore(folder))
        context.limits.clock = setup.clock
        places = comm.allgather_object(f"{comm.host}: {setup.device.description}")

        def begin_server() -> tuple[Server | None, Snapshot | None]:
            if lock is None:
                return None, None
            snapshot, origin = resuming.begin(setup, folder, request, resumes=resumes)
            server = Server(stack, setup, folder, lock, snapshot, request, context.advice, observed)
            server.announce(places, warnings, origin)
            return server, snapshot

        server, snapshot = together(comm, begin_server)
        rounds = comm.bcast_object(server.rounds_to_go() if server else range(0))
        comm.agree()
        if context.begun_after is None:
            context.begun_after = rounds.start - 1
        context.round_number = max(context.round_number, min(rounds.start, config.rounds))
        context.report(server)
        if server is not None:
            setup = replace(setup, show_progress=server.show_progress)
        state = resuming.initial_state(setup, snapshot)
        give_back_freed_memory()
        comm.wait_for_all()  # a rank that begins a round counts how long the others take
        setup.clock.take()  # so that the first round is not charged for the start
        return _train(context, setup, server, rounds, state)


def _claim(context: RunContext, stack: ExitStack) -> tuple[RunDir, RunLock | None]:
    """Returns the run directory and, on rank 0, its lock, which `stack` gives up. Raises `StartupError`."""
    comm = context.comm
    folder = context.folder()
    return folder, together(comm, lambda: claim(stack, folder, comm, resumes=context.resumes) if comm.is_root else None)


def _train(context: RunContext, setup: Setup, server: Server | None, rounds: range, state: ServerState) -> bool:
    """Trains these rounds, or until a test ends the run (`stop`); returns False if the run was stopped before."""
    number = rounds.start
    vote = GO_ON
    why_stopped = ""
    why_too_few = ""
    published = None
    while number in rounds and vote == GO_ON:
        why_too_few = context.too_few()
        if why_too_few:
            break
        try:
            context.round_number = number
            context.limits.of_a_round()
            new_state, new_published, result = train_round(setup, number, state, published)
            is_over = server is not None and server.is_over(number, result)
            times, vote = _timings_and_vote(context, setup, is_over)
            setup.comm.agree()
        except RankLossError:
            context.recover()
            vote = GO_ON  # the round counts for nothing
            setup = continue_round(context, setup, server)
            published = None  # some ranks may lack it, or it lies on another device
            continue
        state = new_state
        published = new_published
        why_stopped = context.stopping.why(vote) if number + 1 in rounds else ""
        if server is not None:
            server.round_done(number, state, result, times, why_stopped)
        number += 1
    context.limits.of_more_than_a_round()
    has_progress = number - 1 > (context.begun_after or 0)  # this start has made a round
    if server is not None and why_too_few and has_progress:
        server.stop_early(state, why_too_few)
    elif server is not None and not why_too_few and not why_stopped:
        server.close_run()
    end_together(context, server)
    if why_too_few:
        raise TooFewRanksError(why_too_few, made_progress=has_progress)
    return not why_stopped


def _timings_and_vote(context: RunContext, setup: Setup, is_over: bool) -> tuple[Times, int]:
    """Returns the seconds of the round, and the highest vote of all ranks to stop; the same on all ranks."""
    names = (*STAGES, "wall")
    taken = setup.clock.take()
    vote = OVER if is_over else context.stopping.vote(taken["wall"])
    rows = np.array(setup.comm.allgather_object([*(taken[name] for name in names), vote]))
    busy_s = rows[:, names.index("wall")] - rows[:, names.index("idle")]
    means = dict(zip(names, rows[:, :-1].mean(axis=0).tolist(), strict=True))
    busy = dict(zip(map(str, setup.comm.members), busy_s.tolist(), strict=True))
    return {"seconds": means, "busy_s": busy}, int(rows[:, -1].max())
