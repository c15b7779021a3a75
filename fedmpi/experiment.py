"""A run: build once, resume, then round after round; save and report at round ends only.

A run outlives its ranks where the launcher lets it (`mpi.recovery`). A lost worker costs the clients
that it was training. With a lost rank 0 goes what is not saved: the lowest rank that is left becomes
the server and all begin again, as a resumed run does, with the newest checkpoint.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np

from fedmpi import methods, startup
from fedmpi.clock import STAGES
from fedmpi.config import yaml_text
from fedmpi.config.schema import Config
from fedmpi.desk import Desk
from fedmpi.errors import RankLossError, RunDirError, ServerLossError, TooFewRanksError
from fedmpi.mpi.watch import Watch, end_at_once, patience_s
from fedmpi.output.files import write_text
from fedmpi.output.lock import RunLock
from fedmpi.output.run_dir import RunDir
from fedmpi.setup import Setup
from fedmpi.stopping import Stopping
from fedmpi.train_round import OpenRound, train_round

if TYPE_CHECKING:
    from fedmpi.mpi.comm import Comm
    from fedmpi.mpi.recovery import Loss

# A process with a GPU takes a while to end.
_DYING_S = 20.0


@dataclass
class Job:
    """What was asked for, and what starting up has come to: that stays when ranks are lost."""

    config: Config
    comm: Comm
    run_dir: str | None
    resume: bool
    command: Sequence[str]
    where: dict[str, str]
    make_method: startup.MakeMethod
    stopping: Stopping
    material: startup.Material | None = None
    folder: RunDir | None = None
    takes_over: bool = False
    """Whether a rank 0 has died: its lock may outlive it for a moment."""
    untold: list[Loss] = field(default_factory=list)
    """Losses that no desk has heard of."""

    def recover(self) -> Loss:
        """Goes on with the ranks that are left. Raises `TooFewRanksError`."""
        loss, least = self.comm.recover(), self.config.mpi.min_ranks
        self.untold += [loss] if loss.ranks else []
        if self.comm.size < least:
            raise TooFewRanksError(f"{self.comm.size} ranks are left, mpi.min_ranks is {least}")
        return loss


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
    """Trains to the last round; False if it was stopped before. Raises `StartupError` or `TooFewRanksError` (on all
    ranks), or a `RoundError` where something broke.

    `where["resume"]` gets the command to go on with, as soon as there is something to go on with.
    """
    job = Job(config, comm, run_dir, resume, command, where, make_method, stopping or Stopping())
    while True:
        try:
            return _start_and_train(job)
        except RankLossError:  # before the first round: everybody starts up again
            job.recover()
            job.resume |= job.folder is not None
        except ServerLossError:
            job.resume = job.takes_over = True


def _start_and_train(job: Job) -> bool:
    config, comm = job.config, job.comm
    material, folder = _material(job), _folder(job)
    with ExitStack() as stack:
        lock = startup.together(comm, lambda: _take(stack, folder, job) if comm.is_root else None)
        setup = startup.prepare(config, comm, folder, job.make_method, material)
        snapshot = startup.restore(setup, folder, resume=job.resume)
        done = int(comm.allgather_text(str(snapshot.round if snapshot else 0))[0])
        places = comm.allgather_text(f"{comm.host}: {setup.device.description}")
        words = setup, folder, lock, snapshot, done, job.command
        desk = startup.together(comm, lambda: stack.enter_context(Desk(*words)) if lock else None)
        comm.agree()
        if desk is not None:
            desk.announce(places)
            desk.tell_losses(job.untold, done + 1)
            setup = replace(setup, tell=desk.tell)
        job.untold.clear()
        state = startup.initial_state(setup.method, comm, snapshot, setup.device.server)
        setup.clock.take()  # what starting up took is no round's
        return _train(job, setup, desk, OpenRound(done + 1, state))


def _material(job: Job) -> startup.Material:
    """The data: on all ranks, or on none."""
    if job.material is None:
        material = startup.load_material(job.config, job.comm)
        job.comm.agree()
        job.material = material
    return job.material


def _folder(job: Job) -> RunDir:
    """The run directory: known to all ranks, or to none."""
    if job.folder is None:
        folder = startup.open_run_dir(job.config, job.comm, job.run_dir, resume=job.resume)
        job.comm.agree()
        job.folder = folder
        job.where["resume"] = startup.resume_command(folder, job.comm.started_size)
    return job.folder


def _take(stack: ExitStack, folder: RunDir, job: Job) -> RunLock:
    """Locks the run directory and says at once which run it is, so that whatever happens next can be resumed."""
    until = time.monotonic() + (_DYING_S if job.takes_over else 0.0)
    while True:
        try:
            lock = stack.enter_context(_lock(folder))
            break
        except RunDirError:
            if time.monotonic() >= until:
                raise
            time.sleep(0.1)
    if not job.resume:
        folder.refuse_run()  # another may have come and gone since it was opened
    if not folder.config_path.exists():
        write_text(folder.config_path, yaml_text.dump(job.config.to_dict()))
    return lock


def _lock(folder: RunDir) -> RunLock:
    return RunLock(folder, job=startup.job_name(), warn=lambda line: print(f"warning: {line}", flush=True))


def _train(job: Job, setup: Setup, desk: Desk | None, opened: OpenRound) -> bool:
    """All rounds from the one that is open; whether it came to the last. Raises `ServerLossError`."""
    config, comm = job.config, job.comm
    if opened.number > config.rounds and desk is not None:
        desk.say(f"nothing left to do: {opened.number - 1} of {config.rounds} rounds are done")
    comm.wait_at_most(patience_s(config.mpi.round_timeout_s))
    before, first = opened.state, opened.number
    with _watch(job, setup) as watch:
        while opened.number <= config.rounds:
            try:
                watch.round_begins()
                result = train_round(setup, opened)
                split_s, busy_s, wish = _seconds_and_wish(setup, opened, job.stopping)
                comm.agree()
            except RankLossError:
                try:
                    setup = _without_the_lost(job, setup, desk, opened)
                except TooFewRanksError as error:
                    error.gets_on = opened.number > first
                    if desk is not None:
                        desk.stop_early(job.untold, opened.number, before if error.gets_on else None, str(error))
                    raise
                continue
            stops = job.stopping.why(wish) if opened.number < config.rounds else ""
            if desk is not None:
                desk.round_done(opened.number, opened.state, result, split_s, busy_s, stops)
            if stops:
                return False
            opened = OpenRound(opened.number + 1, opened.state, opened.published)
            before = opened.state
    _close(job, desk)
    return True


def _watch(job: Job, setup: Setup) -> Watch:
    limit_s, comm = job.config.mpi.round_timeout_s, job.comm
    then = "the others go on without it" if comm.recovers else f"to go on: {job.where['resume']}"

    def give_up(why: str) -> None:
        end_at_once(
            f"fedmpi: hung on rank {comm.started_as} on {comm.host}, {setup.clock.where()}\n  cause: {why}, "
            f"mpi.round_timeout_s is {limit_s:g}; this rank ends itself\n{then}"
        )

    return Watch(limit_s, comm.traffic, give_up)


def _without_the_lost(job: Job, setup: Setup, desk: Desk | None, opened: OpenRound) -> Setup:
    """What those left go on with, in the round that is open."""
    loss = job.recover()
    if loss.server:
        raise ServerLossError
    opened.has_lost_ranks = True
    if desk is not None:
        desk.tell_losses(job.untold, opened.number)
    job.untold.clear()
    if setup.comm.rank not in setup.workers or setup.trainers:
        return setup
    # Rank 0 is alone now, and has to train.
    assert job.folder is not None
    alone = startup.prepare(job.config, job.comm, job.folder, job.make_method, job.material)
    startup.warn_of_other_bits(startup.computed_with(setup), startup.computed_with(alone))
    opened.published = None  # it may lie on another device
    return replace(alone, tell=setup.tell, clock=setup.clock)


def _close(job: Job, desk: Desk | None) -> None:
    """The report; nobody leaves before it is there, because whoever is left would have to write it."""
    if desk is not None:
        desk.close_run()
    while True:
        try:
            return job.comm.agree()
        except RankLossError:
            loss = job.comm.recover()
            job.untold += [loss] if loss.ranks else []
            if loss.server:
                raise ServerLossError from None
            if desk is not None:
                desk.tell_losses(job.untold, job.config.rounds)
            job.untold.clear()


def _seconds_and_wish(
    setup: Setup, opened: OpenRound, stopping: Stopping
) -> tuple[dict[str, float], dict[int, float], int]:
    """Seconds of the round by stage, the mean over the ranks; each rank's own, without waiting for others; and whether
    to go on, the same on all ranks.

    Rank 0 knows best how long a round takes: it is the one that saves.
    """
    names = (*STAGES, "wall")
    taken = setup.clock.take()
    opened.seconds = {name: taken[name] + opened.seconds.get(name, 0.0) for name in names}
    wish = stopping.wish(opened.seconds["wall"])
    rows = setup.comm.allgather_rows(np.array([*opened.seconds.values(), wish]))
    busy_s = rows[:, names.index("wall")] - rows[:, names.index("idle")]
    means = dict(zip(names, rows[:, :-1].mean(axis=0).tolist(), strict=True))
    return means, dict(zip(setup.comm.members, busy_s.tolist(), strict=True)), int(rows[:, -1].max())
