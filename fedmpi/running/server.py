"""Rank 0's part beside the rounds: records, checkpoints, observers, the closing table. Nothing here is a collective."""

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, replace
from importlib import import_module
from types import SimpleNamespace
from typing import Any

from fedmpi.config import yaml_text
from fedmpi.devices.fleet import Fleet, Spent
from fedmpi.errors import RunDirError, counted, one_line
from fedmpi.federation.cohort import learning_rate
from fedmpi.learning import metrics
from fedmpi.learning.evaluate import ClientScores, TierScore
from fedmpi.methods.aggregate import least_uploads
from fedmpi.methods.values import ClientLoad
from fedmpi.report.closing import TierRow, closing_lines, print_table, write_summary
from fedmpi.report.events import Events
from fedmpi.report.observer import Ended, Makers, Observers, Started
from fedmpi.report.progress import Progress
from fedmpi.report.records import CLIENTS, TIERS, Best, Record, Records, read_records
from fedmpi.report.terminal import warn, wrapped
from fedmpi.rounds.state import CONTRIBUTED, DROPPED, RoundResult, ServerState, Setup
from fedmpi.running import made_with
from fedmpi.running.folder import Advice, RunRequest, slurm_job
from fedmpi.running.remarks import defaults, remarks
from fedmpi.running.resuming import snapshot_of
from fedmpi.store import checkpoint, manifest
from fedmpi.store.files import remove, write_atomic, write_text, writing
from fedmpi.store.lock import RunLock
from fedmpi.store.run_dir import RunDir

_LARGEST_EXPONENT = 700.0
"""Of a float64: exp of 710 is infinite."""
Times = Mapping[str, Mapping[str, float]]
"""A record's `seconds` by stage, the mean over the ranks, and `busy_s` of each rank, without waiting for others."""


