"""A run: build once, resume, then round after round; save and report at round ends only.

A run outlives its ranks where the launcher lets it (`mpi.recovery`). A lost worker costs the clients
that it was training. With a lost rank 0 goes what is not saved: the lowest rank that is left becomes
the server and all begin again, as a resumed run does, with the newest checkpoint.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, NoReturn

import numpy as np

from fedmpi import methods, startup
from fedmpi.clock import STAGES
from fedmpi.config import yaml_text
from fedmpi.config.schema import Config
from fedmpi.desk import Desk
from fedmpi.errors import RankLossError, RunDirError, ServerLossError, TooFewRanksError, UserError
from fedmpi.federation.plan import worker_ranks
from fedmpi.mpi.watch import Watch, end_at_once, patience_s
from fedmpi.output import manifest
from fedmpi.output.files import write_text
from fedmpi.output.lock import RunLock
from fedmpi.output.run_dir import RunDir
from fedmpi.setup import Setup
from fedmpi.startup import StartupError
from fedmpi.stopping import Stopping
from fedmpi.train_round import OpenRound, train_round

if TYPE_CHECKING:
    from fedmpi.mpi.comm import Comm
    from fedmpi.mpi.recovery import Loss

# A process with a GPU takes a while to end; ranks of a job that has just ended may have to notice first.
_DYING_S, _ENDING_S = 20.0, 5.0


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
    begun_after: int | None = None
    """The round that was the last one when training began; None before that."""
    round_number: int = 1
    """That is open."""
    is_finished: bool = False
    """Whether the last round is saved."""
    takes_over: bool = False
    """Whether a rank 0 has died: its lock may outlive it for a moment."""
    untold: list[Loss] = field(default_factory=list)
    """Losses that no desk has heard of."""

    def recover(self) -> Loss:
        """Goes on with the ranks that are left."""
        loss = self.comm.recover()
        self.untold += [loss] if loss.ranks else []
        self.takes_over |= loss.server
        return loss

    def tell(self, desk: Desk | None, round_number: int) -> None:
        """What was lost, to the desk of the server (None on the others)."""
        if desk is not None:
            desk.tell_losses(self.untold, min(round_number, self.config.rounds))
        self.untold.clear()

    def too_few(self) -> str:
        """Why the ranks that are left are to stop; empty if they are not, or if all but the report is done."""
        if self.is_finished:
            return ""
        size, least = self.comm.size, self.config.mpi.min_ranks
        return f"{size} rank{'s are' if size > 1 else ' is'} left, mpi.min_ranks is {least}" if size < least else ""


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
    job.untold += comm.lost_at_start
    job.takes_over = any(loss.server for loss in job.untold)
    while True:
        try:
            return _start_and_train(job)
        except RankLossError:  # between rounds: everybody starts up again
            job.recover()
        except ServerLossError:  # after `recover`
            pass
        except StartupError:
            _tell_without_desk(job)
            raise
        job.resume |= job.folder is not None


def _start_and_train(job: Job) -> bool:
    config, comm = job.config, job.comm
    comm.wait_at_most(_long_patience_s(job))
    if why := job.too_few():
        _give_up(job, why)
    material, folder = _material(job), _folder(job)
    with ExitStack() as stack:
        lock = startup.together(comm, lambda: _take(stack, folder, job) if comm.is_root else None)
        setup = startup.prepare(config, comm, folder, job.make_method, material)
        snapshot = startup.restore(setup, folder, resume=job.resume)
        done = int(comm.allgather_text(str(snapshot.round if snapshot else 0))[0])
        places = comm.allgather_text(f"{comm.host}: {setup.device.description}")
        words = setup, folder, lock, snapshot, done, job.command
        desk = startup.together(comm, lambda: stack.enter_context(Desk(*words)) if lock else None)
        startup.together(comm, lambda: desk.announce(places) if desk else None)
        comm.agree()
        job.begun_after = done if job.begun_after is None else job.begun_after
        job.tell(desk, done + 1)
        setup = replace(setup, tell=desk.tell) if desk else setup
        state = startup.initial_state(setup.method, comm, snapshot, setup.device.server)
        setup.clock.take()  # what starting up took is no round's
        return _train(job, setup, desk, OpenRound(done + 1, state))


def _long_patience_s(job: Job) -> float:
    """How long a rank waits for others before the rounds (there are data, or what is saved, to read) and after them."""
    limit_s, startup_s = job.config.mpi.round_timeout_s, job.config.mpi.startup_timeout_s
    if job.begun_after is None or startup_s == 0:
        return math.inf
    return max(patience_s(limit_s), startup_s)


def _give_up(job: Job, why: str) -> NoReturn:
    """Ends a run that has no server, on all ranks: losses go on record; what is saved tells whether the run gets on.

    Raises `TooFewRanksError`.
    """
    comm, folder = job.comm, job.folder
    saved = max((number for number, _ in folder.checkpoints()), default=0) if folder and comm.is_root else 0
    saved = int(comm.allgather_text(str(saved))[0])
    gets_on = job.begun_after is not None and saved > job.begun_after
    _tell_without_desk(job)
    if folder and comm.is_root and gets_on:
        with contextlib.suppress(UserError):
            manifest.add_stop(folder, saved, why)
    comm.agree()
    raise TooFewRanksError(why, gets_on=gets_on)


def _tell_without_desk(job: Job) -> None:
    """Says what was lost, where there is no server to say it, and puts it on record with the start that lost it."""
    comm = job.comm
    if not comm.is_root:
        return
    for loss in job.untold:
        print(f"lost {loss.names()}: {comm.size} of {comm.started_size} ranks are left", flush=True)
    if job.folder and job.untold and job.begun_after is not None:
        entries = [entry for loss in job.untold for entry in loss.entries(job.round_number)]
        with contextlib.suppress(UserError):  # it is said, and a full disk is no reason to end otherwise
            manifest.add_losses(job.folder, entries)


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
    until = time.monotonic() + (_DYING_S if job.takes_over else _ENDING_S if job.resume else 0.0)
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
    config, comm, stops = job.config, job.comm, ""
    if opened.number > config.rounds and desk is not None:
        desk.say(f"nothing left to do: {opened.number - 1} of {config.rounds} rounds are done")
    with Watch(comm.traffic, lambda why: _hangs(job, setup, why)) as watch:
        while opened.number <= config.rounds and not stops:
            job.round_number, limit_s = opened.number, config.mpi.round_timeout_s * _share(setup)
            try:
                watch.round_begins(limit_s)
                comm.wait_at_most(patience_s(limit_s))
                result = train_round(setup, opened)
                split_s, busy_s, wish = _seconds_and_wish(setup, opened, job.stopping)
                comm.agree()
            except RankLossError:
                watch.round_begins(max(limit_s, config.mpi.startup_timeout_s))  # to set up anew, or to save
                setup = _without_the_lost(job, setup, desk, opened)
                continue
            stops = job.stopping.why(wish) if opened.number < config.rounds else ""
            if desk is not None:
                desk.round_done(opened.number, opened.state, result, split_s, busy_s, stops)
            opened = OpenRound(opened.number + 1, opened.state, opened.published)
    job.is_finished = not stops
    if desk is not None and job.is_finished:
        desk.close_run()
    _come_to_the_end(job, desk, opened.number)
    return not stops


def _share(setup: Setup) -> float:
    """How much more a rank has to do in a round than with all ranks that the job was started with."""
    comm, trains, per_round = setup.comm, setup.config.mpi.server_trains, setup.config.clients.per_round
    started, left = len(worker_ranks(comm.started_size, server_trains=trains)), len(setup.workers)
    clients = math.ceil(per_round / left) / math.ceil(per_round / started)
    does_both = comm.size == 1 < comm.started_size and not trains  # the server's part, too
    return max(started / left, clients) + does_both


def _hangs(job: Job, setup: Setup, why: str) -> NoReturn:
    """The end of a rank that has taken too long (`Watch`)."""
    comm, again = job.comm, f"to go on: {job.where['resume']}"
    is_alone = comm.size == 1
    end_at_once(
        f"fedmpi: hung on rank {comm.started_as} on {comm.host}, {setup.clock.where()}\n  cause: {why}; "
        f"mpi.round_timeout_s is {job.config.mpi.round_timeout_s:g}; this rank ends itself\n"
        f"{'the others go on without it; if none is left, ' if comm.recovers and not is_alone else ''}{again}",
        alone=is_alone,
    )


def _without_the_lost(job: Job, setup: Setup, desk: Desk | None, opened: OpenRound) -> Setup:
    """What those left go on with, in the round that is open. Raises `ServerLossError` or `TooFewRanksError`."""
    if job.recover().server:
        raise ServerLossError
    opened.has_lost_ranks = True
    job.tell(desk, opened.number)
    if why := job.too_few():
        _stop_early(job, desk, opened, why)
    if setup.comm.rank not in setup.workers or setup.trainers:
        return setup
    # Rank 0 is alone now, and has to train.
    assert job.folder is not None
    alone = startup.prepare(job.config, job.comm, job.folder, job.make_method, job.material)
    startup.warn_of_other_bits(startup.computed_with(setup), startup.computed_with(alone))
    opened.published = None  # it may lie on another device
    return replace(alone, tell=setup.tell, clock=setup.clock)


def _stop_early(job: Job, desk: Desk | None, opened: OpenRound, why: str) -> NoReturn:
    """Ends the run before the open round: what is done is saved. Raises `TooFewRanksError`."""
    done = opened.number - 1
    gets_on = job.begun_after is not None and done > job.begun_after
    if desk is not None and gets_on:
        desk.stop_early(done, opened.before, why)
    _come_to_the_end(job, desk, opened.number)
    raise TooFewRanksError(why, gets_on=gets_on)


def _come_to_the_end(job: Job, desk: Desk | None, round_number: int) -> None:
    """Nobody leaves before all is saved and written: else those left would have to do it. Raises `ServerLossError`."""
    job.comm.wait_at_most(_long_patience_s(job))
    while True:
        try:
            return job.comm.agree()
        except RankLossError:
            if job.recover().server:
                raise ServerLossError from None
            job.tell(desk, round_number)


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
    wish = stopping.wish(opened.seconds["wall"], _share(setup))
    rows = setup.comm.allgather_rows(np.array([*opened.seconds.values(), wish]))
    busy_s = rows[:, names.index("wall")] - rows[:, names.index("idle")]
    means = dict(zip(names, rows[:, :-1].mean(axis=0).tolist(), strict=True))
    return means, dict(zip(setup.comm.members, busy_s.tolist(), strict=True)), int(rows[:, -1].max())
