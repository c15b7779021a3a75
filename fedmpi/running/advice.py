"""What a run that ends before its last round tells its user to do next: one command, which works as it is printed."""

import contextlib
import os
import shlex

from fedmpi.config.fields import DATA_PLACES
from fedmpi.config.schema import Config, Train, named_in_full
from fedmpi.config.yaml_text import dotted
from fedmpi.errors import STANDARDIZE, DivergenceError, cause_of, message_of, one_line
from fedmpi.report.terminal import folded
from fedmpi.store.files import user_path
from fedmpi.store.run_dir import NOTE_DIVERGED, NOTE_FAILED, RunDir

# A client that diverges at a learning rate usually trains at a tenth of it; the default is safe where that is far off.
_LOWER = 0.1


def launch_command(config: Config, num_ranks: int) -> str:
    """Returns the command of a run, in any folder, without the words that say which run it is. It names the user's own
    code again, because a run directory alone makes fedmpi import nothing."""
    words = [f"{dotted(key)}={name}" for key, name in named_in_full(config.to_dict()).items()]
    launcher = f"mpirun -n {num_ranks} " if num_ranks > 1 else ""
    command = launcher + shlex.join(["python", "-m", "fedmpi.main", *words])
    # A module of the user's, or data under a relative path, may be found only from the folder of this start.
    places = [getattr(config.data, key, "/") for key in DATA_PLACES] + [config.clients.availability or "/"]
    if words or not all(os.path.isabs(user_path(place)) for place in places):
        with contextlib.suppress(OSError):  # the folder was removed: nothing will be found there
            return f"cd {shlex.quote(os.getcwd())} && {command}"
    return command


class Advice:
    """Says how to continue a run, once `run_is_in` has named its directory."""

    launch = ""
    """The command without the words that say which run it is."""
    run_dir: RunDir | None = None

    def __init__(self, config: Config) -> None:
        self.config = config

    def run_is_in(self, run_dir: RunDir, num_ranks: int) -> None:
        """Notes the run directory of a job that was started with so many ranks."""
        self.run_dir = run_dir
        self.launch = launch_command(self.config, num_ranks)

    def resume_command(self, lr: float | None = None, *, in_new_run: bool = False) -> str:
        """Returns what to type, in any folder, to continue the run, or a new one from its newest state, with this
        learning rate if one is given. `library.api.CallAdvice` returns a call instead."""
        assert self.run_dir is not None
        path = str(self.run_dir.path)
        words = ["--init-from", path] if in_new_run else ["--run-dir", path, "--resume"]
        if lr is not None:
            words.append(f"train.lr={lr:.3g}")
        return f"{self.launch} {shlex.join(words)}"

    def to_resume(self, when: str = "to continue") -> str:
        """Returns `to continue: COMMAND`, in lines."""
        return folded(f"{when}: {self.resume_command()}")

    def what_is_saved(self) -> str:
        """Returns how many rounds, in words."""
        return self.run_dir.what_is_saved() if self.run_dir else "no round is saved"

    def how_to_continue(self, error: BaseException | None = None) -> str:
        """Returns the last lines of a message about the end of a run, which `error` has ended, or a signal (None)."""
        return folded(self._next_step(error))

    def _next_step(self, error: BaseException | None) -> str:
        if self.run_dir is None:
            return self.what_is_saved()
        if not self.run_dir.holds_run():  # it is gone, or has not begun
            return f"nothing is left to continue in {self.run_dir.path}"
        if not isinstance(cause_of(error), DivergenceError):
            return f"to continue: {self.resume_command()}"
        # A resume computes the same bits, so it diverges at the same place, as a new start would.
        if unscaled := next((note for note in self.config.data.info().notes if STANDARDIZE in note), ""):
            return f"a lower learning rate may diverge, too; then begin a new run: {unscaled}"
        is_saved = bool(self.run_dir.checkpoints())
        where = "in a new run from the last state," if is_saved else "from round 1"
        lower = min(self.config.train.lr * _LOWER, Train().lr)
        command = self.resume_command(lower, in_new_run=is_saved)
        return f"the same settings would diverge again; to continue {where} with a lower learning rate: {command}"

    def note_failure(self, error: BaseException | None = None) -> bool:
        """Notes in the run directory, if it still holds a run, that this rank ends the job: why, where, and what to do.
        Returns False if another rank has done so before: only the first one gives advice."""
        if self.run_dir is None or not self.run_dir.holds_run():
            return True
        lines = [NOTE_DIVERGED if isinstance(cause_of(error), DivergenceError) else NOTE_FAILED]
        if error:
            lines += [one_line(message_of(error)), self._next_step(error)]
        try:
            with open(self.run_dir.failure_path, "x", encoding="utf-8", errors="replace") as file:
                file.write("\n".join(lines))
        except FileExistsError:
            return False
        except OSError:
            pass  # a full disk
        return True

    def has_failed(self) -> bool:
        """Returns whether a rank has noted that it ends the job."""
        return self.run_dir is not None and os.path.exists(self.run_dir.failure_path)