class Server:
    """Keeps what rounds make (records, checkpoints, client memories), and tells observers and the terminal of them."""

    def __init__(
        self,
        stack: ExitStack,
        setup: Setup,
        folder: RunDir,
        lock: RunLock,
        snapshot: checkpoint.Snapshot | None,
        request: RunRequest,
        advice: Advice,
        observed: Makers,
    ) -> None:
        """Continues after `snapshot`, None for round 1; `stack` ends what is opened here."""
        config = setup.config
        self._setup = setup
        self._folder = folder
        self._lock = lock
        self._request = request
        self._advice = advice
        self._done = snapshot.round if snapshot else 0  # rounds
        is_shown = not request.quiet and config.output.progress != "off"
        self._progress = Progress(config.rounds, done_rounds=self._done, is_shown=is_shown)
        self.say = self._progress.say
        folder.clear_temporaries()
        if self._done <= config.rounds:
            write_text(folder.config_path, yaml_text.dump(config.to_dict()))
        write_atomic(folder.partition_path, setup.partition.packed(setup.dataset.digest))
        self._records = Records(folder, resume_after=self._done or None)
        self._best = Best.of(read_records(folder))
        self._sizes = sizes(setup)
        self._statistics = snapshot.statistics if snapshot else {}
        self._simulated = Spent(**snapshot.simulated) if snapshot else Spent()
        self._client_scores: ClientScores | None = None
        self._memories = set(folder.memories()) if setup.method.keeps_memory else set()
        self._losses: list[Mapping[str, Any]] = []
        self._observers = Observers({**_own_observers(setup, folder), **observed})
        stack.callback(setattr, setup.comm, "while_waiting", None)
        setup.comm.while_waiting = lock.beat

    def announce(self, places: Sequence[str], warnings: Sequence[str], first_state: Mapping[str, Any]) -> None:
        """Says who computes where (`places`, of each rank), what to mind, where results go and how to continue.
        `first_state` says where the first state is from, if this start has taken it from another run."""
        setup = self._setup
        config = setup.config
        threads = config.mpi.threads
        role = "server and worker" if 0 in setup.workers else "server"
        ranks = []
        for rank, place in zip(setup.comm.members, places, strict=True):
            self.say(f"rank {rank}: {role} on {place}, {counted(threads, 'thread')}")
            ranks.append({"rank": rank, "place": place, "threads": threads})
            role = "worker"
        chosen = defaults(config, setup.method)
        of_sources = [*made_with.source_warnings(self._folder, config)]
        manifest.add_start(
            self._folder,
            command=list(self._request.command),
            resumed_round=self._done or None,  # None for a fresh start
            ranks=ranks,
            job=slurm_job(),
            data_digest=setup.dataset.digest,
            num_test=setup.info.num_test,
            mpi=setup.comm.library,
            launch=self._advice.launch,
            sizes=[row.costs() for row in self._sizes],
            brought=made_with.user_code(config),
            defaults=chosen,
            **first_state,
        )
        if chosen:
            self._tell(chosen)
        found = remarks(setup, len(setup.workers))
        for line in (*found, *warnings, *of_sources):
            warn(one_line(line))
        self.say(f"run directory: {self._folder.path}")
        if self.rounds_to_go():
            # Said now, because a launcher that ends its ranks may pass on nothing that they say then.
            self.say(self._advice.to_resume("to continue after an interruption"))
            if self._done:
                self.say(f"resuming after round {self._done}")
        else:
            why = self._best.why_over(config.stop) or f"rounds is {config.rounds}"
            self._tell(f"nothing left to do: {counted(self._done, 'round')} done; {why}")
        for origin in first_state.values():
            changes = "; ".join(origin["config"]) or "with the same config"
            self._tell(f"round 1 begins with the state of {origin['run']} after round {origin['round']}: {changes}")
        self._observers.call("run_started", Started(config.to_dict(), self._folder.path, self._done))

    def rounds_to_go(self) -> range:
        """Returns the numbers of the rounds to train; none if the tests on record end the run."""
        config = self._setup.config
        last = self._done if self._best.why_over(config.stop) else config.rounds
        return range(self._done + 1, last + 1)

    def show_progress(self, num_done: int, num_clients: int) -> None:
        """Shows how many clients of the running phase are done."""
        self._lock.beat()
        self._progress.clients(num_done, num_clients)

    def _tell(self, text: str) -> None:
        self.say("\n".join(wrapped(text)))

    def report_losses(self, losses: Sequence[Mapping[str, Any]]) -> None:
        """Puts the ranks that died on record (`Loss.entries`): in the next record, and in the manifest."""
        self._losses = [*self._losses, *losses]
        if losses:
            self._if_possible("the manifest", lambda: manifest.add_losses(self._folder, losses))

    def is_over(self, round_number: int, result: RoundResult) -> bool:
        """Returns whether the tests of this round, after those on record, end the run (`stop`)."""
        tests = dict(self._best.largest)
        if result.scores:
            tests[round_number] = next(iter(result.scores.values())).accuracy
        elif result.client_scores:
            tests[round_number] = float(result.client_scores.accuracy.mean())
        return bool(Best(largest=tests).why_over(self._setup.config.stop))

    def round_done(
        self, round_number: int, state: ServerState, result: RoundResult, times: Times, why_stopped: str
    ) -> None:
        """Records the round, shows it, and saves it if it is time or the run stops ('': it goes on)."""
        setup = self._setup
        self._done = round_number
        self._client_scores = result.client_scores
        record = record_of(setup, round_number, result, times)
        if setup.fleet:
            record |= self._on_devices(setup.fleet, result)
        if self._losses:
            record["losses"] = self._losses
            self._losses = []
        self._best.round_done(record)
        if over := self._best.why_over(setup.config.stop):
            record["ended"] = over
        scores = result.scores.items()
        self._statistics = {name: score.statistics for name, score in scores if score.statistics is not None}
        self._memories |= {
            (report.client, round_number, report.memory_digest) for report in result.reports if report.memory_digest
        }
        self._warn_of_what_changed_nothing(round_number, record, result)
        ends = bool(why_stopped or over) or round_number == setup.config.rounds
        with setup.clock.stage("saving", round_number), writing(self._folder.path):
            self._records.round_done(record)  # no checkpoint is of a round that has no record
            if ends or round_number % setup.config.output.checkpoint_every == 0:
                self._save(state)
        self._progress.round_done(record)
        self._observers.call("round_done", record)
        if why_stopped:
            self._say_stopped(why_stopped)

    def _on_devices(self, fleet: Fleet, result: RoundResult) -> dict[str, Any]:
        """Returns what the record has of the round's time and energy on the clients' devices, and adds them up."""
        turns = [Spent(report.simulated_ns, report.simulated_uj) for report in result.reports]
        up_bytes = sum(report.up_bytes for report in result.reports)
        record, self._simulated = fleet.round_record(result.tasks, turns, up_bytes, self._simulated)
        return record

    def _warn_of_what_changed_nothing(self, number: int, record: Record, result: RoundResult) -> None:
        restored = len(record.get("restored", ()))
        if 0 < restored == len(result.reports):
            warn(f"round {number}: the training of all its clients diverged; they sent their last finite parameters")
        if "unchanged" in record:
            warn(f"round {number} changes nothing: {record['unchanged']}")

    def _save(self, state: ServerState) -> None:
        simulated = asdict(self._simulated) if self._setup.fleet else {}
        more = {"statistics": self._statistics, "simulated": simulated}
        snapshot = snapshot_of(self._setup, self._done, state, **more)
        checkpoint.save(self._folder, snapshot, self._setup.config.output.keep_checkpoints, self._best.best_of)
        live = checkpoint.referenced(self._folder) if self._memories else None
        if live is not None:
            # While rank 0 saves a round, workers write memories of the next one, perhaps over those of a lost start.
            stale = {memory for memory in self._memories - live if memory[1] <= self._done}
            for memory in stale:
                remove(self._folder.memory_path(*memory))
            self._memories -= stale

    def stop_early(self, before: ServerState, why: str) -> None:
        """Ends the run in the middle of a round; the one before, which ended with the state `before`, is saved."""
        if not self._folder.checkpoint_path(self._done).exists():
            with self._setup.clock.stage("saving", self._done), writing(self._folder.path):
                self._save(before)
        self._say_stopped(why)

    def _say_stopped(self, why: str) -> None:
        """Says that the run is to continue later: to people and, in the manifest, to programs."""
        self._if_possible("the manifest", lambda: manifest.add_stop(self._folder, self._done, why))
        self._tell(f"stopped after round {self._done} of {self._setup.config.rounds}: {why}; all is saved")
        self.say(self._advice.to_resume())
        self._run_ended(why)

    def close_run(self) -> None:
        """Prints the closing table and writes the report files."""
        self._if_possible("the report", self._write_report)
        self._run_ended()
        if self._setup.config.output.report and self._folder.page_path.exists():
            self.say(f"its page, for a browser: {self._folder.page_path.relative_to(self._folder.path)}")

    def _write_report(self) -> None:
        rows = tier_rows(self._sizes, self._best)
        ended = self._best.why_over(self._setup.config.stop)
        if not self._request.quiet:
            print_table(rows, closing_lines(read_records(self._folder)), self._folder)
        digest = checkpoint.state_digest(self._folder.checkpoint_path(self._folder.last_saved()))
        more = {"time_s": self._best.split_s(), "state_digest": digest, **({"ended": ended} if ended else {})}
        write_summary(self._folder, rows, **more)
        if scores := self._client_scores:
            pairs = zip(scores.clients.tolist(), scores.accuracy.tolist(), strict=True)
            table = "".join(f"{client},{accuracy!r}\n" for client, accuracy in pairs)
            write_text(self._folder.report_dir / "clients.csv", f"client,{scores.name}\n{table}")

    def _run_ended(self, stopped: str = "") -> None:
        best = self._best
        self._observers.call("run_ended", Ended(self._done, stopped, best.last, best.best, best.best_round))

    def _if_possible(self, what: str, write: Callable[[], None]) -> None:
        """Writes what a run that is saved can do without."""
        try:
            with writing(self._folder.path):
                write()
        except RunDirError as error:
            warn(f"{what} is not written: {error.text()}")


