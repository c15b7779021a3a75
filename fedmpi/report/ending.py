"""How a run with rounds to go has ended, or that it is still running: for its page, figures, exports and `status`.

A rank that ends the job leaves a note in the run directory (`.failed`): a word, then a line with what has failed and
where, then one with what to do. A run that was killed leaves none.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fedmpi.errors import MAX_LINE, one_line
from fedmpi.report.again import Again, true_now
from fedmpi.report.records import Record, rounds_done
from fedmpi.store import lock
from fedmpi.store.files import read_whole
from fedmpi.store.manifest import read_starts
from fedmpi.store.run_dir import NOTE_DIVERGED, NOTE_FAILED, RunDir

RUNNING, STOPPED, INTERRUPTED, SILENT = "running", "stopped", "interrupted", "silent"
# A run on another host shows a sign of life once a round; a round may take this much longer than the longest so far.
_PATIENCE = 3.0
_MOST_NOTE_BYTES = 65_536
_RECENT_ROUNDS = 20


@dataclass(frozen=True)
class Ending:
    """`state` is running, silent (no sign of life from another host), stopped (saved, to be started again), diverged,
    failed (a rank said so at the end) or interrupted (ended without a word).
    """

    state: str
    done: int
    """Rounds on record."""
    saved: int
    """The round of the newest checkpoint; 0 for none."""
    cause: str = ""
    """What has failed and where, as `round 3, client 17, stage local_training: ...`; or why the run was stopped."""
    advice: str = ""
    """What to do next: a line with a command."""

    def what(self) -> str:
        """`diverged in round 3, client 17, stage local_training: ...`, after the name of a run."""
        match self.state:
            case "running":
                return "is still running"
            case "silent":
                return "has shown no sign of life for long: it was interrupted, or its host cannot be reached"
            case "interrupted":
                return "was interrupted: it ended without a word (Ctrl-C, a kill, or a machine that went down)"
            case "stopped":
                return f"was stopped after round {self.done}" + f": {self.cause}" * bool(self.cause)
        in_a_round = self.cause.startswith("round ")
        return self.state + (f" in {self.cause}" if in_a_round else f": {self.cause}" if self.cause else "")

    def briefly(self) -> str:
        """`what` without its cause: `diverged in round 3, client 17, stage local_training`."""
        return self.what().partition(": ")[0]

    def what_is_saved(self) -> str:
        """`rounds 1 to 3 are saved`."""
        if not self.saved:
            return "no round is saved"
        return f"rounds 1 to {self.saved} are saved" if self.saved > 1 else "round 1 is saved"

    def paragraph(self) -> str:
        """For the top of a page: what happened, what is saved, and what to do."""
        says_it = "saved" in self.advice.partition("to continue")[0]  # behind it are paths
        saved = [] if says_it else [self.what_is_saved()]
        parts = filter(None, [f"this run {self.what()}", *saved, self.advice])
        return ". ".join(part[:1].upper() + part[1:] for part in parts) + "." * (not self.advice)


def ending(run_dir: RunDir, records: Sequence[Record]) -> Ending:
    """How the run has ended that has these records and is not finished. Raises RunDirError where a file cannot be
    read.
    """
    note, state = _note(run_dir), state_of(run_dir, records)
    starts = read_starts(run_dir)
    cause, advice = [*note[1:], "", ""][:2]
    if state == STOPPED:
        stopped = starts[-1]["stopped"]
        cause = one_line(str(stopped.get("why", ""))) if isinstance(stopped, dict) else ""
    start = starts[-1] if starts else {}
    folder = str(run_dir.path.absolute())
    if state in (STOPPED, INTERRUPTED, SILENT) or (state == NOTE_FAILED and not advice):
        advice = f"to continue: {Again.of(start).command('--run-dir', folder, '--resume')}"
    advice = true_now(advice, start, folder)
    return Ending(state, rounds_done(records), run_dir.last_saved(), cause, advice)


def unless_all_saved(done: int, saved: int) -> str:
    """` (2 saved)`, to stand behind the number of rounds `done`, where a resume continues after another round."""
    return f" ({saved:,} saved)" if saved != done else ""


def state_of(run_dir: RunDir, records: Sequence[Record]) -> str:
    """The `state` of an `Ending`. Raises RunDirError."""
    patience_s = max([lock.STALE_AFTER_S, *(_PATIENCE * seconds for seconds in recent_seconds(records))])
    holder, lives = lock.seen(run_dir, patience_s) or (None, False)
    note = _note(run_dir)
    if lives and not note:
        return RUNNING
    if note:  # an older version says no more than that
        return NOTE_DIVERGED if note[0] == NOTE_DIVERGED else NOTE_FAILED
    if holder is not None and not holder.is_local:
        return SILENT
    starts = read_starts(run_dir)
    return STOPPED if starts and "stopped" in starts[-1] else INTERRUPTED


def recent_seconds(records: Sequence[Record]) -> list[float]:
    """What the last rounds took."""
    return [float(record.get("seconds", {}).get("wall") or 0.0) for record in records[-_RECENT_ROUNDS:]]


def _note(run_dir: RunDir) -> list[str]:
    """The lines of `.failed`; empty where there is none."""
    content = read_whole(run_dir.failure_path, _MOST_NOTE_BYTES)
    if content is None:
        return []
    return [one_line(line[:MAX_LINE]) for line in content.decode(errors="replace").splitlines()] or [NOTE_FAILED]
