"""Reads a run's folder: config, records, sizes, how it ended. Nothing is imported, trained or written.

A run is finished when all its rounds are on record, or those up to the test that ended it (`stop`), and its report is
written, which is the last thing that a run does. A rank that ends the job leaves a note (`.failed`): a word, then a
line with the failure and its place, then one with what to do. A run that was killed leaves none. Accuracies are shares.
"""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from fedmpi.config import yaml_text
from fedmpi.config.load import Override
from fedmpi.config.schema import Config, Stop
from fedmpi.data.dataset import Dataset, load_data, place_of
from fedmpi.data.partition import Partition, saved
from fedmpi.errors import MAX_LINE, DataError, RunDirError, one_line
from fedmpi.report.records import CLIENTS, Best, read_records, rounds_done
from fedmpi.running.folder import config_of
from fedmpi.store import lock, manifest
from fedmpi.store.files import read_whole
from fedmpi.store.run_dir import NOTE_DIVERGED, NOTE_FAILED, RunDir, runs_below, suggestion

FINISHED = "finished"
RUNNING = "running"
STOPPED = "stopped"
INTERRUPTED = "interrupted"
# A run on another host touches its lock once a second, unless its file system is slow: a few rounds' time more.
_PATIENCE = 3.0
_RECENT_ROUNDS = 20
_IN_WORDS = {
    FINISHED: "is finished",
    RUNNING: "is still running",
    INTERRUPTED: "was interrupted: it ended without a word (Ctrl-C, a kill, or a machine that went down)",
}


