"""A run: build once, resume, then round after round; save and report at round ends only."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from fedmpi import methods, startup
from fedmpi.clock import STAGES
from fedmpi.config import yaml_text
from fedmpi.config.schema import Config
from fedmpi.desk import Desk
from fedmpi.output import checkpoint
from fedmpi.output.files import write_text
from fedmpi.output.lock import RunLock
from fedmpi.output.run_dir import RunDir
from fedmpi.publish import publish
from fedmpi.setup import Setup
from fedmpi.stopping import Stopping
from fedmpi.train_round import train_round

if TYPE_CHECKING:
    from fedmpi.mpi.comm import Comm


def run(
    config: Config,
    comm: Comm,
    *,
    run_dir: str | None,
    resume: bool,
    command: Sequence[str],
    where: dict[str, str],
    make_method: startup.MakeMethod = methods.create,
    stopping: Stopping | None = None,
) -> bool:
    """Trains to the last round; False if it was stopped before. Raises `StartupError` (on all ranks), or a
    `RoundError` where something broke.

    `where["resume"]` gets the command to go on with, as soon as there is something to go on with.
    """
    stopping = stopping or Stopping()
    material = startup.load_material(config, comm)
    folder = startup.open_run_dir(config, comm, run_dir, resume=resume)
    where["resume"] = startup.resume_command(folder, comm.size)
    with ExitStack() as stack:
        lock = startup.together(comm, lambda: _take(stack, folder, config) if comm.is_root else None)
        setup = startup.prepare(config, comm, folder, make_method, material)
        snapshot = startup.restore(setup, folder, resume=resume)
        done = _done_rounds(comm, snapshot)
        desk = stack.enter_context(Desk(setup, folder, lock, snapshot, done, command)) if lock else None
        _say_where_ranks_are(setup, desk)
        setup = replace(setup, tell=desk.tell) if desk else setup
        state = startup.initial_state(setup.method, comm, snapshot, setup.device.server)
        if done >= config.rounds and desk is not None:
            desk.say(f"nothing left to do: {done} of {config.rounds} rounds are done")
        if done < config.rounds:
            published = publish(setup, state, done + 1, 0)
        setup.clock.take()  # what starting up took is no round's
        for round_number in range(done + 1, config.rounds + 1):
            state, published, result = train_round(setup, round_number, state, published)
            split_s, wish = _seconds_and_wish(setup, stopping)
            stops = stopping.why(wish) if round_number < config.rounds else ""
            if desk is not None:
                desk.round_done(round_number, state, result, split_s, stops)
            if stops:
                return False
        if desk is not None:
            desk.close_run()
    return True


def _take(stack: ExitStack, folder: RunDir, config: Config) -> RunLock:
    """Locks the run directory and says at once which run it is, so that whatever happens next can be resumed."""
    lock = stack.enter_context(_lock(folder))
    if not folder.config_path.exists():
        write_text(folder.config_path, yaml_text.dump(config.to_dict()))
    return lock


def _lock(folder: RunDir) -> RunLock:
    return RunLock(folder, job=startup.slurm_job(), warn=lambda line: print(f"warning: {line}", flush=True))


def _done_rounds(comm: Comm, snapshot: checkpoint.Snapshot | None) -> int:
    return int(comm.allgather_text(str(snapshot.round if snapshot else 0))[0])


def _say_where_ranks_are(setup: Setup, desk: Desk | None) -> None:
    places = setup.comm.allgather_text(f"{setup.comm.host}: {setup.device.description}")
    if desk is not None:
        desk.announce(places)


def _seconds_and_wish(setup: Setup, stopping: Stopping) -> tuple[dict[str, float], int]:
    """Seconds by stage since the last call, the mean over the ranks; and whether to go on, the same on all ranks.

    Rank 0 knows best how long a round takes: it is the one that saves.
    """
    names = (*STAGES, "wall")
    taken = setup.clock.take()
    rows = setup.comm.allgather_rows(np.array([*(taken[name] for name in names), stopping.wish(taken["wall"])]))
    return dict(zip(names, rows[:, :-1].mean(axis=0).tolist(), strict=True)), int(rows[:, -1].max())
