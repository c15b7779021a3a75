"""Makes the runs of a study, several at a time, each on a core of its own and nice to other work.

Before a run begins, a note beside its folder says which text the study's file had then (`Note`). A run that is finished
is not made again, and one that was interrupted continues.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import time
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import fedmpi
from fedmpi.config.schema import Config
from fedmpi.errors import RunDirError
from fedmpi.mpi.mpirun import environment
from fedmpi.results.grid_file import Study
from fedmpi.running.made_with import brought, unlike_sources
from fedmpi.store import manifest
from fedmpi.store.files import read_json, write_text, writing
from fedmpi.studies.launch import Begun, Job, end, start
from fedmpi.studies.runs import Run

_PACKAGE = Path(fedmpi.__file__).parent
_LOOK_S = 0.1
_NICE = ("nice", "-n", "10")
_NOTE = ".study.json"


@dataclass(frozen=True)
class Note:
    """What is known of the study's file when a run of it begins."""

    study: str
    """Its digest."""
    commit: str | None
    """The commit of git that has this text; None where there is no git."""
    config: str
    """`config_text` of the run's config."""
    begun: str


def note_of(run: Run) -> Note | None:
    """None for a run that has not begun as one of a study."""
    found = read_json(_path(run))
    try:
        return Note(**found)
    except TypeError:
        return None


def _path(run: Run) -> Path:
    folder = run.folder.path
    return folder.with_name(folder.name + _NOTE)


def noted_in(out: Path) -> Iterator[tuple[str, str]]:
    """(run, digest of the study's file) of every note in a folder of runs."""
    for path in sorted(out.glob(f"*{_NOTE}")) if out.is_dir() else []:
        match read_json(path):
            case {"study": str(digest)}:
                yield path.name.removesuffix(_NOTE), digest


def committed(path: Path) -> str | None:
    """The last commit that changed this file, if the file is as that commit has it."""
    folder, name = path.resolve().parent, path.name
    try:
        if manifest.git(folder, "status", "--porcelain", "--", name):
            return None
        return manifest.git(folder, "log", "-1", "--format=%H", "--", name) or None
    except (OSError, subprocess.SubprocessError):
        return None


def config_text(config: Config) -> str:
    """The hash of all that decides a run's results, and its rounds, which `Config.hash` may leave out."""
    return f"{config.hash()}, {config.rounds} rounds"


def refuse_uncommitted(path: Path) -> None:
    """Raises RunDirError for a file that git does not have as it is; where there is no git, there is nothing to ask."""
    try:
        manifest.git(path.resolve().parent, "rev-parse", "--git-dir")
    except (OSError, subprocess.SubprocessError):
        return
    if committed(path) is None:
        raise RunDirError(
            str(path), "is not committed as it is; commit it, so that all can see it is older than its runs"
        )


def refuse_uncommitted_code(configs: Iterable[Config]) -> None:
    """Raises RunDirError where a module of fedmpi, or one that these configs bring, is not as git has it; where there
    is no git, or git ignores it, as it does a virtual environment, there is nothing to ask.
    """
    entries = [entry for config in configs for entry in brought(config).get(manifest.BROUGHT, {}).values()]
    files = sorted({Path(entry["file"]) for entry in entries if "file" in entry})
    changed = [_PACKAGE] if (manifest.git_commit(_PACKAGE) or "").endswith(manifest.DIRTY) else []
    changed += [path for path in files if _has_changed(path)]
    if changed:
        text = (
            "has changes that are not committed; commit or restore them, so that all can see which code makes the runs"
        )
        raise RunDirError(str(changed[0]), text)


def _has_changed(path: Path) -> bool:
    try:
        return bool(manifest.git(path.parent, "status", "--porcelain", "--", path.name))
    except (OSError, subprocess.SubprocessError):
        return False


def refuse_other_sources(study: Study, found: Iterable[tuple[Job, Mapping[str, Any]]]) -> None:
    """Raises RunDirError where one of these (run, sources that it was begun with, as `manifest.brought` has them) was
    begun with another source of the user's code than there is now; a source without a digest is not known.
    """
    changed = {job.run.folder.path.name: what for job, then in found if (what := unlike_sources(then, job.config))}
    if changed:
        name, what = next(iter(changed.items()))
        text = (
            f"the source of {' and of '.join(what)} has changed since run {name} was begun ({len(changed)} such "
            f"run{'s' * (len(changed) > 1)}); restore it, or give the study another name and run that"
        )
        raise RunDirError(str(study.path), text)


def refuse_other_configs(study: Study, found: Iterable[tuple[str, str, Config]]) -> None:
    """Raises RunDirError where one of these (run, config that it was begun with, config asked for now) differs."""
    other = [name for name, began, asked in found if began != config_text(asked)]
    if other:
        more = f" ({len(other)} such runs)" if len(other) > 1 else ""
        text = (
            f"run {other[0]} was made with another config than the file and the configs it starts from now say{more}; "
            "restore these configs, or give the study another name and run that"
        )
        raise RunDirError(str(study.path), text)


def refuse_changed(study: Study, digests: Iterable[tuple[str, str]]) -> None:
    """Raises RunDirError where one of these (run, digest of the file when it began) is not of this text."""
    changed = {name: digest for name, digest in digests if digest != study.digest}
    if changed:
        name, digest = next(iter(changed.items()))
        text = (
            f"has changed since its runs began: its digest is {study.digest[:12]}, run {name} was begun with "
            f"{digest[:12]} ({len(changed)} such run{'s' * (len(changed) > 1)}); restore the file, or give the changed "
            "one another name and run that"
        )
        raise RunDirError(str(study.path), text)


def make(study: Study, jobs: Sequence[Job], at_once: int) -> Iterator[tuple[Job, str]]:
    """Makes what is left of each run, at most `at_once` at a time; each with how it went, as it ends.

    All runs that are under way end with us; what they have saved stays.
    """
    waiting = deque(job for job in jobs if not job.run.is_finished())
    under_way: list[tuple[Begun, subprocess.Popen[bytes]]] = []
    commit = committed(study.path)
    try:
        while waiting or under_way:
            while waiting and len(under_way) < at_once:
                under_way.append(_begin(study, waiting.popleft(), commit))
            ended = [(begun, code) for begun, process in under_way if (code := process.poll()) is not None]
            under_way = [pair for pair in under_way if pair[0] not in [begun for begun, _ in ended]]
            for begun, code in ended:
                yield begun.job, begun.how(code)
            if not ended:
                time.sleep(_LOOK_S)
    finally:
        for _, process in under_way:
            process.terminate()
        for _, process in under_way:
            end(process)


def _begin(study: Study, job: Job, commit: str | None) -> tuple[Begun, subprocess.Popen[bytes]]:
    if note_of(job.run) is None:
        note = Note(study.digest, commit, config_text(job.config), time.strftime("%Y-%m-%dT%H:%M:%S%z"))
        path = _path(job.run)
        with writing(path):
            path.parent.mkdir(parents=True, exist_ok=True)
        write_text(path, json.dumps(asdict(note)) + "\n")
    begun = Begun.now(job, _NICE if shutil.which(_NICE[0]) else ())
    return begun, start(begun.command, begun.log, environment(1))