@dataclass(frozen=True)
class Run:
    """A run's folder. Each value is read once: make a new `Run` to read anew. Raises RunDirError for damaged files."""

    path: Path
    overrides: Sequence[Override] = field(default=(), compare=False)
    """The user's own code, named again, or where the data are now."""

    @property
    def name(self) -> str:
        return self.path.name

    @property
    def dir(self) -> RunDir:
        return RunDir(self.path)

    @cached_property
    def config_text(self) -> str:
        content = read_whole(RunDir.of_run(self.path).config_path) or b""
        return content.decode(errors="replace")

    @cached_property
    def values(self) -> dict[str, Any]:
        """Returns the config that the run began with, as its file says it."""
        try:
            values = yaml_text.parse(self.config_text).value
        except yaml_text.YamlError as error:
            raise RunDirError(str(self.dir.config_path), f"is damaged: {error}") from None
        match values:
            case {"rounds": int(), "seed": int(), "method": {"name": str()}, "data": {"name": str()}}:
                return dict(values)
        raise RunDirError(str(self.dir.config_path), "is no run's config: rounds, seed, method or data are missing")

    @cached_property
    def config(self) -> Config:
        """Validates the config. Raises ConfigError where it names code in full, as `method.name=package.module:Class`,
        and `overrides` do not: a folder alone makes fedmpi import nothing.
        """
        return config_of(self.dir, self.overrides)

    @property
    def num_rounds(self) -> int:
        """Returns how many rounds the run was asked for."""
        return int(self.values["rounds"])

    @property
    def seed(self) -> int:
        return int(self.values["seed"])

    @cached_property
    def records(self) -> list[dict[str, Any]]:
        """Returns the lines of `rounds.jsonl`, a dict for each round; `fedmpi/store/README.md` has its keys."""
        return read_records(self.dir)

    @property
    def init_from(self) -> str:
        """Names the run and round whose state this one begins with, as `RUN@3`; '' if it has a state of its own."""
        origin = self.noted("init_from")
        return f"{Path(origin['run']).name}@{origin['round']}" if origin else ""

    @property
    def done(self) -> int:
        """Returns the last round on record."""
        return rounds_done(self.records)

    @cached_property
    def starts(self) -> list[dict[str, Any]]:
        return manifest.read_starts(self.dir)

    @property
    def last_start(self) -> Mapping[str, Any]:
        return self.starts[-1] if self.starts else {}

    @property
    def working_starts(self) -> Sequence[Mapping[str, Any]]:
        """Returns the starts that did rounds, or all starts if none did any."""
        return manifest.with_rounds(self.starts, self.done) or self.starts

    @cached_property
    def is_finished(self) -> bool:
        """Returns True if all rounds are on record, or a test has ended the run, and the report is written."""
        has_report = (self.dir.report_dir / "summary.json").exists()
        return self.dir.has_config() and has_report and (self.done >= self.num_rounds or bool(self.why_over))

    @cached_property
    def why_over(self) -> str:
        """Returns why its last test ends the run (`stop`), '' if it does not."""
        try:
            stop = Stop.model_validate(self.values.get("stop", {}))
        except ValueError as error:
            raise RunDirError(str(self.dir.config_path), f"is no run's config: stop: {error}") from None
        return self.best.why_over(stop)

    @cached_property
    def _note(self) -> list[str]:
        content = read_whole(self.dir.failure_path) or b""
        return [one_line(line[:MAX_LINE]) for line in content.decode(errors="replace").splitlines()]

    @cached_property
    def state(self) -> str:
        """Names `finished`, or how a run with rounds to go has ended: `running`, `stopped` (saved, to be started
        again), `diverged`, `failed` (a rank noted so) or `interrupted` (without a word, or long without a sign of life
        from another host).
        """
        if self.is_finished:
            return FINISHED
        if self._note:
            return NOTE_DIVERGED if self._note[0] == NOTE_DIVERGED else NOTE_FAILED
        walls_s = [float(record.get("seconds", {}).get("wall") or 0.0) for record in self.records[-_RECENT_ROUNDS:]]
        patience_s = max([lock.STALE_AFTER_S, *(_PATIENCE * wall_s for wall_s in walls_s)])
        if lock.is_held(self.dir, patience_s):
            return RUNNING
        return STOPPED if "stopped" in self.last_start else INTERRUPTED

    @property
    def cause(self) -> str:
        """Returns the failure and its place, as `round 3, client 17, stage local_training: ...`, or why the run was
        stopped; '' for nothing.
        """
        if self.state == STOPPED:
            return one_line(str(self.last_start["stopped"].get("why", "")))
        return "".join(self._note[1:2])

    @property
    def advice(self) -> str:
        """Returns what to do next, a line with a command; '' for nothing."""
        if self.state in (STOPPED, INTERRUPTED):
            return f"to continue: {manifest.resume_command(self.dir)}"
        return "".join(self._note[2:3])

    def how_it_ended(self) -> str:
        """Returns `diverged in round 3, client 17, stage local_training: ...`, after the name of a run."""
        if self.state in _IN_WORDS:
            return _IN_WORDS[self.state]
        words = f"was stopped after round {self.done}" if self.state == STOPPED else self.state
        if not self.cause:
            return words
        return f"{words} in {self.cause}" if self.cause.startswith("round ") else f"{words}: {self.cause}"

    def briefly(self) -> str:
        """Returns `how_it_ended` without its cause: `diverged in round 3, client 17, stage local_training`."""
        return self.how_it_ended().partition(": ")[0]

    def paragraph(self) -> str:
        """Returns sentences for the top of a page: what happened, what is saved, and what to do."""
        # The advice of a rank whose run diverged begins with what is saved.
        saved = "" if self.state == NOTE_DIVERGED else self.dir.what_is_saved()
        parts = [part for part in (f"this run {self.how_it_ended()}", saved, self.advice) if part]
        return ". ".join(part[:1].upper() + part[1:] for part in parts)

    @property
    def continues_after(self) -> int:
        """Returns the last round that counts: of a run that has ended early, the one after which a resume continues."""
        return self.done if self.state in (RUNNING, FINISHED) else self.dir.last_saved()

    @cached_property
    def best(self) -> Best:
        """Returns the last and the best accuracy of each net, and seconds by stage."""
        return Best.of(self.records)

    @cached_property
    def nets(self) -> list[dict[str, Any]]:
        """Returns a row for each net but the clients' own: `name`; where known, `params`, `macs`, `down_bytes` and
        `up_bytes`.
        """
        sizes = {row["name"]: row for row in self.noted("sizes", [])}
        names = dict.fromkeys([*sizes, *self.best.last])
        return [sizes.get(name, {"name": name}) for name in names if name != CLIENTS]

    @cached_property
    def seconds(self) -> dict[str, float]:
        """Sums the seconds of the run's rounds by stage, the mean over the ranks."""
        return self.best.split_s()

    def noted(self, key: str, otherwise: Any = None) -> Any:
        """Returns what the newest start that has this key notes in the manifest (`fedmpi/store/README.md`)."""
        return manifest.newest(self.starts, key, otherwise)

    def divided_data(self) -> tuple[Partition, Dataset]:
        """Returns whose the training examples are, and the data set as it is today, which must be the run's.

        Raises DataError for other data, and where `partition.h5` is missing or damaged.
        """
        path = self.dir.partition_path
        partition, digest = saved(path)
        dataset = load_data(self.config.data)
        if digest != dataset.digest:
            here = f"{place_of(self.config.data)} has (digest {dataset.digest[:12]})"
            was = digest[:12]
            raise DataError(str(path), f"divides other data (digest {was}) than {here}; name the run's data")
        return partition, dataset

    @property
    def made_with(self) -> dict[str, Any]:
        """Returns commit, versions and platform of the last start that did rounds, and digests of the user's code."""
        last = self.working_starts[-1] if self.starts else {}
        code = {section: {"digest": entry.get("digest")} for section, entry in manifest.user_code(self.dir).items()}
        found = {key: last.get(key) for key in ("git", "versions", "platform")}
        return {**found, "brought": code} if code else found

    @property
    def tested(self) -> list[str]:
        """Names what was tested in the run's rounds: the clients' own nets, then the largest net first."""
        return sorted(self.best.last, key=lambda name: name != CLIENTS)


def read_runs(paths: Sequence[Path]) -> tuple[list[Run], list[str]]:
    """Finds runs: each path is a run, or a folder of runs.

    Runs without a round and damaged runs are left out; a line for each says so. Raises RunDirError where no run is
    left.
    """
    runs: list[Run] = []
    problems: list[str] = []
    for path in paths:
        if not os.path.isdir(path):  # False, too, of a name too long
            raise RunDirError(str(path), f"is not a folder; name a run's folder, or a folder of runs{suggestion(path)}")
        for run in (Run(folder.path) for folder in runs_below(path)):
            try:
                _ = run.values
                if run.records:
                    runs.append(run)
                else:
                    problems.append(f"{run.name} {run.briefly()}, and has no round")
            except RunDirError as error:
                problems.append(error.text())
    if not runs:
        problem = problems[0] if problems else "holds no run (no config.yaml); name a run's folder"
        more = f"; and {len(problems) - 1} more" if len(problems) > 1 else ""
        raise RunDirError(", ".join(map(str, paths)), problem + more)
    return runs, [f"left out: {problem}" for problem in problems]
