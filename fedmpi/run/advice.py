"""What a run that ends before its last round tells its user to do next: one command, which works as it is printed."""

from __future__ import annotations

import contextlib
import shlex
from collections.abc import Mapping
from pathlib import Path

from fedmpi import registry
from fedmpi.config.schema import Config, Train
from fedmpi.errors import DivergenceError, RoundError, UserError
from fedmpi.store.run_dir import RunDir
from fedmpi.store.whereabouts import GoneError

# A client that diverges at a learning rate usually trains at a tenth of it; the default is safe where that is far off.
_LOWER = 0.1
NOTHING_SAVED = "nothing was saved yet"


def command(num_ranks: int, *words: str) -> str:
    """The main command with these words, for a shell."""
    launcher = f"mpirun -n {num_ranks} " if num_ranks > 1 else ""
    return f"{launcher}python -m fedmpi.main {shlex.join(words)}"


def what_is_saved(where: Mapping[str, str]) -> str:
    """How many rounds, in words."""
    last = _last_saved(where)
    return (
        f"{'rounds 1 to ' if last > 1 else 'round '}{last} {'are' if last > 1 else 'is'} saved"
        if last
        else NOTHING_SAVED
    )


def how_to_go_on(where: Mapping[str, str], config: Config, error: BaseException | None = None) -> str:
    """The last lines of a message about the end of a run, which `error` has ended, or a signal (None).

    `where` has what `experiment.run` has put there: `resume`, `run_dir` and `ranks`, or nothing if there is no run
    directory yet.
    """
    if not where:
        return NOTHING_SAVED
    cause = error.__cause__ or error if isinstance(error, RoundError) else error
    if isinstance(cause, GoneError) and cause.moved_to:
        again = command(int(where["ranks"]), "--run-dir", cause.moved_to, "--resume", *registry.words_in_full(config))
        return f"to go on: {again}"
    if not RunDir(Path(where["run_dir"])).holds_run():  # it is gone, or a branch has not begun
        return f"nothing is left to go on with in {where['run_dir']}"
    if isinstance(cause, DivergenceError):
        return _after_divergence(where, config)
    return f"{_before_a_resume(cause)}to go on: {where['resume']}"


def _after_divergence(where: Mapping[str, str], config: Config) -> str:
    """A resume computes the same bits, so it diverges at the same place; the same settings from round 1 do, too."""
    last, lower = _last_saved(where), f"train.lr={min(config.train.lr * _LOWER, Train().lr):.3g}"
    ranks, run_dir = int(where["ranks"]), where["run_dir"]
    if not last:
        again = command(ranks, "--run-dir", run_dir, "--resume", lower, *registry.words_in_full(config))
        return (
            f"  {NOTHING_SAVED}, and the same settings diverge again\nto go on from the beginning with others: {again}"
        )
    again = command(ranks, "--resume-from", run_dir, lower, *registry.words_in_full(config))
    saved = f"  {what_is_saved(where)}; --resume alone would diverge again, because it computes the same bits"
    return f"{saved}\nto go on after round {last} with other settings, in a new run directory: {again}"


def _before_a_resume(cause: BaseException | None) -> str:
    """What to do first where a plain resume may end in the same way; empty for what the surroundings have caused."""
    if isinstance(cause, MemoryError) or type(cause).__name__ == "OutOfMemoryError":  # torch's has no common base
        return (
            "  a resume needs as much memory again: start fewer ranks on a machine, or give the job more memory first\n"
        )
    if cause is None or isinstance(cause, (UserError, OSError)) or not isinstance(cause, Exception):
        return ""
    return "  a resume computes the same bits: change what caused this first, if it lies in the code, config or data\n"


def _last_saved(where: Mapping[str, str]) -> int:
    return max((number for number, _ in RunDir(Path(where["run_dir"])).checkpoints()), default=0) if where else 0


# The first rank that fails leaves a note. The others then give no advice of their own: neither a second rank that fails,
# nor rank 0 when the launcher ends it with a signal.


def note_failure(where: Mapping[str, str]) -> bool:
    """Notes in the run directory that this rank ends the job; False if another rank has done so before.

    Another directory that has taken the run's name gets no note.
    """
    folder = RunDir(Path(where["run_dir"])) if where else None
    if folder is not None and folder.holds_run():
        with contextlib.suppress(OSError):
            try:
                folder.failure_path.touch(exist_ok=False)
            except FileExistsError:
                return False
    return True


def has_failed(where: Mapping[str, str]) -> bool:
    """Whether a rank has noted that it ends the job."""
    with contextlib.suppress(OSError):
        return bool(where) and RunDir(Path(where["run_dir"])).failure_path.exists()
    return False