def _own_observers(setup: Setup, folder: RunDir) -> Makers:
    """Returns fedmpi's own observers; what they show is in the records, too."""

    def write_page(ended: Ended) -> None:
        if not ended.stopped:
            # By its name, because `results` is above this room; at the end, because pandas takes a second to load.
            import_module("fedmpi.results.page").write_final_page(setup, folder)

    page = f"{folder.page_path.name} (`fedmpi show RUN --html` writes it)"
    output = setup.config.output
    return {
        **({"TensorBoard": Events} if output.tensorboard else {}),
        **({page: lambda: SimpleNamespace(run_ended=write_page)} if output.report else {}),
    }


def record_of(setup: Setup, round_number: int, result: RoundResult, times: Times) -> dict[str, Any]:
    """Returns one line of rounds.jsonl."""
    config = setup.config
    is_fp16 = config.train.precision == "fp16"
    contributed = [report for report in result.reports if report.status == CONTRIBUTED]
    tested = {name: _scores(setup, round_number, score) for name, score in result.scores.items()}
    restored = [report.client for report in contributed if report.restored]
    lost = [task.client for task in result.tasks if not (task.arrives or task.is_late)]
    losses = [report.loss for report in contributed if math.isfinite(report.loss)]
    return {
        "round": round_number,
        "lr": learning_rate(config.train, round_number, config.rounds),
        **({TIERS: tested} if tested else {}),
        **({CLIENTS: result.client_scores.summary()} if result.client_scores is not None else {}),
        **({"method": dict(result.diagnostics)} if result.diagnostics else {}),
        "train_loss": sum(losses) / len(losses) if losses else None,
        "cohort": [task.client for task in result.tasks],
        "draws": list(result.draws),
        "dropped": [report.client for report in result.reports if report.status == DROPPED],
        **({"dropouts": lost} if config.clients.dropout else {}),
        **({"unchanged": why} if (why := unchanged(setup, result)) else {}),
        **({"restored": restored} if restored else {}),
        **({"left_out_steps": sum(report.left_out for report in result.reports)} if is_fp16 else {}),
        "exchange": result.exchange,
        "protocol_down_bytes": sum(report.down_bytes for report in result.reports),
        "protocol_up_bytes": sum(report.up_bytes for report in contributed),
        "training_macs": round(sum(task.cost for task in result.tasks if not task.is_late)),
        **setup.comm.traffic.take_moved(),
        **times,
    }


