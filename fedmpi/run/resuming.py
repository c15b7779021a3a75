"""Where a run begins: the state that the next round continues from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from fedmpi import methods
from fedmpi.data import digest, partition
from fedmpi.errors import RunDirError
from fedmpi.mpi.together import together
from fedmpi.report.best import Best
from fedmpi.rounds.state import ServerState, Setup
from fedmpi.run import made_with, provenance
from fedmpi.run.start import warn
from fedmpi.store import checkpoint
from fedmpi.store.run_dir import RunDir

if TYPE_CHECKING:
    from fedmpi.mpi.communicator import Communicator


def restore(setup: Setup, run_dir: RunDir, *, resume: bool) -> checkpoint.Snapshot | None:
    """The newest intact checkpoint (rank 0 only), or None to begin at round 1. Refuses another config and
    other data."""

    def find() -> checkpoint.Snapshot | None:
        if not (resume and setup.comm.is_root):
            return None
        snapshot = checkpoint.load_newest_intact(run_dir, warn, problem_of=lambda found: _problem(setup, found))
        if snapshot is None:
            print(f"no intact checkpoint in {run_dir.path}: starting at round 1 with {setup.config.where}", flush=True)
            return None
        differences = setup.config.diff(snapshot.config)
        if differences:
            raise RunDirError(
                str(run_dir.path),
                f"was run with another config, by its checkpoint of round {snapshot.round}: {'; '.join(differences)}; "
                f"--resume needs the same; --resume-from {run_dir.path} begins a new run from it with others",
            )
        check_data(setup, run_dir, snapshot)
        if other_bits := made_with.changes(snapshot.versions, setup.computed_with):
            warn(other_bits)
        if changed := provenance.changes(run_dir, setup.config):
            warn(changed)
        return snapshot

    return together(setup.comm, find)


def _problem(setup: Setup, snapshot: checkpoint.Snapshot) -> str:
    """Why this run cannot go on from a checkpoint that is whole; empty also for another config, which is refused."""
    try:
        if setup.config.diff(snapshot.config):
            return ""
    except RecursionError:
        return "holds a config that is none"
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
    key = next((key for key in digest.PLACES if isinstance(section, dict) and key in section), "")
    has, had = digest.short(setup.data_digest), digest.short(found)
    advice = f"set data.{key} to the run's data" if key else "install the packages that the run had"
    raise RunDirError(
        digest.place(setup.config.data),
        f"holds other data (digest {has}) than the run in {run_dir.path} was computed with (digest {had}"
        f"{f', data.{key}={section[key]}' if key else ''}); {advice}, or begin another run with another --run-dir",
    )


def initial_state(
    method: methods.Method, comm: Communicator, snapshot: checkpoint.Snapshot | None, device: str
) -> ServerState:
    """Rank 0: the state before the next round; the others have none."""
    if not comm.is_root:
        return ServerState()
    if snapshot is None:
        return ServerState(_on(device, method.initial_state()))
    return ServerState(_on(device, dict(snapshot.server)), dict(snapshot.clients))


def _on(device: str, params: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {name: value.to(device) for name, value in params.items()}
