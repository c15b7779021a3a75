"""What ran, where and by which command: `manifest.json`, one entry for each start of the run."""

from __future__ import annotations

import importlib.metadata
import json
import platform
import socket
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import fedmpi
from fedmpi.store.files import json_safe, read_json, write_text
from fedmpi.store.run_dir import RunDir

_PACKAGES = ("torch", "torchvision", "numpy", "h5py", "mpi4py")
_GIT_TIMEOUT_S = 5.0
SIZES = "sizes"
"""The key for what each tier's net costs: the rows of `report/summary.json` without results."""
_SIZES = ("params", "macs", "down_bytes", "up_bytes")
RESUME = "resume"
"""The key for what a command names that continues the run: `ranks`, `folder`, `words`, `run_dir` (`report.again`)."""
DIRTY = "-dirty"
"""What ends the commit of a source that has changed since."""
INIT_FROM = "init_from"
"""The key, in the first start, of the `run` and `round` whose state a run begins with, and the `config` it changes."""
BROUGHT = "brought"
"""The key for what a start uses that is not built in."""


def versions() -> dict[str, str]:
    """Versions of fedmpi, of Python and of the packages that results or files depend on; absent ones left out."""
    found = {"fedmpi": fedmpi.__version__, "python": platform.python_version()}
    for package in _PACKAGES:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def start_entry(
    ranks: Sequence[Mapping[str, Any]], command: Sequence[str], resumed_round: int | None, **more: Any
) -> dict[str, Any]:
    """One start of a run.

    `ranks` has one mapping for each rank (host, device, threads, ...), `resumed_round` is the
    round of the checkpoint that this start continues from, None for a fresh one; `more` is what the
    caller knows besides (the MPI library's version, the batch job).
    """
    return {
        "started": _now(),
        "command": list(command),
        "resumed_round": resumed_round,
        "host": socket.gethostname(),
        "platform": platform.platform(),
        "versions": versions(),
        "git": git_commit(Path(fedmpi.__file__).parent),
        "ranks": [dict(rank) for rank in ranks],
        **more,
    }


def add_start(run_dir: RunDir, entry: Mapping[str, Any]) -> None:
    """Append `entry` to the manifest's `starts`. Raises RunDirError if the file cannot be written."""
    _write(run_dir, [*read_starts(run_dir), entry])


def add_stop(run_dir: RunDir, round_number: int, why: str) -> None:
    """Note with the last start that it stopped after this round, to be continued. Raises RunDirError."""
    _note(run_dir, "stopped", {"time": _now(), "round": round_number, "why": why})


def add_end(run_dir: RunDir, round_number: int, seconds: Mapping[str, float]) -> None:
    """Note with the last start after which round it ended, and what it spent since that round's record (the last save),
    in seconds by stage, the mean over the ranks. Raises RunDirError.
    """
    _note(run_dir, "ended", {"time": _now(), "round": round_number, "seconds": dict(seconds)})


def add_losses(run_dir: RunDir, losses: Sequence[Mapping[str, Any]]) -> None:
    """Note with the last start which ranks it lost: rank, host, round, recovery_s; each once. Raises RunDirError."""
    starts = read_starts(run_dir)
    noted = starts[-1].get("losses") if starts else None
    known = noted if isinstance(noted, list) else []
    _note(run_dir, "losses", [*known, *(loss for loss in losses if loss not in known)])


def _note(run_dir: RunDir, key: str, value: Any) -> None:
    """Adds an entry to the last start; does nothing where the manifest has none."""
    if starts := read_starts(run_dir):
        _write(run_dir, [*starts[:-1], {**starts[-1], key: value}])


def _write(run_dir: RunDir, starts: Sequence[Mapping[str, Any]]) -> None:
    write_text(run_dir.manifest_path, json.dumps(json_safe({"starts": starts}), indent=2) + "\n")


def seconds_after_records(starts: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """The sum by stage of what `add_end` has noted: seconds that no record has."""
    total: dict[str, float] = {}
    for start in starts:
        ended = start.get("ended")
        seconds = ended.get("seconds") if isinstance(ended, Mapping) else None
        for stage, value in seconds.items() if isinstance(seconds, Mapping) else ():
            if isinstance(value, (int, float)):
                total[stage] = total.get(stage, 0.0) + value
    return total


def read_starts(run_dir: RunDir) -> list[dict[str, Any]]:
    """The starts so far; none if the file is missing or is no manifest, and without entries that are none.

    Raises RunDirError if it cannot be read.
    """
    found = read_json(run_dir.manifest_path)
    try:
        starts = json_safe(found.get("starts")) if isinstance(found, dict) else None
    except RecursionError:
        return []
    return [entry for entry in starts if isinstance(entry, dict)] if isinstance(starts, list) else []


def with_rounds(starts: Sequence[Mapping[str, Any]], done: int) -> list[Mapping[str, Any]]:
    """The starts that some of the `done` rounds come from; of others, later starts have made all rounds again."""
    found: list[Mapping[str, Any]] = []
    for start in reversed(starts):
        after = start.get("resumed_round")
        after = after if isinstance(after, int) else 0
        if after < done:
            found.insert(0, start)
            done = after
    return found


def brought(run_dir: RunDir) -> dict[str, dict[str, Any]]:
    """What the run's last start had that is not built in: an entry for each section (`made_with.brought`)."""
    starts = reversed(read_starts(run_dir))
    found: dict[str, Any] = next((start[BROUGHT] for start in starts if isinstance(start.get(BROUGHT), dict)), {})
    return {section: entry for section, entry in found.items() if isinstance(entry, dict)}


def sizes(starts: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """A row for each tier by the last start that has some: `name`, and `params`, `macs`, `down_bytes` and `up_bytes`,
    None where unknown. Empty where no start has any, as those of older versions.
    """
    found: list[Any] = next((start[SIZES] for start in reversed(starts) if isinstance(start.get(SIZES), list)), [])
    return [
        {"name": row["name"], **{key: row[key] if type(row.get(key)) is int else None for key in _SIZES}}
        for row in found
        if isinstance(row, dict) and isinstance(row.get("name"), str)
    ]


def _now() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S%z")


def git_commit(folder: Path) -> str | None:
    """The commit that the source in `folder` is at, with `-dirty` if a module of it has changed; None where git has no
    answer.
    """
    try:
        if not git(folder, "ls-files", "--error-unmatch", "__init__.py"):
            return None
        commit = git(folder, "rev-parse", "--verify", "HEAD")
        changed = git(folder, "status", "--porcelain", "--untracked-files=no", "--", "*.py")
        return commit + DIRTY * bool(changed)
    except (OSError, subprocess.SubprocessError):
        return None


def git(folder: Path, *arguments: str) -> str:
    """What git answers in `folder`. Raises OSError or SubprocessError.

    Writes nothing into the checkout and starts no monitor there. (`git describe --dirty` takes the lock of the index
    even without optional locks.)
    """
    command = ["git", "-C", str(folder), "--no-optional-locks", "-c", "core.fsmonitor=false", *arguments]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=_GIT_TIMEOUT_S, check=True, stdin=subprocess.DEVNULL
    )
    return done.stdout.strip()
