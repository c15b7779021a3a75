"""Where a run begins: at round 1, or after its newest checkpoint."""

from __future__ import annotations

import contextlib
import json
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from fedmpi.config import yaml_text
from fedmpi.config.fields import DATA_PLACES
from fedmpi.config.schema import Config
from fedmpi.data import partition
from fedmpi.data.dataset import place_of, short_digest
from fedmpi.errors import RunDirError, RunStateError
from fedmpi.mpi.communicator import Communicator, together
from fedmpi.report.best import Best
from fedmpi.report.terminal import wrapped
from fedmpi.rounds.state import ServerState, Setup
from fedmpi.running import made_with
from fedmpi.running.start import warn
from fedmpi.store import checkpoint, manifest
from fedmpi.store.files import read_whole
from fedmpi.store.run_dir import RunDir


def with_server_device(config: Config, comm: Communicator, folder: RunDir) -> tuple[Config, str]:
    """Returns the config in the words of the run in `folder`, and the kind of device that its server has computed on so
    far; of a new run the config as it is, and ''. Raises `StartupError` on all ranks where another is asked for.
    """

    def find() -> tuple[str, str]:
        asked = config.mpi.server_device
        if not comm.is_root or not (found := _noted(folder.checkpoints())):
            return asked, ""
        number, said, had = found
        if asked not in ("auto", had):
            kind = "a GPU" if had == "cuda" else "the CPU"
            raise RunStateError(
                str(folder.path),
                f"the run has computed the server's part on {kind}, by its checkpoint of round {number}, "
                f"and you ask mpi.server_device={asked}; {had} or auto continues it; "
                f"--init-from={shlex.quote(str(folder.path))} begins a new run from that state, with {asked}",
            )
        return said, had

    said, had = json.loads(comm.allgather_text(json.dumps(together(comm, find)))[0])
    mpi = config.mpi.model_copy(update={"server_device": said})
    return config.model_copy(update={"mpi": mpi}), had


def _noted(checkpoints: Sequence[tuple[int, Path]]) -> tuple[int, str, str] | None:
    """Of the newest checkpoint that can be read: its round, what its config says of the server's device, and the kind
    that was meant, which in older runs was the CPU unless it is noted. None if there is none.
    """
    for number, path in checkpoints:
        with contextlib.suppress(RunDirError):
            snapshot = checkpoint.load(path)
            match snapshot.config:
                case {"mpi": {"server_device": "auto" | "cpu" | "cuda" as said}}:
                    had = snapshot.versions.get("server_device", "cuda" if said == "cuda" else "cpu")
                    return number, said, "cuda" if had == "cuda" else "cpu"
    return None


def restore(setup: Setup, run_dir: RunDir, *, resume: bool) -> checkpoint.Snapshot | None:
    """The newest whole checkpoint (rank 0 only), or None to begin at round 1. Refuses another config and
    other data."""

    def find() -> checkpoint.Snapshot | None:
        if not (resume and setup.comm.is_root):
            return None
        snapshot = checkpoint.load_newest_intact(run_dir, warn, problem_of=lambda found: _problem(setup, found))
        if snapshot is None:
            print(*wrapped(_begins(run_dir, setup.config)), sep="\n", flush=True)
            return None
        differences = setup.config.diff(snapshot.config)
        if differences:
            raise RunStateError(
                str(run_dir.path),
                f"was run with another config, by its checkpoint of round {snapshot.round}: {'; '.join(differences)}; "
                f"--resume needs the same; --init-from={shlex.quote(str(run_dir.path))} begins a new run from that "
                "state with these settings",
            )
        refuse_fewer(setup.config, run_dir, snapshot.round)
        check_data(setup, run_dir, snapshot)
        if other_bits := made_with.changes(snapshot.versions, setup.computed_with):
            warn(other_bits)
        if changed := made_with.changed_sources(run_dir, setup.config):
            warn(changed)
        return snapshot

    return together(setup.comm, find)


