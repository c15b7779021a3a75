"""Where the run lives, and where it begins: its folder, and the state that the next round goes on from."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from fedmpi import methods, registry
from fedmpi.config import address
from fedmpi.config.schema import Config
from fedmpi.data import digest, partition
from fedmpi.errors import RunDirError
from fedmpi.report.best import Best
from fedmpi.rounds.state import ServerState, Setup
from fedmpi.run import advice, bits, provenance
from fedmpi.run.start import together, warn
from fedmpi.store import checkpoint
from fedmpi.store.run_dir import RunDir

if TYPE_CHECKING:
    from fedmpi.mpi.comm import Comm


def open_run_dir(config: Config, comm: Comm, asked: str | None, *, resume: bool, label: str = "") -> RunDir:
    """The run directory, opened (or made) by rank 0 and known to all; `label` begins the name of a fresh one."""

    def open_it() -> str:
        if not comm.is_root:
            return ""
        if asked is None:
            named = label or f"{address.label(config.where)}-seed{config.seed}"
            return str(RunDir.new(config.output.dir, named).path.resolve())
        return str(RunDir.open_for(asked, resume=resume).path.resolve())

    return RunDir(Path(comm.allgather_text(together(comm, open_it))[0]))


def resume_command(run_dir: RunDir, num_ranks: int, config: Config) -> str:
    """What to type to go on with a run."""
    return advice.command(num_ranks, "--run-dir", str(run_dir.path), "--resume", *registry.words_in_full(config))


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
                f"was run with another config, says its checkpoint of round {snapshot.round}: {'; '.join(differences)}; "
                f"--resume needs the same; --resume-from {run_dir.path} begins a new run from it with others",
            )
        check_data(setup, run_dir, snapshot)
        if other_bits := bits.changes(snapshot.versions, setup.computed_with):
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
                "is not the partition that this config gives with this numpy and these data; use those that the run had",
            )
    if not (snapshot.data_digest or saved_digest):
        warn(f"{run_dir.path} does not say which data it was computed with, so nobody knows whether these are the same")


def _compare_data(setup: Setup, run_dir: RunDir, found: str, config: Mapping[str, Any]) -> None:
    if found in ("", setup.data_digest):
        return
    section = config.get("data")
    key = next((key for key in digest.PLACES if isinstance(section, dict) and key in section), "")
    has, had = digest.short(setup.data_digest), digest.short(found)
    advice = f"set data.{key} to the run's data" if key else "install the packages that the run had"
    raise RunDirError(
        digest.place(setup.config.data),
        f"holds other data (digest {has}) than the run in {run_dir.path} was computed with (digest {had}"
        f"{f', data.{key}={section[key]}' if key else ''}); {advice}, or begin another run with another --run-dir",
    )


def initial_state(method: methods.Method, comm: Comm, snapshot: checkpoint.Snapshot | None, device: str) -> ServerState:
    """Rank 0: the state before the next round; the others have none."""
    if not comm.is_root:
        return ServerState()
    if snapshot is None:
        return ServerState(_on(device, method.initial_state()))
    return ServerState(_on(device, dict(snapshot.server)), dict(snapshot.clients))


def _on(device: str, params: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {name: value.to(device) for name, value in params.items()}


def slurm_job() -> str:
    """The batch job's number (of one task of an array: its own), for the manifest; empty outside Slurm."""
    array, task = (os.environ.get(name, "") for name in ("SLURM_ARRAY_JOB_ID", "SLURM_ARRAY_TASK_ID"))
    return f"{array}_{task}" if array or task else os.environ.get("SLURM_JOB_ID", "")


def job_name() -> str:
    """For the lock, which a rank that takes over on another host may take: the batch job, or the launcher's own."""
    return slurm_job() or os.environ.get("PMIX_NAMESPACE", "")
