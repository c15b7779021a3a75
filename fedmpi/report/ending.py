"""How a run with rounds to go has ended, or that it is still running: for its page, figures, exports and `show`.

A rank that ends the job leaves a note in the run directory (`.failed`): a word, then a line with the failure and its
place, then one with what to do. A run that was killed leaves none.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fedmpi.errors import MAX_LINE, one_line
from fedmpi.report.records import Record, rounds_done
from fedmpi.store import lock, manifest
from fedmpi.store.files import read_whole
from fedmpi.store.run_dir import NOTE_DIVERGED, NOTE_FAILED, RunDir

RUNNING = "running"
STOPPED = "stopped"
INTERRUPTED = "interrupted"
SILENT = "silent"
# A run on another host touches its lock once a second, unless its file system is slow: a few rounds' time more.
_PATIENCE = 3.0
_MOST_NOTE_BYTES = 65_536
_RECENT_ROUNDS = 20
_IN_WORDS = {
    RUNNING: "is still running",
    SILENT: "has shown no sign of life for long: it was interrupted, or its host cannot be reached",
    INTERRUPTED: "was interrupted: it ended without a word (Ctrl-C, a kill, or a machine that went down)",
}


@dataclass(frozen=True)
class Ending:
    """The end of a run: its state, rounds, cause, and what to do.

    `state` is running, silent (no sign of life from another host), stopped (saved, to be started again), diverged,
    failed (a rank said so at the end) or interrupted (ended without a word).
    """

    state: str
    done: int
    """Rounds on record."""
    saved: int
    """The round of the newest checkpoint; 0 for none."""
    what_is_saved: str
    """As `rounds 1 to 3 are saved`."""
    cause: str = ""
    """The failure and its place, as `round 3, client 17, stage local_training: ...`; or why the run was stopped."""
    advice: str = ""
    """What to do next: a line with a command."""

    def what(self) -> str:
        """Returns `diverged in round 3, client 17, stage local_training: ...`, after the name of a run."""
        if self.state in _IN_WORDS:
            return _IN_WORDS[self.state]
        words = f"was stopped after round {self.done}" if self.state == STOPPED else self.state
        if not self.cause:
            return words
        return f"{words} in {self.cause}" if self.cause.startswith("round ") else f"{words}: {self.cause}"

    def briefly(self) -> str:
        """Returns `what` without its cause: `diverged in round 3, client 17, stage local_training`."""
        return self.what().partition(": ")[0]

    def paragraph(self) -> str:
        """Returns sentences for the top of a page: what happened, what is saved, and what to do."""
        # The advice of a rank whose run diverged begins with what is saved.
        saved = [] if self.state == NOTE_DIVERGED else [self.what_is_saved]
        parts = [part for part in (f"this run {self.what()}", *saved, self.advice) if part]
        end = "" if self.advice else "."
        return ". ".join(part[:1].upper() + part[1:] for part in parts) + end


def ending(run_dir: RunDir, records: Sequence[Record]) -> Ending:
    """Returns how the run has ended that has these records and is not finished. Raises RunDirError."""
    state = state_of(run_dir, records)
    cause, advice = [*_note(run_dir)[1:], "", ""][:2]
    if state == STOPPED:
        cause = one_line(str(manifest.read_starts(run_dir)[-1]["stopped"].get("why", "")))
    if state in (STOPPED, INTERRUPTED, SILENT):
        advice = f"to continue: {manifest.resume_command(run_dir)}"
    return Ending(state, rounds_done(records), run_dir.last_saved(), run_dir.what_is_saved(), cause, advice)


def state_of(run_dir: RunDir, records: Sequence[Record]) -> str:
    """Returns the `state` of an `Ending`. Raises RunDirError."""
    patience_s = max([lock.STALE_AFTER_S, *(_PATIENCE * seconds for seconds in recent_seconds(records))])
    holder, lives = lock.seen(run_dir, patience_s) or (None, False)
    note = _note(run_dir)
    if note:
        return NOTE_DIVERGED if note[0] == NOTE_DIVERGED else NOTE_FAILED
    if lives:
        return RUNNING
    if holder is not None and not holder.is_local:
        return SILENT
    starts = manifest.read_starts(run_dir)
    return STOPPED if starts and "stopped" in starts[-1] else INTERRUPTED


def recent_seconds(records: Sequence[Record]) -> list[float]:
    """Returns how long each of the last rounds took."""
    return [float(record.get("seconds", {}).get("wall") or 0.0) for record in records[-_RECENT_ROUNDS:]]


def _note(run_dir: RunDir) -> list[str]:
    """Reads the lines of `.failed`; [] where there is none."""
    content = read_whole(run_dir.failure_path, _MOST_NOTE_BYTES) or b""
    return [one_line(line[:MAX_LINE]) for line in content.decode(errors="replace").splitlines()]
