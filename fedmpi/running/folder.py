"""The run directory of a start: which one it is, how rank 0 takes it, and the command that continues its run."""

from __future__ import annotations

import os
import shlex
import time
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path

from fedmpi.config import address
from fedmpi.config.fields import AT_ROUND, DATA_PLACES
from fedmpi.config.load import DEFAULT_NAME, Override, load
from fedmpi.config.schema import Config, Train, named_in_full
from fedmpi.config.yaml_text import dotted
from fedmpi.errors import STANDARDIZE, ConfigError, DivergenceError, RunDirError, cause_of, message_of, one_line
from fedmpi.mpi.communicator import Communicator, together
from fedmpi.report.terminal import folded
from fedmpi.store.files import user_path
from fedmpi.store.lock import RunLock
from fedmpi.store.run_dir import NOTE_DIVERGED, NOTE_FAILED, RunDir

_OPTION = "--init-from"
# A process with a GPU takes a while to end; ranks of a job that has just ended may have to notice first.
_DYING_S = 20.0
_ENDING_S = 5.0
OTHER_ENDS_S = 5.0
"""For the rank that failed first to end the job: mpirun is silent if only one rank ends it."""
# A client that diverges at a learning rate usually trains at a tenth of it; the default is safe where that is far off.
_LOWER = 0.1


@dataclass(frozen=True)
class Origin:
    """The run, and the number of the round, that a new run takes its first state from."""

    run_dir: RunDir
    round: int | None = None
    """None stands for the newest whole checkpoint."""

    @classmethod
    def named(cls, text: str, new_run: str | None = None) -> Origin:
        """Reads `RUN` or `RUN@12`. Raises ConfigError if there is no such run, or if `new_run` lies inside it."""
        match = None if Path(text).is_dir() else AT_ROUND.fullmatch(text)
        folder = Path(match[1] if match else text).resolve()
        origin = cls(RunDir(folder), int(match[2]) if match else None)
        if not origin.run_dir.has_config():
            raise ConfigError(_OPTION, f"{folder} holds no run (no config.yaml); name a run's folder, or FOLDER@ROUND")
        if new_run is not None and Path(new_run).resolve().is_relative_to(folder):
            raise ConfigError(_OPTION, f"--run-dir={new_run} is not outside {folder}, which is only read; take another")
        return origin


def config_of(folder: RunDir, overrides: Sequence[Override] = (), *, trains: bool = False) -> Config:
    """Returns the config of a run, as `config.load` reads it; `trains` as there. Raises ConfigError."""
    return load(str(folder.config_path), overrides, of_run=True, trains=trains)


@dataclass(frozen=True)
class RunRequest:
    """The words of the command beside the config."""

    run_dir: str | None = None
    """None for a fresh folder under `output.dir`."""
    resume: bool = False
    origin: Origin | None = None
    """The saved round of another run that this one takes its first state from."""
    command: Sequence[str] = ()
    quiet: bool = False
    """Whether nothing but warnings is printed."""


def open_run_dir(config: Config, comm: Communicator, request: RunRequest, *, resume: bool) -> RunDir:
    """Opens the run directory, or makes it, on rank 0; all ranks know it."""

    def open_it() -> str:
        if not comm.is_root:
            return ""
        if request.run_dir is not None:
            return str(RunDir.open_for(request.run_dir, resume=resume).path.resolve())
        return str(RunDir.new(config.output.dir, _label(config, request.origin)).path.resolve())

    return RunDir(Path(comm.bcast_object(together(comm, open_it))))


def _label(config: Config, origin: Origin | None) -> str:
    """Names a fresh folder after the run that its first state is of, the config's file, or method, model and data."""
    if origin is not None:
        return f"{origin.run_dir.path.name}-continued"
    named = address.label(config.where)
    if config.where == DEFAULT_NAME:
        named = "-".join(section.name.rpartition(":")[2] for section in (config.method, config.model, config.data))
    return f"{named}-seed{config.seed}"


def claim(stack: ExitStack, folder: RunDir, comm: Communicator, *, resumes: bool) -> RunLock:
    """Locks the run directory until `stack` closes, on rank 0. A run that resumes waits for another one to end. Raises
    `RunDirError`."""
    patience_s = _DYING_S if comm.size < comm.started_size else _ENDING_S
    until_s = time.monotonic() + (patience_s if resumes else 0.0)
    lock = None
    while lock is None:
        try:
            lock = stack.enter_context(RunLock(folder))
        except RunDirError:
            if time.monotonic() >= until_s:
                raise
            with comm.traffic.counted("idle"):
                time.sleep(0.1)
    if not resumes:
        folder.refuse_run()  # another may have come and gone since it was opened
    folder.failure_path.unlink(missing_ok=True)
    return lock


def slurm_job() -> str:
    """Returns the batch job's number (of one task of an array: its own), for the manifest; '' outside Slurm."""
    task = os.environ.get("SLURM_ARRAY_TASK_ID")
    return f"{os.environ.get('SLURM_ARRAY_JOB_ID')}_{task}" if task else os.environ.get("SLURM_JOB_ID", "")


def launch_command(config: Config, num_ranks: int, *, outlives_ranks: bool = False) -> str:
    """Returns the command of a run, in any folder, without the words that say which run it is. It names the user's own
    code again, because a run directory alone makes fedmpi import nothing."""
    words = [f"{dotted(key)}={name}" for key, name in named_in_full(config.to_dict()).items()]
    mpirun = "mpirun --with-ft ulfm" if outlives_ranks else "mpirun"
    launcher = f"{mpirun} -n {num_ranks} " if num_ranks > 1 else ""
    command = launcher + shlex.join(["python", "-m", "fedmpi.main", *words])
    # A module of the user's, or data under a relative path, may be found only from the folder of this start.
    places = [getattr(config.data, key, "/") for key in DATA_PLACES] + [config.clients.availability or "/"]
    if words or not all(os.path.isabs(user_path(place)) for place in places):
        with suppress(OSError):  # the folder was removed: nothing will be found there
            return f"cd {shlex.quote(os.getcwd())} && {command}"
    return command


@dataclass
class Advice:
    """Says how to continue a run, once `run_is_in` has named its directory."""

    config: Config
    launch: str = ""
    """The command without the words that say which run it is."""
    run_dir: RunDir | None = None

    def run_is_in(self, run_dir: RunDir, num_ranks: int, *, outlives_ranks: bool = False) -> None:
        """Notes the run directory of a job that was started with so many ranks."""
        self.run_dir = run_dir
        self.launch = launch_command(self.config, num_ranks, outlives_ranks=outlives_ranks)

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
