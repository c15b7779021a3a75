"""What a run that ends before its last round tells its user to do next: one command, which works as it is printed."""

from __future__ import annotations

import contextlib
import os
from dataclasses import replace
from pathlib import Path

from fedmpi import registry
from fedmpi.config.fields import DATA_PLACES
from fedmpi.config.schema import Config, Train
from fedmpi.errors import DivergenceError, UserError, cause_of, in_a_line
from fedmpi.report.ending import ResumeCommand
from fedmpi.report.terminal import folded, wrapped
from fedmpi.store.run_dir import NOTE_DIVERGED, NOTE_FAILED, RunDir

# A client that diverges at a learning rate usually trains at a tenth of it; the default is safe where that is far off.
_LOWER = 0.1
_TO_CONTINUE = "to continue"
NOTHING_SAVED = "nothing was saved yet"


class Advice:
    """What to say where a run ends. It knows of the run's directory once `run_is_in` has been called."""

    _resume_alone = "--resume alone"

    def __init__(self, config: Config) -> None:
        self._lr = config.train.lr
        self.run_dir: RunDir | None = None
        """None before there is one."""
        # What a command names again, because a resume does not import what only a run directory names.
        observers = ",".join(config.output.observers)
        words = [f"{key}={name}" for key, name in registry.named_in_full(config)]
        words += [f"output.observers=[{observers}]"] if observers else []
        # A module of the user's, or data under a relative path, may be found only from the folder of this start.
        places = [os.path.expanduser(getattr(config.data, key, "/")) for key in DATA_PLACES]
        is_bound = words or not all(map(os.path.isabs, places))
        self.again = ResumeCommand(words=tuple(words))
        with contextlib.suppress(OSError):  # the folder was removed: nothing will be found there
            self.again = replace(self.again, folder=os.getcwd() if is_bound else "")

    def run_is_in(self, run_dir: RunDir, num_ranks: int) -> None:
        """Notes the run directory of a job that was started with so many ranks."""
        self.run_dir, self.again = run_dir, replace(self.again, ranks=num_ranks)

    # What `library.api.CallAdvice` says in other words.

    def resume_command(self, lr: float | None = None) -> str:
        """Returns what to type, in any folder, to continue the run, with this learning rate where one is given."""
        words = [] if lr is None else [f"train.lr={lr:.3g}"]
        return self.again.command("--run-dir", str(self._folder()), "--resume", *words)

    def init_command(self, lr: float) -> str:
        """Returns what to type to begin a new run from the newest state of this one."""
        return self.again.command("--init-from", str(self._folder()), f"train.lr={lr:.3g}")

    def in_lines(self, text: str) -> str:
        """Returns a text that ends in a command, in lines that can be typed as they are."""
        return folded(text)

    def to_resume(self, when: str = _TO_CONTINUE) -> str:
        """Returns `to continue: COMMAND`, in lines."""
        return self.in_lines(f"{when}: {self.resume_command()}")

    def _folder(self) -> Path:
        assert self.run_dir is not None
        return self.run_dir.path

    def what_is_saved(self) -> str:
        """Returns how many rounds, in words."""
        if not (last := self._last_saved()):
            return NOTHING_SAVED
        return f"rounds 1 to {last} are saved" if last > 1 else f"round {last} is saved"

    def how_to_continue(self, error: BaseException | None = None) -> str:
        """Returns the last lines of a message about the end of a run, which `error` has ended, or a signal (None)."""
        first, then = self._how_to_continue(error)
        lines = self.in_lines(then) if then.startswith(_TO_CONTINUE) else then
        return "\n".join([*(wrapped(f"  {first}") if first else ()), lines])

    def _how_to_continue(self, error: BaseException | None) -> tuple[str, str]:
        """Returns what to mind first, if anything, and what to do."""
        if (run_dir := self.run_dir) is None:
            return "", NOTHING_SAVED
        cause = cause_of(error)
        if not run_dir.holds_run():  # it is gone, or has not begun
            return "", f"nothing is left to continue in {run_dir.path}"
        if isinstance(cause, DivergenceError):
            return self._after_divergence()
        return _before_a_resume(cause), f"{_TO_CONTINUE}: {self.resume_command()}"

    def _after_divergence(self) -> tuple[str, str]:
        """Says what helps: a resume computes the same bits, so it diverges at the same place, as a new start would."""
        lower = min(self._lr * _LOWER, Train().lr)
        if self.run_dir is None or not self.run_dir.checkpoints():
            problem = f"{NOTHING_SAVED}, and the same settings diverge again"
            return problem, f"{_TO_CONTINUE} from round 1 with a lower learning rate: {self.resume_command(lower)}"
        again = self.init_command(lower)
        saved = f"{self.what_is_saved()}; {self._resume_alone} would diverge again, because it computes the same bits"
        return (saved, f"{_TO_CONTINUE} in a new run from the last state, with a lower learning rate: {again}")

    def _last_saved(self) -> int:
        return self.run_dir.last_saved() if self.run_dir else 0

    # The first rank that fails leaves a note. The others then give no advice of their own: neither a second rank that
    # fails, nor rank 0 when the launcher ends it with a signal.

    def note_failure(self, error: BaseException | None = None) -> bool:
        """Notes in the run directory that this rank ends the job: whether because the run diverged, what has failed
        where, and what to do; False if another rank has done so before. A directory
        that holds no run, because it was removed or moved, gets none.
        """
        cause = cause_of(error)
        run_dir = self.run_dir
        if run_dir is not None and run_dir.holds_run():
            kind = NOTE_DIVERGED if isinstance(cause, DivergenceError) else NOTE_FAILED
            advice = "; ".join(filter(None, self._how_to_continue(error)))
            with contextlib.suppress(OSError):
                try:
                    with open(run_dir.failure_path, "x", encoding="utf-8", errors="replace") as file:
                        file.write("\n".join([kind, *([in_a_line(error), advice] if error else [])]))
                except FileExistsError:
                    return False
        return True

    def has_failed(self) -> bool:
        """Returns whether a rank has noted that it ends the job."""
        with contextlib.suppress(OSError):
            return self.run_dir is not None and self.run_dir.failure_path.exists()
        return False


def _before_a_resume(cause: BaseException | None) -> str:
    """Returns what to do first where a plain resume may end in the same way; empty for what the surroundings have
    caused."""
    if isinstance(cause, MemoryError) or type(cause).__name__ == "OutOfMemoryError":  # torch's has no common base
        return "a resume needs as much memory again: start fewer ranks on a machine, or give the job more memory first"
    if cause is None or isinstance(cause, (UserError, OSError)) or not isinstance(cause, (Exception, SystemExit)):
        return ""
    return "a resume computes the same bits: change what caused this first, if it lies in the code, config or data"
