"""Knows every path of a run; `README.md` says what is there."""

from __future__ import annotations

import contextlib
import itertools
import os
import re
import tempfile
import time
from collections.abc import Iterator
from difflib import get_close_matches
from pathlib import Path

from fedmpi.errors import RunDirError
from fedmpi.store.files import make_folder, remove, user_path, writing

CLIENTS_PER_FOLDER = 1000  # keeps every folder small: shared file systems are slow in large ones
_CHECKPOINT = re.compile(r"round-(\d{6}|[1-9]\d{6,17})\.h5")
_MEMORY = re.compile(r"(\d{1,18})-([0-9a-f]{32})\.h5")
# The config of a job may be written while it starts, so its temporary files stay.
_LEFT_BEHIND = re.compile(r"\.(?!submitted).+\.[0-9a-f]{16}\.tmp")
NOTE_DIVERGED = "diverged"
NOTE_FAILED = "failed"


class RunDir:
    """The paths of a run. Making one does no I/O, so every rank can have it; `new` and `open_for` touch the disk."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.config_path = path / "config.yaml"
        self.manifest_path = path / "manifest.json"
        self.partition_path = path / "partition.h5"
        self.records_path = path / "rounds.jsonl"
        self.lock_path = path / ".lock"
        self.failure_path = path / ".failed"
        """The note of a rank that ends the job: a word (`NOTE_DIVERGED`, `NOTE_FAILED`), a line with the failure and
        its place, and one with what to do. The next start deletes it.
        """
        self.checkpoints_dir = path / "checkpoints"
        self.memory_dir = path / "memory"
        self.tensorboard_dir = path / "tensorboard"
        self.report_dir = path / "report"
        self.page_path = self.report_dir / "report.html"
        self.submitted_config_path = path / "submitted.yaml"
        """The config that a grid begins the run with, here or in a batch job."""

    @classmethod
    def new(cls, parent: str | os.PathLike[str], label: str) -> RunDir:
        """Makes a fresh `<parent>/<label>-<timestamp>`, with -2, -3, ... where that exists. Raises RunDirError."""
        name = re.sub(r"[^A-Za-z0-9._-]+", "_", label).strip("._") or "run"
        base = Path(user_path(parent)) / f"{name}-{time.strftime('%Y%m%d-%H%M%S')}"
        path = base
        with writing(base):
            base.parent.mkdir(parents=True, exist_ok=True)
            for number in itertools.count(2):
                try:
                    path.mkdir()  # atomic: of two runs that start in the same second, one gets the next name
                    break
                except FileExistsError:
                    path = base.with_name(f"{base.name}-{number}")
        run = cls(path)
        make_folder(run.checkpoints_dir)
        return run

    @classmethod
    def open_for(cls, path: str | os.PathLike[str], *, resume: bool) -> RunDir:
        """Opens the run directory at `path`; makes it if it is absent. Raises RunDirError if it is no directory, not
        writable, or holds a run that `resume` did not ask for.
        """
        run = cls(Path(path))
        with writing(run.path):  # of a name too long the system does not even say whether it is there
            if run.path.exists() and not run.path.is_dir():
                raise RunDirError(str(path), "is not a directory; --run-dir wants a folder for the run")
            if not resume:
                run.refuse_run()
            run.checkpoints_dir.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=run.path):
                pass
        return run

    @classmethod
    def of_run(cls, path: str | os.PathLike[str]) -> RunDir:
        """Opens the directory of a run that has begun. Raises RunDirError."""
        run = cls(Path(path))
        if not run.has_config():
            raise RunDirError(str(path), f"holds no run (no config.yaml); name a run's folder{suggestion(run.path)}")
        return run

    def refuse_run(self) -> None:
        """Raises RunDirError if a run has begun here."""
        if self.holds_run():
            advice = "--resume continues it, another --run-dir starts anew"
            raise RunDirError(str(self.path), f"already holds a run: {advice}")

    def holds_run(self) -> bool:
        """Returns whether a run has begun here."""
        return any(map(os.path.exists, (self.config_path, self.records_path))) or bool(self.checkpoints())

    def has_config(self) -> bool:
        """Returns whether this folder has a run's config that the user can see; False for a name too long."""
        return os.path.isfile(self.config_path)

    def checkpoint_path(self, round_number: int) -> Path:
        return self.checkpoints_dir / f"round-{round_number:06d}.h5"

    def checkpoints(self) -> list[tuple[int, Path]]:
        """Returns (round, path) of every file named exactly as a checkpoint is, newest first."""
        names = (_CHECKPOINT.fullmatch(path.name) for path in self.checkpoints_dir.glob("round-*.h5"))
        rounds = sorted((int(name[1]) for name in names if name), reverse=True)
        return [(number, self.checkpoint_path(number)) for number in rounds]

    def last_saved(self) -> int:
        """Returns the round of the newest checkpoint, after which a resume continues; 0 for none."""
        return max((number for number, _ in self.checkpoints()), default=0)

    def what_is_saved(self) -> str:
        """Returns how many rounds, in words."""
        last = self.last_saved()
        if last > 1:
            return f"rounds 1 to {last} are saved"
        return "round 1 is saved" if last else "no round is saved"

    def memory_path(self, client: int, round_number: int, digest: str) -> Path:
        return self.memory_dir / str(client // CLIENTS_PER_FOLDER) / str(client) / f"{round_number}-{digest}.h5"

    def memories(self) -> Iterator[tuple[int, int, str]]:
        """Yields (client, round, digest) of every version of a client's memory that is on disk."""
        for path in self.memory_dir.glob("*/*/*.h5"):
            name = _MEMORY.fullmatch(path.name)
            if name and path.parent.name.isdecimal():
                yield int(path.parent.name), int(name[1]), name[2]

    def make(self, folder: Path) -> None:
        """Makes `folder` inside the run directory, which must still be there. Raises RunDirError."""
        if not self.path.is_dir():
            raise RunDirError(str(self.path), "the run directory is gone")
        make_folder(folder)

    def clear_temporaries(self) -> None:
        """Deletes what killed writers of the run have left half-written; only for the holder of the lock."""
        for path in self.path.rglob(".*.tmp"):
            if _LEFT_BEHIND.fullmatch(path.name):
                remove(path)


def suggestion(path: Path) -> str:
    """Returns `; did you mean runs/a?` for a path that is no run: the run that it is in, or one of a similar name; or
    `; runs in it: a, b`. Returns '' where there is no run.
    """
    near = [above for above in path.parents[:2] if RunDir(above).has_config()]
    with contextlib.suppress(OSError):
        if inner := _runs_in(path):
            return f"; runs in it: {', '.join(inner[:5])}{', ...' if len(inner) > 5 else ''}"
        near += [path.parent / name for name in get_close_matches(path.name, _runs_in(path.parent), n=1)]
    return f"; did you mean {near[0]}?" if near else ""


def _runs_in(folder: Path) -> list[str]:
    return sorted(path.parent.name for path in folder.glob("*/config.yaml"))


def runs_below(folder: Path) -> Iterator[RunDir]:
    """Yields all runs in a folder, however deep; the folder itself may be one."""
    for path, folders, _ in os.walk(folder):
        folders.sort()
        run = RunDir(Path(path))
        if run.holds_run():
            folders.clear()
            yield run