def _begins(run_dir: RunDir, config: Config) -> str:
    """Why a run that may continue begins at round 1."""
    begins = "no round is saved yet, so it begins again" if manifest.read_starts(run_dir) else "a new run begins"
    return f"nothing to continue in {run_dir.path}: {begins} at round 1, with {config.where}"


def refuse_fewer(config: Config, run_dir: RunDir, done: int) -> None:
    """Raises RunDirError where fewer rounds are asked for than are done, of a run that has rounds to go. What is done
    cannot be taken back, and whether the rest is wanted is not ours to decide. A finished run has nothing left to do.
    """
    with contextlib.suppress(yaml_text.YamlError):
        match yaml_text.parse((read_whole(run_dir.config_path) or b"").decode(errors="replace")).value:
            case {"rounds": int(wanted)} if config.rounds < done < wanted:
                problem = f"is {config.rounds}, but of {wanted} rounds {done} are done already"
                raise RunStateError(
                    "rounds", f"{problem}; rounds={done} ends the run here, without it the run continues"
                )


def _problem(setup: Setup, snapshot: checkpoint.Snapshot) -> str:
    """Why this run cannot continue from a checkpoint that is whole; empty also for another config, which is refused."""
    try:
        differences = setup.config.diff(snapshot.config)
    except RecursionError:
        return "holds a config that is none"
    if differences:
        return "" if snapshot.config.keys() & {"seed", "method"} else "holds a config that is none"
    if (snapshot.seed, snapshot.config_hash) != (setup.config.seed, setup.config.hash()):
        return "holds a seed or a hash that is not its config's"
    if unknown := snapshot.progress.keys() - asdict(Best()).keys():
        return f"holds progress of another kind: {min(unknown)[:40]!r}"
    return checkpoint.unfit(snapshot.server, setup.method.state_specs())


def check_data(setup: Setup, run_dir: RunDir, snapshot: checkpoint.Snapshot) -> None:
    """Raises `RunDirError` if a run was computed with other data, or with another partition of them, than `setup` has.
    Rank 0 warns if the run does not say which data it had.
    """
    _compare_data(setup, run_dir, snapshot.data_digest, snapshot.config)
    saved_digest = ""
    if run_dir.partition_path.exists():
        saved, saved_digest = partition.saved(run_dir.partition_path)
        _compare_data(setup, run_dir, saved_digest, snapshot.config)
        if not all(np.array_equal(getattr(saved, name), getattr(setup.partition, name)) for name in vars(saved)):
            raise RunDirError(
                str(run_dir.partition_path),
                "is not the partition that this config gives with this numpy and these data; use those of the run",
            )
    if not (snapshot.data_digest or saved_digest):
        warn(f"{run_dir.path} does not say which data it was computed with; it may have been others than these")


def _compare_data(setup: Setup, run_dir: RunDir, found: str, config: Mapping[str, Any]) -> None:
    if found in ("", setup.data_digest):
        return
    section: Any = config.get("data")
    key = next((key for key in DATA_PLACES if isinstance(section, dict) and key in section), "")
    has, had = short_digest(setup.data_digest), short_digest(found)
    advice = f"set data.{key} to the run's data" if key else "install the packages that the run had"
    raise RunDirError(
        place_of(setup.config.data),
        f"holds other data (digest {has}) than the run in {run_dir.path} was computed with (digest {had}"
        f"{f', data.{key}={section[key]}' if key else ''}); {advice}, or begin another run with another --run-dir",
    )


def initial_state(setup: Setup, snapshot: checkpoint.Snapshot | None) -> ServerState:
    """Rank 0: the state before the next round; the others have none."""
    if not setup.comm.is_root:
        return ServerState()
    params = setup.method.initial_state() if snapshot is None else snapshot.server
    memories = {} if snapshot is None else dict(snapshot.clients)
    return ServerState({name: value.to(setup.device.server) for name, value in params.items()}, memories)
