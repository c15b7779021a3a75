"""Which command ran where and with what: `manifest.json`, one entry for each start of the run."""

import importlib.metadata
import json
import platform
import shlex
import socket
import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import fedmpi
from fedmpi.errors import one_line
from fedmpi.store.files import json_safe, read_json, write_text
from fedmpi.store.run_dir import RunDir

_PACKAGES = ("torch", "torchvision", "numpy", "h5py", "mpi4py")
_GIT_TIMEOUT_S = 5.0
DIRTY = "-dirty"
"""The end of the commit of a source that has changed since."""


def versions() -> dict[str, str]:
    """Returns versions of fedmpi, of Python and of the packages that results or files depend on."""
    found = {"fedmpi": fedmpi.__version__, "python": platform.python_version()}
    for package in _PACKAGES:
        with suppress(importlib.metadata.PackageNotFoundError):
            found[package] = importlib.metadata.version(package)
    return found


def add_start(run_dir: RunDir, **known: Any) -> None:
    """Appends a start: when, where and of which source, and what the caller knows. Raises RunDirError."""
    entry = {
        "started": _now(),
        "host": socket.gethostname(),
        "platform": platform.platform(),
        "versions": versions(),
        "git": git_commit(Path(fedmpi.__file__).parent),
        **known,
    }
    _write(run_dir, [*read_starts(run_dir), entry])


def add_stop(run_dir: RunDir, round_number: int, why: str) -> None:
    """Notes with the last start that it stopped after this round, to be continued. Raises RunDirError."""
    _note(run_dir, "stopped", {"time": _now(), "round": round_number, "why": why})


def add_losses(run_dir: RunDir, losses: Sequence[Mapping[str, Any]]) -> None:
    """Notes with the last start which ranks it lost: rank, host, round, recovery_s. Raises RunDirError."""
    known = newest(read_starts(run_dir)[-1:], "losses", [])
    _note(run_dir, "losses", [*known, *losses])


def _note(run_dir: RunDir, key: str, value: Any) -> None:
    """Adds an entry to the last start; does nothing where the manifest has none."""
    if starts := read_starts(run_dir):
        _write(run_dir, [*starts[:-1], {**starts[-1], key: value}])


def _write(run_dir: RunDir, starts: Sequence[Mapping[str, Any]]) -> None:
    write_text(run_dir.manifest_path, json.dumps(json_safe({"starts": starts}), indent=2) + "\n")


def _now() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S%z")


def read_starts(run_dir: RunDir) -> list[dict[str, Any]]:
    """Returns the starts so far; [] if the file is missing or is no manifest. Raises RunDirError."""
    match read_json(run_dir.manifest_path):
        case {"starts": [*starts]} if all(isinstance(start, dict) for start in starts):
            return starts
    return []


def with_rounds(starts: Sequence[Mapping[str, Any]], done: int) -> list[Mapping[str, Any]]:
    """Returns the starts that some of the `done` rounds come from; later starts have made the others' rounds again."""
    found: list[Mapping[str, Any]] = []
    for start in reversed(starts):
        after = start.get("resumed_round") or 0
        if after < done:
            found.insert(0, start)
            done = after
    return found


def user_code(run_dir: RunDir) -> dict[str, dict[str, Any]]:
    """Returns the entry of each section that was not built in at the run's last start (`made_with.user_code`)."""
    return newest(read_starts(run_dir), "brought", {})


def resume_command(run_dir: RunDir) -> str:
    """Returns the command that continues the run, launched as its last start was; on one rank if that is unknown."""
    launch = one_line(str(newest(read_starts(run_dir), "launch", "python -m fedmpi.main")))
    return f"{launch} --run-dir {shlex.quote(str(run_dir.path.absolute()))} --resume"


def newest(starts: Sequence[Mapping[str, Any]], key: str, otherwise: Any) -> Any:
    """Returns the last entry that a start has under this key."""
    return next((start[key] for start in reversed(starts) if start.get(key)), otherwise)


def git_commit(folder: Path) -> str | None:
    """Returns the commit of the source in `folder`, with `-dirty` if a module has changed; None without an answer."""
    try:
        git(folder, "ls-files", "--error-unmatch", "__init__.py")  # fails in a repository of something else
        commit = git(folder, "rev-parse", "--verify", "HEAD")
        changed = git(folder, "status", "--porcelain", "--untracked-files=no", "--", "*.py")
        return f"{commit}{DIRTY}" if changed else commit
    except (OSError, subprocess.SubprocessError):
        return None


def git(folder: Path, *arguments: str) -> str:
    """Returns the output of git in `folder`, where it writes nothing and starts no monitor. Raises OSError or
    SubprocessError.
    """
    command = ["git", "-C", str(folder), "--no-optional-locks", "-c", "core.fsmonitor=false", *arguments]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=_GIT_TIMEOUT_S, check=True, stdin=subprocess.DEVNULL
    )
    return done.stdout.strip()
