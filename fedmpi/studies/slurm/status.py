"""fedmpi status [DIR ...] [--watch]

How far runs are: every run below the folders (by default `runs`), with its state, job, starts, ranks, rounds, accuracy,
time to go, and how long ago it showed a sign of life. All is read from the run directories, so it needs no Slurm and
works on any machine that sees them. `--watch` shows it again every two seconds, until Ctrl-C.
"""

from __future__ import annotations

import os
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fedmpi.command.manners import Parser, run_command
from fedmpi.errors import INTERRUPTED, UserError
from fedmpi.report import table_text
from fedmpi.report.ending import RUNNING, recent_seconds, state_of
from fedmpi.report.lineage import lineage
from fedmpi.report.records import CLIENTS, Record, by_ranks, net_scores, rounds_done
from fedmpi.store.files import read_json, read_whole
from fedmpi.store.manifest import read_starts
from fedmpi.store.run_dir import NOTE_DIVERGED, NOTE_FAILED, RunDir, runs_below
from fedmpi.store.units import duration, percent
from fedmpi.studies.runs import Run

_HEADS = ("run", "state", "job", "starts", "ranks", "round", "accuracy", "ETA", "seen ago")
_BRANCH_OF = "branch of"
"""A column that stands where a run is a branch: `RUN@3` for one whose rounds 1 to 3 are those of RUN."""
_NUM_LEFT = 3
_FINISHED = "finished"
_MOST_NOTE_BYTES = 65_536
_WATCH_EVERY_S = 2.0
_CLEAR = "\x1b[H\x1b[2J"


@dataclass(frozen=True)
class Status:
    """A run as its directory shows it.

    `state`: `queued` (submitted, not begun since), `running`, `requeued` (its job went back into the queue by itself),
    `silent` (no sign of life from another host), `stopped` (saved, to be started again), `diverged`, `failed` (a rank
    said so at the end), `interrupted` (ended without a word), `finished`, `unreadable`. No directory tells of a job
    that was cancelled in the queue, or that failed before its run began: the run stays `queued` (or `requeued`).
    """

    folder: Path
    state: str
    job: str = ""
    starts: int = 0
    round: int = 0
    """The last round on record of a run that is running or finished; else the one after which a resume continues."""
    rounds: int | None = None
    accuracy: float | None = None
    """The last one of the run's own rounds."""
    eta_s: float | None = None
    ranks: tuple[int, ...] = ()
    """How many ranks have done the rounds: several numbers where the run was resumed on others, or lost some. A start
    that is still in its first round counts; before the first round the last start does.
    """
    seen_s: float | None = field(default=None, compare=False)
    """Seconds since the last sign of life, by the clock of the file system."""
    branch_of: str = ""
    """`RUN@3` for a run whose rounds 1 to 3 are those of the run in a folder RUN."""

    def line(self, above: Path) -> tuple[str, ...]:
        """The cells under `_HEADS` and `_BRANCH_OF`, the folder as seen from `above`."""
        name = os.path.relpath(self.folder, above) if self.folder.is_relative_to(above) else str(self.folder)
        rounds = f"{self.round}/{self.rounds or '?'}"
        counts = self.job or "-", str(self.starts), ", ".join(map(str, self.ranks)) or "-", rounds
        seen = "-" if self.seen_s is None else duration(self.seen_s)
        return name, self.state, *counts, percent(self.accuracy), duration(self.eta_s), seen, self.branch_of or "-"


def main(argv: Sequence[str] | None = None) -> int:
    """The exit code: 0, 2 for a mistake of the user, 130 after Ctrl-C."""
    parser = Parser("fedmpi status", __doc__)
    parser.add_argument("folders", nargs="*", type=Path, default=[Path("runs")], metavar="DIR")
    parser.add_argument("--watch", action="store_true")
    return run_command(lambda: _main(**vars(parser.parse_args(argv))))


def _main(folders: Sequence[Path], watch: bool) -> int:
    if not watch:
        print_status(folders)
        return 0
    try:
        while True:
            if sys.stdout.isatty():
                print(_CLEAR, end="")
            print_status(folders)
            sys.stdout.flush()
            time.sleep(_WATCH_EVERY_S)
    except KeyboardInterrupt:
        return INTERRUPTED  # without a word: to end it so is what its user was told


def print_status(folders: Sequence[Path]) -> None:
    """A line for each run below the folders, and how many there are in each state. Raises `UserError`."""
    lines = [line for folder in folders for line in _lines(folder)]
    if not lines:
        print("no runs there")
        return
    has_branch = any(line[-1] != "-" for line in lines)
    # Beside the run's name, where a long one stands above the rest of its line.
    shown = [(line[0], line[-1], *line[1:-1]) if has_branch else line[:-1] for line in ((*_HEADS, _BRANCH_OF), *lines)]
    table_text.print_lines(shown[0], shown[1:], _NUM_LEFT + has_branch, sys.stdout)
    print(", ".join(f"{count} {state}" for state, count in Counter(line[1] for line in lines).items()))


