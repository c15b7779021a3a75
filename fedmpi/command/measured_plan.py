"""Measures one real round of a run on this machine and multiplies: hours, memory and disk space (`plan --measure`).

One process trains the run's first round as the run would, with its test and its checkpoint, in a temporary folder. The
estimate divides training and tests by the workers that train at once here: as many as there are, limited by cores or
GPUs. It leaves out the network, and that ranks share memory bandwidth.
"""

from __future__ import annotations

import json
import os
import resource
import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import torch

from fedmpi.config.schema import Config
from fedmpi.errors import ConfigError, counted
from fedmpi.experiment import run
from fedmpi.federation.assignment import worker_ranks
from fedmpi.mpi import mpirun
from fedmpi.mpi.serial import SerialComm
from fedmpi.report.records import read_records
from fedmpi.report.terminal import wrapped
from fedmpi.running.folder import Asked
from fedmpi.running.forecast import Forecast, machine_bytes
from fedmpi.store import manifest
from fedmpi.store.run_dir import RunDir
from fedmpi.store.units import size, took

_WHILE_SAVING = 2
"""Checkpoints beside the newest ones: the best one, and the one that is being written."""


@dataclass(frozen=True)
class MeasuredRound:
    """One round as one process trained it here."""

    device: str
    seconds: Mapping[str, float]
    """By stage of the round; `saving` is that of its checkpoint."""
    peak_bytes: int
    """The most resident memory of the process, as server and worker at once."""
    checkpoint_bytes: int
    memory_bytes: int
    """Client memories that the round has written."""


@dataclass(frozen=True)
class Estimate:
    """What the whole run takes here by its first round."""

    round: MeasuredRound
    workers: int
    workers_at_once: int
    round_s: float
    """A round with a test and a checkpoint."""
    hours: float
    all_ranks_bytes: int
    machine_bytes: int
    disk_bytes: int
    free_bytes: int


def measured_text(config: Config, plan: Forecast, form: str) -> str:
    """Returns the plan with the estimate, as text or as JSON (key `measured`). Raises `ConfigError` where the memory of
    this machine cannot hold one rank.
    """
    least = plan.data_bytes_node + plan.model_bytes_server + plan.model_bytes_worker
    if least > machine_bytes():
        needs = f"one process needs {size(least)} of memory, and this machine has {size(machine_bytes())}"
        raise ConfigError("--measure", f"{needs}; leave --measure away, or measure on a larger machine")
    estimate = estimated(config, plan, measured_round(config))
    if form == "json":
        return json.dumps({**asdict(plan), "measured": asdict(estimate)}, indent=2)
    return "\n".join([plan.text("text"), *wrapped(*_lines(config, estimate))])


def measured_round(config: Config) -> MeasuredRound:
    """Trains the first round of the run in a temporary folder, with a test and a checkpoint."""
    # BatchNorm as after the first milestone, which takes longer.
    bn = "restat" if config.evaluation.bn == "milestone" else config.evaluation.bn
    evaluation = config.evaluation.model_copy(update={"every": 1, "bn": bn})
    quiet = {"checkpoint_every": 1, "observers": (), "report": False, "tensorboard": False}
    output = config.output.model_copy(update=quiet)
    first_round = config.model_copy(update={"rounds": 1, "evaluation": evaluation, "output": output})
    with TemporaryDirectory(prefix="fedmpi-measure-") as folder:
        run(first_round, SerialComm(), Asked(run_dir=folder, quiet=True))
        run_dir = RunDir(Path(folder))
        starts = manifest.read_starts(run_dir)
        seconds = dict(read_records(run_dir)[-1]["seconds"])
        seconds["saving"] = manifest.seconds_after_records(starts).get("saving", 0.0)
        memories = [path.stat().st_size for path in run_dir.memory_dir.rglob("*.h5")]
        return MeasuredRound(
            device=starts[-1]["ranks"][0]["place"].partition(": ")[2],
            seconds=seconds,
            peak_bytes=_peak_bytes(),
            checkpoint_bytes=run_dir.checkpoints()[0][1].stat().st_size,
            memory_bytes=sum(memories),
        )


def estimated(config: Config, plan: Forecast, measured: MeasuredRound, num_cores: int | None = None) -> Estimate:
    """Multiplies the round. `num_cores` are those of this machine unless given."""
    workers = len(worker_ranks(plan.ranks, server_trains=config.mpi.server_trains))
    cores = num_cores or mpirun.cores()
    slots = torch.cuda.device_count() if "cuda" in measured.device else max(1, cores // config.mpi.threads)
    at_once = min(workers, slots)
    seconds = measured.seconds
    trained_s = (seconds["local_training"] + seconds["submodel_creation"]) / at_once + seconds["aggregation"]
    base_s = trained_s + seconds["svd"]
    test_s = seconds["evaluation"] / at_once
    saves = -(-config.rounds // config.output.checkpoint_every)
    total_s = config.rounds * base_s + plan.tests_per_run * test_s + saves * seconds["saving"]
    checkpoints = min(config.output.keep_checkpoints + _WHILE_SAVING, saves)
    per_client = measured.memory_bytes / max(1, config.clients.per_round)
    clients = min(config.clients.count, config.rounds * config.clients.per_round)
    num_memories = clients + checkpoints * config.clients.per_round
    return Estimate(
        round=measured,
        workers=workers,
        workers_at_once=at_once,
        round_s=base_s + test_s + seconds["saving"],
        hours=total_s / 3600,
        all_ranks_bytes=measured.peak_bytes + (plan.ranks - 1) * (measured.peak_bytes - plan.data_bytes_node),
        machine_bytes=machine_bytes(),
        disk_bytes=round(checkpoints * measured.checkpoint_bytes + num_memories * per_client),
        free_bytes=_free_bytes(config.output.dir),
    )


def _lines(config: Config, found: Estimate) -> Sequence[str]:
    parts = ", ".join(f"{stage} {value:.3g}" for stage, value in found.round.seconds.items() if stage != "wall")
    lines = [
        f"measured on {found.round.device}: one round in {found.round.seconds['wall']:.3g} s ({parts})",
        f"expected if {found.workers_at_once} of {counted(found.workers, 'worker')} train at once: "
        f"{found.round_s:.3g} s for a round with test and checkpoint; {took(3600 * found.hours)} for "
        f"{counted(config.rounds, 'round')}, without start or network",
        f"memory: {size(found.round.peak_bytes)} a rank at most, all ranks {size(found.all_ranks_bytes)} of this "
        f"machine's {size(found.machine_bytes)}",
        f"disk: {size(found.disk_bytes)} of {size(found.free_bytes)} free",
    ]
    if found.machine_bytes < found.all_ranks_bytes:
        lines.append("warning: all ranks need more memory than this machine has")
    if found.free_bytes < found.disk_bytes:
        lines.append("warning: checkpoints need more space than there is free in output.dir")
    return lines


def _peak_bytes() -> int:
    """Returns the most resident memory of this process (Linux counts in KiB, macOS in bytes)."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else 1024 * peak


def _free_bytes(folder: str) -> int:
    """Returns the free space where `folder` is, or would be made."""
    place = Path(os.path.abspath(os.path.expanduser(folder)))
    while not place.exists():
        place = place.parent
    return shutil.disk_usage(place).free
