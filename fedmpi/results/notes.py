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
from fedmpi.config.schema import Config
from fedmpi.errors import RunDirError, counted
from fedmpi.results.grid_file import Grid
from fedmpi.results.launch import Job
from fedmpi.running.made_with import brought, unlike_sources
from fedmpi.store import manifest
from fedmpi.store.files import make_folder, read_json, write_text
from fedmpi.store.run_dir import RunDir

_PACKAGE = Path(fedmpi.__file__).parent


@dataclass(frozen=True)
class Note:
    """What is known of the grid file when a run of it begins."""

    study: str
    """SHA-256 of the file's text."""
    commit: str | None
    """The commit of git that has this text; None where there is no git."""
    config: str
    """`config_text` of the run's config."""
    begun: str
    grid: str = ""
    """`Grid.digest`; empty in older notes."""


def note_of(folder: RunDir) -> Note | None:
    """Reads the note of a run; None for a run that has not begun as one of a grid."""
    try:
        return Note(**read_json(_path(folder)))
    except TypeError:
        return None


def write_note(grid: Grid, job: Job) -> None:
    """Writes the note of a run that has none."""
    if note_of(job.folder) is None:
        begun = time.strftime("%Y-%m-%dT%H:%M:%S%z")
        note = Note(grid.text_digest, _commit_of(grid.path), config_text(job.config), begun, grid.digest)
        path = _path(job.folder)
        make_folder(path.parent)
        write_text(path, json.dumps(asdict(note)) + "\n")


def _path(folder: RunDir) -> Path:
    return folder.path.with_name(f"{folder.path.name}.grid.json")


def config_text(config: Config) -> str:
    """Returns the hash of all that decides a run's results, and the rounds, which `Config.hash` may leave out."""
    return f"{config.hash()}, {config.rounds} rounds"


def refuse_uncommitted(path: Path, configs: Iterable[Config]) -> None:
    """Raises RunDirError where the grid file, a module of fedmpi, or one that these configs name, has changes that git
    does not have. Where there is no git, or git ignores a module, as in a virtual environment, nothing is checked.
    """
    advice = "commit or restore it, so that all can see that it is older than its runs"
    if _git(path.resolve().parent, "rev-parse", "--git-dir") is not None and _commit_of(path) is None:
        raise RunDirError(str(path), f"is not committed as it is; {advice}")
    modules = {Path(entry["file"]) for config in configs for entry in _sources(config) if "file" in entry}
    changed = [_PACKAGE] if (manifest.git_commit(_PACKAGE) or "").endswith(manifest.DIRTY) else []
    changed += [path for path in sorted(modules) if _git(path.parent, "status", "--porcelain", "--", path.name)]
    if changed:
        raise RunDirError(str(changed[0]), f"has changes that are not committed; {advice}")


def _sources(config: Config) -> Iterable[Mapping[str, Any]]:
    return brought(config).get(manifest.BROUGHT, {}).values()


def refuse_changed(grid: Grid, digests: Mapping[str, str]) -> None:
    """Raises RunDirError where one of these digests of the file, by run, is another one than now."""
    _refuse(grid, "the file", [name for name, digest in digests.items() if digest and digest != grid.digest])


def refuse_unlike(grid: Grid, began: Iterable[tuple[Job, str, Mapping[str, Any]]]) -> None:
    """Raises RunDirError where a run began with another config (`config_text`), or another source of the user's code
    (`manifest.brought`), than the grid file now names.
    """
    changed: dict[str, list[str]] = {}
    for job, config, code in began:
        if config != config_text(job.config):
            changed.setdefault("its config, or one that it starts from,", []).append(job.folder.path.name)
        for source in unlike_sources(code, job.config):
            changed.setdefault(f"the source of {source}", []).append(job.folder.path.name)
    for what, runs in changed.items():
        _refuse(grid, what, runs)


def _refuse(grid: Grid, what: str, runs: Sequence[str]) -> None:
    """Raises RunDirError where there is such a run."""
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
