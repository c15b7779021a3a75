"""A run: build once, resume, then round after round; save and report at round ends only.

A run outlives its ranks where the launcher lets it (`mpi.recovery`). A lost worker costs the clients
that it was training. With a lost rank 0 goes what is not saved: the lowest rank that is left becomes
the server and all begin again, as a resumed run does, with the newest checkpoint.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import TYPE_CHECKING, NoReturn

import numpy as np

from fedmpi.clock import STAGES
from fedmpi.config import yaml_text
from fedmpi.config.schema import Config
from fedmpi.errors import RankLossError, RunDirError, ServerLossError, TooFewRanksError, UserError
from fedmpi.report.records import read_records, round_seconds
from fedmpi.rounds.state import Setup
from fedmpi.run import bits, branching, resuming, start
from fedmpi.run.losses import Job
from fedmpi.run.origin import Origin
from fedmpi.run.selfcheck import check_nets
from fedmpi.run.server import Desk
from fedmpi.run.start import StartupError
from fedmpi.run.stopping import Stopping
from fedmpi.store import checkpoint, manifest
from fedmpi.store.files import write_text
from fedmpi.store.lock import RunLock
from fedmpi.store.run_dir import RunDir
from fedmpi.train_round import OpenRound, train_round

if TYPE_CHECKING:
    from fedmpi.mpi.comm import Comm

# A process with a GPU takes a while to end; ranks of a job that has just ended may have to notice first.
_DYING_S, _ENDING_S = 20.0, 5.0


def run(
    config: Config,
    comm: Comm,
    *,
    run_dir: str | None,
    resume: bool,
    origin: Origin | None = None,
    command: Sequence[str],
    where: dict[str, str],
    stopping: Stopping | None = None,
) -> bool:
    """Trains to the last round; False if it was stopped before. Raises `StartupError` or `TooFewRanksError` (on all
    ranks), or a `RoundError` where something broke.

    `origin` is the checkpoint of another run that this one begins from. `where` gets what `advice` needs as soon as
    there is a run directory.
    """
    job = Job(config, comm, run_dir, resume, origin, command, where, stopping or Stopping())
    job.untold += comm.lost_at_start
    job.takes_over = any(loss.server for loss in job.untold)
    with job.watch:
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
    job.clock = None
    job.take_time()
    if (why := job.too_few()) and not job.rounds_are_over:
        _give_up(job, why)
    material, folder = _material(job), _folder(job)
    with ExitStack() as stack:
        lock = start.together(comm, lambda: _take(stack, folder, job) if comm.is_root else None)
        setup = start.prepare(config, comm, folder, material)
        job.clock = setup.clock
        if job.origin is not None:
            branching.begin(setup, folder, job.origin)
        snapshot = resuming.restore(setup, folder, resume=job.resume or job.origin is not None)
        done = int(comm.allgather_text(str(snapshot.round if snapshot else 0))[0])
        job.rounds_are_over = done >= config.rounds
        if not why or job.rounds_are_over:  # a report needs no more ranks than there are
            places = comm.allgather_text(f"{comm.host}: {setup.device.description}")
            words = setup, folder, lock, snapshot, done, job.command
            warnings = check_nets(setup) if job.begun_after is None else ()
            desk = start.together(comm, lambda: stack.enter_context(Desk(*words)) if lock else None)
            start.together(comm, lambda: desk.announce(places, warnings) if desk else None)
            comm.agree()
            job.begun_after = done if job.begun_after is None else job.begun_after
            job.tell(desk, done + 1)
            if desk is not None:
                setup = replace(setup, tell=desk.tell)
                job.stopping.remember(round_seconds(read_records(folder), comm.size))
            state = resuming.initial_state(setup.method, comm, snapshot, setup.device.server)
            comm.wait_for_all()  # a rank that begins a round counts how long the others take
            setup.clock.take()  # what starting up took is no round's
            return _train(job, setup, desk, OpenRound(done + 1, state))
    _give_up(job, why)


def _give_up(job: Job, why: str) -> NoReturn:
    """Ends a run that has no server, on all ranks: losses go on record; what is saved tells whether the run gets on.

    Raises `TooFewRanksError`.
    """
    comm, folder = job.comm, job.folder
    own = checkpoint.of_run(folder, job.config.hash()) if folder and comm.is_root else []
    saved = max((number for number, _ in own), default=0)
    saved = int(comm.allgather_text(str(saved))[0])
    gets_on = job.begun_after is not None and saved > job.begun_after
    _tell_without_desk(job, (saved, why) if gets_on else None, patience_s=_DYING_S)
    comm.agree()
    raise TooFewRanksError(why, gets_on=gets_on)


def _tell_without_desk(job: Job, stop: tuple[int, str] | None = None, patience_s: float = 0.0) -> None:
    """Says what was lost, where there is no server to say it, and puts it on record with the start that lost it, and
    after which round and why it stops.

    Not if another job has the run by now, nor if a disk is full: it is said, and that is no reason to end otherwise.
    """
    comm, folder, losses = job.comm, job.folder, job.untold[:]
    job.untold.clear()
    if not comm.is_root:
        return
    for loss in losses:
        print(f"lost {loss.names()}: {comm.size} of {comm.started_size} ranks are left", flush=True)
    if folder is None or job.begun_after is None:
        return
    with contextlib.suppress(UserError), ExitStack() as stack:
        _lock_within(patience_s, stack, job, folder)
        manifest.add_losses(folder, [entry for loss in losses for entry in loss.entries(job.round_number)])
        if stop is not None:
            manifest.add_stop(folder, *stop)


def _material(job: Job) -> start.Material:
    """The data: on all ranks, or on none."""
    if job.material is None:
        material = start.load_material(job.config, job.comm)
        job.comm.agree()
        job.material = material
    return job.material


def _folder(job: Job) -> RunDir:
    """The run directory: known to all ranks, or to none."""
    if job.folder is None:
        label = job.origin.label() if job.origin is not None else ""
        folder = resuming.open_run_dir(job.config, job.comm, job.run_dir, resume=job.resume, label=label)
        job.comm.agree()
        job.folder = folder
        resume = resuming.resume_command(folder, job.comm.started_size, job.config)
        job.where.update(resume=resume, run_dir=str(folder.path), ranks=str(job.comm.started_size))
    return job.folder


def _take(stack: ExitStack, folder: RunDir, job: Job) -> RunLock:
    """Locks the run directory and says at once which run it is, so that whatever happens next can be resumed."""
    lock = _lock_within(_DYING_S if job.takes_over else _ENDING_S if job.resume else 0.0, stack, job, folder)
    if not job.resume:
        folder.refuse_run()  # another may have come and gone since it was opened
    folder.failure_path.unlink(missing_ok=True)
    if job.origin is None and not folder.config_path.exists():  # a branch is a run only once it has its checkpoint
        write_text(folder.config_path, yaml_text.dump(job.config.to_dict()))
    return lock


def _lock_within(patience_s: float, stack: ExitStack, job: Job, folder: RunDir) -> RunLock:
    until = time.monotonic() + patience_s
    while True:
        try:
            return stack.enter_context(_lock(folder))
        except RunDirError:
            if time.monotonic() >= until:
                raise
            with job.comm.traffic.waiting():
                time.sleep(0.1)


def _lock(folder: RunDir) -> RunLock:
    return RunLock(folder, job=resuming.job_name(), warn=lambda line: print(f"warning: {line}", flush=True))


def _train(job: Job, setup: Setup, desk: Desk | None, opened: OpenRound) -> bool:
    """All rounds from the one that is open; whether it came to the last. Raises `ServerLossError`."""
    config, comm, stops = job.config, job.comm, ""
    if opened.number > config.rounds and desk is not None:
        desk.say(f"nothing left to do: {opened.number - 1} of {config.rounds} rounds are done")
    while opened.number <= config.rounds and not stops:
        try:
            job.begin_round(opened.number)
            result = train_round(setup, opened)
            split_s, busy_s, wish = _seconds_and_wish(job, setup, opened)
            comm.agree()
        except RankLossError:
            setup = _without_the_lost(job, setup, desk, opened)
            continue
        stops = job.stopping.why(wish) if opened.number < config.rounds else ""
        if desk is not None:
            desk.round_done(opened.number, opened.state, result, split_s, busy_s, stops)
        opened = OpenRound(opened.number + 1, opened.state, opened.published)
    job.rounds_are_over = not stops
    job.take_time()
    if desk is not None and job.rounds_are_over:
        desk.close_run()
    _come_to_the_end(job, desk, opened.number)
    return not stops


def _without_the_lost(job: Job, setup: Setup, desk: Desk | None, opened: OpenRound) -> Setup:
    """What those left go on with, in the round that is open. Raises `ServerLossError` or `TooFewRanksError`."""
    if job.recover().server:
        raise ServerLossError
    job.take_time()
    opened.has_lost_ranks = True
    job.tell(desk, opened.number)
    if why := job.too_few():
        _stop_early(job, desk, opened, why)
    if setup.comm.rank not in setup.workers or setup.trainers:
        return setup
    # Rank 0 is alone now, and has to train.
    assert job.folder is not None
    alone = start.prepare(job.config, job.comm, job.folder, job.material)
    if other_bits := bits.changes(setup.computed_with, alone.computed_with):
        start.warn(other_bits)
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
    """Nobody leaves before all is saved and written: else those left would have to do it, and MPI's own end would wait
    without limit for one that hangs. Raises `ServerLossError`.
    """
    job.take_time()
    while True:
        try:
            job.comm.wait_for_all()
            return job.comm.agree()
        except RankLossError:
            if job.recover().server:
                raise ServerLossError from None
            job.tell(desk, round_number)


def _seconds_and_wish(job: Job, setup: Setup, opened: OpenRound) -> tuple[dict[str, float], dict[int, float], int]:
    """Seconds of the round by stage, the mean over the ranks; each rank's own, without waiting for others; and whether
    to go on, the same on all ranks.

    Rank 0 knows best how long a round takes: it is the one that saves.
    """
    names = (*STAGES, "wall")
    taken = setup.clock.take()
    opened.seconds = {name: taken[name] + opened.seconds.get(name, 0.0) for name in names}
    wish = job.stopping.wish(opened.seconds["wall"], job.share())
    rows = setup.comm.allgather_rows(np.array([*opened.seconds.values(), wish]))
    busy_s = rows[:, names.index("wall")] - rows[:, names.index("idle")]
    means = dict(zip(names, rows[:, :-1].mean(axis=0).tolist(), strict=True))
    return means, dict(zip(setup.comm.members, busy_s.tolist(), strict=True)), int(rows[:, -1].max())
