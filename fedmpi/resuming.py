"""Where the run lives, and where it begins: its folder, and the state that the next round goes on from."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch

from fedmpi import advice, data, methods
from fedmpi.config.schema import Config
from fedmpi.errors import RunDirError
from fedmpi.output import checkpoint, manifest
from fedmpi.output.best import Best
from fedmpi.output.run_dir import RunDir
from fedmpi.setup import ServerState, Setup
from fedmpi.startup import together

if TYPE_CHECKING:
    from fedmpi.mpi.comm import Comm


def open_run_dir(config: Config, comm: Comm, asked: str | None, *, resume: bool, label: str = "") -> RunDir:
    """The run directory, opened (or made) by rank 0 and known to all; `label` begins the name of a fresh one."""

    def open_it() -> str:
        if not comm.is_root:
            return ""
        if asked is None:
            named = label or f"{Path(config.where).stem}-seed{config.seed}"
            return str(RunDir.new(config.output.dir, named).path.resolve())
        return str(RunDir.open_for(asked, resume=resume).path.resolve())

    return RunDir(Path(comm.allgather_text(together(comm, open_it))[0]))


def resume_command(run_dir: RunDir, num_ranks: int) -> str:
    """What to type to go on with a run."""
    return advice.command(num_ranks, "--run-dir", str(run_dir.path), "--resume")


def restore(setup: Setup, run_dir: RunDir, *, resume: bool) -> checkpoint.Snapshot | None:
    """The newest intact checkpoint (rank 0 only), or None to begin at round 1. Refuses another config."""

    def find() -> checkpoint.Snapshot | None:
        if not (resume and setup.comm.is_root):
            return None
        snapshot = checkpoint.load_newest_intact(run_dir, _warn, problem_of=lambda found: _problem(setup, found))
        if snapshot is None:
            print(f"no intact checkpoint in {run_dir.path}: starting at round 1 with {setup.config.where}", flush=True)
            return None
        differences = setup.config.diff(snapshot.config)
        if differences:
            raise RunDirError(
                str(run_dir.path),
                f"was run with another config: {'; '.join(differences)}; "
                f"--resume needs the same; --resume-from {run_dir.path} begins a new run from it with others",
            )
        check_partition(setup, run_dir)
        warn_of_other_bits(snapshot.versions, computed_with(setup))
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


def check_partition(setup: Setup, run_dir: RunDir) -> None:
    """The saved partition must be the one that this config gives here and now."""
    if not run_dir.partition_path.exists():
        return
    saved, ours = data.Partition.load(run_dir.partition_path), setup.partition
    if not (np.array_equal(saved.indices, ours.indices) and np.array_equal(saved.offsets, ours.offsets)):
        raise RunDirError(
            str(run_dir.partition_path),
            "is not the partition that this config gives with this numpy and these data; use those that the run had",
        )


def computed_with(setup: Setup) -> dict[str, str]:
    """What bits depend on beside the config: versions and the workers' kind of device. Saved with each checkpoint."""
    return {**manifest.versions(), "device": setup.worker_device}


def warn_of_other_bits(then: Mapping[str, str], now: Mapping[str, str]) -> None:
    """Says which of `computed_with` is another one now."""
    for name in ("torch", "numpy", "device"):
        if then.get(name) != now.get(name):
            _warn(f"begun with {name} {then.get(name)}, going on with {now.get(name)}: bits may differ from now on")


def _warn(line: str) -> None:
    print(f"warning: {line}", file=sys.stderr, flush=True)


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
    task = "_".join(os.environ.get(f"SLURM_ARRAY_{name}", "") for name in ("JOB_ID", "TASK_ID"))
    return task if len(task) > 1 else os.environ.get("SLURM_JOB_ID", "")


def job_name() -> str:
    """For the lock, which a rank that takes over on another host may take: the batch job, or the launcher's own."""
    return slurm_job() or os.environ.get("PMIX_NAMESPACE", "")
