"""Rank 0's part beside the rounds: records, checkpoints, observers, the closing table. Nothing here is a collective."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from fedmpi.config import yaml_text
from fedmpi.config.schema import Config
from fedmpi.errors import RunDirError
from fedmpi.learning.client_scores import ClientScores
from fedmpi.report.best import Best
from fedmpi.report.closing import closing_table
from fedmpi.report.events import Events
from fedmpi.report.observer import Ended, Started
from fedmpi.report.progress import Progress
from fedmpi.report.records import Records, read_records
from fedmpi.rounds.state import RoundResult, ServerState, Setup
from fedmpi.run import advice, branching, provenance
from fedmpi.run.folder import slurm_job
from fedmpi.run.observers import Observed, Observers
from fedmpi.run.remarks import remarks
from fedmpi.run.results import RoundTimes, record_of, tier_rows
from fedmpi.store import checkpoint, manifest
from fedmpi.store.files import write_atomic, write_text, writing
from fedmpi.store.lock import RunLock
from fedmpi.store.run_dir import RunDir
from fedmpi.store.saving import Saving
from fedmpi.store.whereabouts import GoneError

if TYPE_CHECKING:
    from fedmpi.mpi.communicator import Loss


class Server:
    """Rank 0's part of a run beside the rounds: it keeps them, and tells its observers of them."""

    def __init__(
        self,
        setup: Setup,
        folder: RunDir,
        lock: RunLock,
        snapshot: checkpoint.Snapshot | None,
        command: Sequence[str],
        observed: Sequence[Observed],
    ) -> None:
        self._setup, self._folder, self._lock, self._command = setup, folder, lock, command
        self._done = done = snapshot.round if snapshot else 0
        self._observed = [*_tensorboard(setup.config), *observed]
        self._best = Best(**snapshot.progress) if snapshot else Best()
        self._client_scores: ClientScores | None = None
        # Who has written a memory since each of the last saves; the first save looks at all clients.
        self._writers: deque[set[int]] = deque([set()], maxlen=setup.config.output.keep_checkpoints + 2)
        self._has_pruned = False
        self._is_due, self._last_saved = False, done
        self._saving = Saving(setup.config.output.on_save_error, folder.path, say=self.say, warn=self.warn)
        self._stack = ExitStack()
        self._losses: list[dict[str, Any]] = []
        self._last_recorded: int | None = None
        self._unrecorded_s: dict[str, float] = {}
        """Seconds by stage that no record has, of all starts."""

    def __enter__(self) -> Server:
        config, folder = self._setup.config, self._folder
        self._progress = Progress(config.output.progress, config.rounds, done_rounds=self._done)
        self._check_records()
        folder.clear_temporaries()
        if self._done <= config.rounds:
            write_text(folder.config_path, yaml_text.dump(config.to_dict()))
        write_atomic(folder.partition_path, self._setup.partition.packed(self._setup.data_digest))
        self._records = Records(folder, resume_after=self._done or None, warn=self.warn)
        self._observers = Observers(self._observed, self.warn)
        self._stack.enter_context(self._progress)
        self._stack.callback(self._setup.comm.call_while_waiting, None)
        self._setup.comm.call_while_waiting(self._look)
        return self

    def _check_records(self) -> None:
        """Raises RunDirError if the records are another run's."""
        records = [record for record in read_records(self._folder) if record["round"] <= self._done]
        if problem := self._best.contradicts(records):
            advice = "put the right file back, or move this one away (then its rounds are marked as missing)"
            raise RunDirError(
                str(self._folder.records_path), f"is of another run than the checkpoint: {problem}; {advice}"
            )

    def __exit__(self, *error: Any) -> None:
        self._stack.__exit__(*error)

    def announce(self, places: Sequence[str], warnings: Sequence[str]) -> None:
        """Says who got what, what to mind, where results go and how to go on after an interruption."""
        config, setup = self._setup.config, self._setup
        threads = config.mpi.threads
        who = list(zip(setup.comm.members, places, strict=True))
        ranks = [{"rank": rank, "place": place, "threads": threads} for rank, place in who]
        resumed = self._done or None
        parent = branching.noted(self._folder, self._done)
        more = {"job": slurm_job(), "data_digest": setup.data_digest, **provenance.noted(config), **parent}
        self._unrecorded_s = manifest.seconds_after_records(manifest.read_starts(self._folder))
        manifest.add_start(self._folder, manifest.start_entry(ranks, self._command, resumed, **more))
        server = "server and worker" if 0 in setup.workers else "server"
        for rank, place in who:
            role = server if rank == setup.comm.members[0] else "worker"
            self._progress.say(f"rank {rank}: {role} on {place}, {threads} thread{'s' * (threads > 1)}")
        found = remarks(config, setup.data.info, setup.method, len(setup.workers), config.clients.per_round)
        for warning in (*found, *warnings):
            self.warn(warning)
        self._progress.say(f"run directory: {self._folder.path}")
        # Said now, because a launcher that ends its ranks may pass on nothing that they say then.
        again = advice.resume_command(self._folder.path, setup.comm.started_size, config)
        self._progress.say(f"to go on after an interruption: {again}")
        if self._done:
            self._progress.say(f"resuming after round {self._done}")
        for origin in parent.values():
            self._progress.say(f"a branch of {origin['run']}: {'; '.join(origin['config']) or 'with the same config'}")
        self._observers.call("run_started", Started(config.to_dict(), self._folder.path, self._done))

    def say(self, line: str) -> None:
        self._progress.say(line)

    def warn(self, line: str) -> None:
        self._progress.warn(line)

    def show_progress(self, num_done: int, num_clients: int) -> None:
        """Of the running phase: how many of its clients are done."""
        self._look()
        self._progress.clients(num_done, num_clients)

    def _look(self) -> None:
        """A sign of life, since a round may be longer than others wait for one; and whether the directory is there.

        Raises `GoneError`, unless the directory may come back and saves that fail are only to be reported.
        """
        self._unless_it_may_come_back(self._lock.beat)

    def _unless_it_may_come_back(self, look: Callable[[], None]) -> None:
        try:
            look()
        except GoneError as gone:
            if gone.for_good or self._setup.config.output.on_save_error == "stop":
                raise

    def report_losses(self, losses: Sequence[Loss], round_number: int) -> None:
        """Ranks died, and those left are in this round."""
        comm = self._setup.comm
        for loss in losses:
            entries = loss.entries(round_number)
            left = f"{comm.size} of {comm.started_size} ranks are left, in round {round_number}"
            then = f"; rank {comm.members[0]} is the server now" if loss.server else ""
            took = f"recovery took {entries[0]['recovery_s']:.3f} s"
            self._progress.say(f"lost {loss.names()}: {left}{then}; {took}")
            self._losses = self._losses + entries
        if losses:
            self._if_possible("the manifest", lambda: manifest.add_losses(self._folder, self._losses))

    def round_done(
        self, round_number: int, state: ServerState, result: RoundResult, times: RoundTimes, stops: str
    ) -> None:
        """Records the round, shows it, and saves if it is time, or if the run `stops` (why, else empty)."""
        config, setup = self._setup.config, self._setup
        self._client_scores = result.client_scores or self._client_scores
        record = record_of(setup, round_number, state, result, times) | self._notes()
        self._best.round_done(record)
        must_hold = bool(stops) or round_number == config.rounds
        if record["cohort"] and len(record["dropped"]) == len(record["cohort"]):
            self.warn(f"round {round_number} changes nothing: the training of all its clients diverged")
        self._writers[-1].update(report.client for report in result.reports if report.memory_digest)
        with setup.clock.stage("saving", round_number) as timer:
            self._unless_it_may_come_back(self._lock.refresh)
            self._is_due |= must_hold or round_number % config.output.checkpoint_every == 0
            self._is_due |= self._has_lost_checkpoint()
            self._saving.attempt(round_number, lambda: self._keep(round_number, state, record), must_hold=must_hold)
        self._last_recorded = round_number
        self._saving.took(timer.seconds, times.mean_s["wall"])
        self._progress.round_done(record)
        self._observers.call("round_done", record)
        if stops:
            self._say_stopped(round_number, stops)

    def _has_lost_checkpoint(self) -> bool:
        """Whether the newest checkpoint was removed while the run goes on: then the next save must not wait."""
        path = self._folder.checkpoint_path(self._last_saved)
        if self._is_due or self._last_saved == 0 or path.exists():
            return False
        self.warn(f"{path} was removed while the run used it; this round is saved in its place")
        return True

    def _notes(self) -> dict[str, Any]:
        """What the record has beside the round's results."""
        notes = {"save_errors": self._saving.take_errors(), "losses": self._losses}
        self._losses = []
        return {name: entries for name, entries in notes.items() if entries}

    def _keep(self, round_number: int, state: ServerState, record: Mapping[str, Any]) -> None:
        """The record first: no checkpoint is of a round that has none."""
        self._records.round_done(record)
        if self._is_due:
            self._save(round_number, state)
            self._is_due = False

    def _save(self, round_number: int, state: ServerState) -> None:
        config = self._setup.config
        snapshot = checkpoint.Snapshot(
            round=round_number,
            server=state.params,
            clients=state.memories,
            progress=asdict(self._best),
            config=config.to_dict(),
            config_hash=config.hash(),
            seed=config.seed,
            versions=self._setup.computed_with,
            data_digest=self._setup.data_digest,
        )
        checkpoint.save(self._folder, snapshot, keep=config.output.keep_checkpoints)
        self._last_saved = round_number
        live = checkpoint.referenced(self._folder) if state.memories else None
        if live is not None:
            current = {(client, *version) for client, version in state.memories.items()}
            recent = set().union(*self._writers) if self._has_pruned else None
            self._setup.memories.prune(live | current, recent, up_to_round=round_number)
            self._writers.append(set())
            self._has_pruned = True

    def stop_early(self, done: int, before: ServerState, why: str) -> None:
        """Ends the run in the middle of a round; the last one that is `done`, with the state `before`, is saved."""
        if not self._folder.checkpoint_path(done).exists():
            with self._setup.clock.stage("saving", done):
                self._saving.attempt(done, lambda: self._keep_again(done, before), must_hold=True)
        self._say_stopped(done, why)

    def _keep_again(self, round_number: int, state: ServerState) -> None:
        self._records.write_pending()
        self._save(round_number, state)

    def _say_stopped(self, round_number: int, why: str) -> None:
        """The run is to go on later, where it is now: for people and, in the manifest, for programs."""
        self._if_possible("the manifest", lambda: manifest.add_stop(self._folder, round_number, why))
        self._note_end()
        again = advice.resume_command(self._folder.path, self._setup.comm.started_size, self._setup.config)
        self._progress.say(f"stopped after round {round_number} of {self._setup.config.rounds}: {why}; all is saved")
        self._progress.say(f"to go on: {again}")
        self._run_ended(round_number, why)

    def close_run(self) -> None:
        """The closing table and the report files."""
        self._stack.close()
        self._note_end()
        rows = tier_rows(self._setup, self._best)
        split_s = _sum(self._best.seconds, self._unrecorded_s)
        wall_s = split_s.pop("wall", 0.0)
        split_s["other"] = max(0.0, wall_s - sum(split_s.values()))
        self._if_possible("the report", lambda: closing_table(rows, split_s, self._folder, self._client_scores))
        self._run_ended(self._setup.config.rounds)

    def _run_ended(self, done: int, stopped: str = "") -> None:
        best = self._best
        self._observers.call("run_ended", Ended(done, stopped, best.last, best.best, best.best_round))

    def _note_end(self) -> None:
        """Puts on record what this start has spent since its last record: mostly the save that came after it.

        The other ranks wait meanwhile, so their part of the mean is known without asking them.
        """
        if (done := self._last_recorded) is None:
            return
        taken, size = self._setup.clock.take(), self._setup.comm.size
        spent_s = {stage: seconds / size for stage, seconds in taken.items()} | {"wall": taken["wall"]}
        spent_s["idle"] += taken["wall"] * (size - 1) / size
        self._unrecorded_s = _sum(self._unrecorded_s, spent_s)
        self._if_possible("the manifest", lambda: manifest.add_end(self._folder, done, spent_s))

    def _if_possible(self, what: str, write: Callable[[], None]) -> None:
        """For what a run that is saved can do without."""
        try:
            with writing(self._folder.path):
                write()
        except RunDirError as error:
            self.warn(f"{what} is not written: {error.text()}")


def _sum(one_s: Mapping[str, float], other_s: Mapping[str, float]) -> dict[str, float]:
    return {name: one_s.get(name, 0.0) + other_s.get(name, 0.0) for name in {**one_s, **other_s}}


def _tensorboard(config: Config) -> list[Observed]:
    """What TensorBoard shows is in the records, too: a run can do without it."""
    if not config.output.tensorboard:
        return []
    events = Events()
    return [Observed(lambda: events, "no more TensorBoard events (rounds.jsonl has the same numbers)")]
