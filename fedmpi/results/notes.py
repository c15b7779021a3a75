"""Notes beside the runs of a grid what was asked when each began, and refuses a grid that has changed since.

A grid with questions is fixed before its runs: its file and all code must be committed, so that everybody can see that
they are older than the runs.
"""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import fedmpi
from fedmpi.config.schema import Config, Stop
from fedmpi.errors import RunDirError, counted
from fedmpi.results.grid_file import Grid
from fedmpi.results.launch import Job
from fedmpi.running.made_with import user_code
from fedmpi.store import manifest
from fedmpi.store.files import make_folder, read_json, write_text

_PACKAGE = Path(fedmpi.__file__).parent
_ENDING = ".grid.json"


@dataclass(frozen=True)
class Note:
    """What is known of the grid file when a run of it begins."""

    study: str
    """SHA-256 of the file's text."""
    commit: str | None
    """The commit of git that has this text; None where there is no git."""
    config: str
    """`fingerprint` of the run's config."""
    begun: str
    grid: str
    """`Grid.digest`."""


def read_notes(folder: Path) -> dict[str, Note]:
    """Reads the notes in a folder of runs, by the name of the run's folder."""
    found = {path.name.removesuffix(_ENDING): read_json(path) for path in sorted(folder.glob(f"*{_ENDING}"))}
    return {run: Note(**note) for run, note in found.items() if note}


def write_note(grid: Grid, job: Job) -> None:
    """Writes the note of a run that has not begun, or has none."""
    path = job.folder.path.with_name(f"{job.folder.path.name}{_ENDING}")
    if not (path.exists() and job.folder.has_config()):
        begun = time.strftime("%Y-%m-%dT%H:%M:%S%z")
        note = Note(grid.text_digest, _commit_of(grid.path), fingerprint(job.config), begun, grid.digest)
        make_folder(path.parent)
        write_text(path, json.dumps(asdict(note)) + "\n")


def fingerprint(config: Config) -> str:
    """Returns the hash of all that decides a run's results, the rounds and `stop`, which `Config.hash` may leave out,
    and the digest of each module that the config names.
    """
    code = "".join(f", code {entry['digest']}" for entry in _sources(config))
    stop = f", stop {config.stop.accuracy} {config.stop.patience}" if config.stop != Stop() else ""
    return f"{config.hash()}, {config.rounds} rounds{stop}{code}"


def _sources(config: Config) -> list[Mapping[str, Any]]:
    """Returns file and digest of each module that the config names, as the process of a run would load it now."""
    return [
        entry for entry in user_code(config, as_loaded=False).get(manifest.USER_CODE, {}).values() if "file" in entry
    ]


def refuse_uncommitted(path: Path, configs: Iterable[Config]) -> None:
    """Raises RunDirError where the grid file, a module of fedmpi, or one that these configs name, has changes that git
    does not have. Where there is no git, or git ignores a module, as in a virtual environment, nothing is checked.
    """
    modules = {Path(entry["file"]) for config in configs for entry in _sources(config)}
    changed = [path] if _git(path.resolve().parent, "rev-parse", "--git-dir") and _commit_of(path) is None else []
    changed += [_PACKAGE] if (manifest.git_commit(_PACKAGE) or "").endswith(manifest.DIRTY) else []
    changed += [path for path in sorted(modules) if _git(path.parent, "status", "--porcelain", "--", path.name)]
    if changed:
        advice = "commit or restore it, so that all can see that it is older than its runs"
        raise RunDirError(str(changed[0]), f"is not committed as it is; {advice}")


def refuse_changed(grid: Grid, runs: Sequence[str], what: str = "the file") -> None:
    """Raises RunDirError where there are runs that began when `what` was another."""
    if runs:
        text = f"{what} has changed since run {runs[0]} was begun ({counted(len(runs), 'such run')})"
        raise RunDirError(str(grid.path), f"{text}; restore it, or name the new grid anew")


def _commit_of(path: Path) -> str | None:
    """Returns the last commit that changed this file, if the file is as that commit has it."""
    folder = path.resolve().parent
    if _git(folder, "status", "--porcelain", "--", path.name) != "":
        return None
    return _git(folder, "log", "-1", "--format=%H", "--", path.name) or None


def _git(folder: Path, *arguments: str) -> str | None:
    """Returns what git prints; None where there is no git or no repository."""
    try:
        return manifest.git(folder, *arguments)
    except (OSError, subprocess.SubprocessError):
        return None