def unchanged(setup: Setup, result: RoundResult) -> str:
    """Returns why a round leaves the server's state as it is; '' if it changes it."""
    rule = setup.config.method.aggregate
    least = least_uploads(rule)
    contributed = {report.client for report in result.reports if report.status == CONTRIBUTED}
    by_phase = Counter(task.phase for task in result.tasks if task.client in contributed)
    most = max(by_phase.values(), default=0)
    if most >= least:
        no_steps = all(0 < report.steps == report.left_out for report in result.reports)
        return "fp16 left out every step: gradients were not finite; take train.precision=fp32" if no_steps else ""
    if most:
        return f"{counted(most, 'upload')} arrived, and {rule.name} needs {least}"
    if not result.tasks:
        return "no client took part"
    is_lost = not all(task.arrives for task in result.tasks)
    return "no upload of its clients arrived" if is_lost else "the training of all its clients diverged"


def _scores(setup: Setup, round_number: int, score: TierScore) -> dict[str, Any]:
    """Returns accuracy (or r2), loss, of sequences perplexity, and `evaluation.metrics` of a net."""
    values: dict[str, Any] = {setup.evaluation.scoring.name: score.accuracy, "loss": score.loss}
    if setup.info.task == "token_classification" and setup.config.train.loss == "auto":
        values["perplexity"] = math.exp(score.loss) if score.loss < _LARGEST_EXPONENT else math.inf
    if score.logits is None:
        return values
    named = metrics.named(setup.config.evaluation.metrics)
    with setup.clock.stage("evaluation", round_number):
        measured = metrics.measure(named, setup.dataset.test_y, score.logits, setup.info.class_names)
    return values | measured | values  # a metric has no name of these


def sizes(setup: Setup) -> list[TierRow]:
    """Returns a row of costs for each tier, then for nets that are tested but that no tier trains."""
    method = setup.method
    rows = []
    tiers = {tier.name: (tier.index, tier.capacity) for tier in method.tiers}
    others = {net.name: (net.index, net.capacity) for net in method.tested() if net.name not in tiers}
    for name, (number, capacity) in (tiers | others).items():
        cost = setup.nets[number]
        turn = method.costs(ClientLoad(number)) if name in tiers else None
        moved = (turn.down_bytes, turn.up_bytes) if turn else ()
        rows.append(TierRow(name, capacity, cost.params, cost.macs or None, *moved))
    return rows


def tier_rows(sizes: Sequence[TierRow], best: Best) -> list[TierRow]:
    """Returns the rows of the closing table: `sizes` with results, then all clients."""
    rows = []
    for row in [*sizes, *([TierRow(CLIENTS)] if CLIENTS in best.last else [])]:
        last = best.last.get(row.name)
        highest = best.best.get(row.name)
        rows.append(replace(row, accuracy_last=last, accuracy_best=highest, best_round=best.best_round.get(row.name)))
    return rows