def _lines(folder: Path) -> Iterator[tuple[str, ...]]:
    if not folder.is_dir():
        raise UserError(str(folder), "is not a folder; name run directories, or a folder of them")
    for run in runs_below(folder.resolve()):
        above = folder.resolve() if run.path != folder.resolve() else folder.resolve().parent
        try:
            status = status_of(run)
        except UserError as error:  # the others have nothing to do with it
            print(f"unreadable: {error.text()}", file=sys.stderr, flush=True)
            status = Status(run.path, "unreadable")
        yield status.line(above)


def status_of(run_dir: RunDir) -> Status:
    """Whatever the directory lacks is unknown; nothing is changed. Raises `UserError` where files hold nonsense."""
    try:
        return _status_of(run_dir)
    except UserError:
        raise
    except (OSError, ValueError, TypeError, LookupError, AttributeError, RecursionError) as error:
        raise UserError(str(run_dir.path), f"{type(error).__name__}: {error}") from error


def jobs_of(run_dir: RunDir) -> set[str]:
    """The batch jobs that may be making the run: the one it was submitted as, its last start's, the one requeued."""
    last: Mapping[str, Any] = next(reversed(read_starts(run_dir)), {})
    note = (read_whole(run_dir.requeued_path, _MOST_NOTE_BYTES) or b"").decode(errors="replace")
    found = [submission(run_dir).get("job"), last.get("job"), *note.split()[:1]]
    return {str(job) for job in found if job}


def _status_of(run_dir: RunDir) -> Status:
    run = Run(run_dir.path.name, 0, run_dir)
    records, starts, submitted = run.records, read_starts(run_dir), submission(run_dir)
    try:
        rounds, finished = run.rounds, run.is_finished()
    except UserError:
        rounds, finished = None, False
    state = _FINISHED if finished else _unfinished_state(run_dir, records, starts, submitted)
    last: Mapping[str, Any] = next(reversed(starts), {})
    recent_s, found = recent_seconds(records), lineage(records)
    done = rounds_done(records) if state in (RUNNING, _FINISHED) else run_dir.last_saved()
    eta_s = None  # of work; waiting in the queue comes on top
    if rounds is not None and recent_s and state not in (_FINISHED, NOTE_DIVERGED, NOTE_FAILED):
        eta_s = (rounds - done) * sum(recent_s) / len(recent_s)
    return Status(
        folder=run_dir.path,
        state=state,
        job=str(submitted.get("job", "") if state == "queued" else last.get("job") or submitted.get("job", "")),
        starts=len(starts),
        round=done,
        rounds=rounds,
        accuracy=next((share for record in reversed(found.own) if (share := _accuracy(record)) is not None), None),
        eta_s=eta_s,
        branch_of=found.parent.name if found.parent else "",
        ranks=_ranks(found.own, last, state),
        seen_s=_silent_s(run_dir),
    )


def _ranks(records: Sequence[Record], last: Mapping[str, Any], state: str) -> tuple[int, ...]:
    """`last` is the last start."""
    found = dict.fromkeys(by_ranks(records))
    begins = state == "running" and (last.get("resumed_round") or 0) >= rounds_done(records)
    if last.get("ranks") and (begins or not found):
        found[len(last["ranks"])] = None
    return tuple(found)


def _silent_s(run_dir: RunDir) -> float | None:
    """Since the run last touched its lock (every few seconds), or wrote a record; None before its first start."""
    paths = [path for path in (run_dir.lock_path, run_dir.records_path) if path.exists()]
    return max(0.0, time.time() - max(path.stat().st_mtime for path in paths)) if paths else None


def _unfinished_state(
    run_dir: RunDir, records: Sequence[Record], starts: Sequence[Mapping[str, Any]], submitted: Mapping[str, Any]
) -> str:
    state = state_of(run_dir, records)
    if state == RUNNING:
        return state
    if submitted and len(starts) <= submitted.get("starts", 0):
        return "queued"
    if _is_requeued(run_dir):
        return "requeued"
    return state


def _is_requeued(run_dir: RunDir) -> bool:
    """Whether there is a note of it, and no start since: that would have written the manifest."""
    paths = run_dir.requeued_path, run_dir.manifest_path
    noted, begun = (path.stat().st_mtime_ns if path.exists() else 0 for path in paths)
    return noted > 0 and noted >= begun


def submission(run_dir: RunDir) -> dict[str, Any]:
    """What `submitted.json` says; empty where there is none, or one that says nothing. Raises RunDirError."""
    found = read_json(run_dir.submission_path, _MOST_NOTE_BYTES)
    return found if isinstance(found, dict) else {}


def _accuracy(record: Record) -> float | None:
    """The clients' own where they have nets of their own, else the first net's: that of the largest capacity."""
    scores = record.get(CLIENTS) or next(iter(net_scores(record).values()), None)
    return scores.get("accuracy") if scores else None
