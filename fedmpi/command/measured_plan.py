"""Measures one real round of a run on this machine and multiplies: hours, memory and disk space (`plan --measure`).

The estimate divides training and tests by the workers that train at once here. It leaves out the network.
"""

import resource
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

from fedmpi.config.schema import Config
from fedmpi.errors import counted
from fedmpi.experiment import run
from fedmpi.federation.assignment import worker_ranks
from fedmpi.mpi import mpirun
from fedmpi.mpi.communicator import SerialComm
from fedmpi.report.records import read_records
from fedmpi.running.folder import RunRequest
from fedmpi.running.forecast import Forecast
from fedmpi.store import checkpoint, manifest
from fedmpi.store.run_dir import RunDir
from fedmpi.store.units import short_duration, size


def measured_round(config: Config) -> dict[str, Any]:
    """Trains the run's first round in a temporary folder, with a test and a checkpoint. Returns its device, seconds by
    stage, and bytes: of this process at most, of the checkpoint and of new client memories."""
    # BatchNorm as after the first milestone, which takes longer.
    bn = "restat" if config.evaluation.bn == "milestone" else config.evaluation.bn
    evaluation = config.evaluation.model_copy(update={"every": 1, "bn": bn})
    quiet = {"checkpoint_every": 1, "observers": (), "report": False, "tensorboard": False}
    output = config.output.model_copy(update=quiet)
    first_round = config.model_copy(update={"rounds": 1, "evaluation": evaluation, "output": output})
    with TemporaryDirectory(prefix="fedmpi-measure-") as folder:
        run(first_round, SerialComm(), RunRequest(run_dir=folder, quiet=True))
        run_dir = RunDir(Path(folder))
        starts = manifest.read_starts(run_dir)
        saved = checkpoint.load(run_dir.checkpoints()[0][1])
        began_s = time.perf_counter()
        checkpoint.save(run_dir, saved)
        saving_s = time.perf_counter() - began_s
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return {
            "device": starts[-1]["ranks"][0]["place"].partition(": ")[2],
            "seconds": {**read_records(run_dir)[-1]["seconds"], "saving": saving_s},
            "peak_bytes": peak if sys.platform == "darwin" else 1024 * peak,  # Linux counts in KiB
            "checkpoint_bytes": run_dir.checkpoints()[0][1].stat().st_size,
            "memory_bytes": sum(path.stat().st_size for path in run_dir.memory_dir.rglob("*.h5")),
        }


def estimated(config: Config, plan: Forecast, measured: dict[str, Any]) -> dict[str, Any]:
    """Multiplies the round by those of the run, on the cores of this machine."""
    workers = len(worker_ranks(plan.ranks, server_trains=config.mpi.server_trains))
    slots = torch.cuda.device_count() if "cuda" in measured["device"] else max(1, mpirun.cores() // config.mpi.threads)
    at_once = min(workers, slots)
    seconds = measured["seconds"]
    trained_s = (seconds["local_training"] + seconds["submodel_creation"]) / at_once
    base_s = trained_s + seconds["aggregation"] + seconds["svd"]
    test_s = seconds["evaluation"] / at_once
    saves = -(-config.rounds // config.output.checkpoint_every)
    total_s = config.rounds * base_s + plan.tests_per_run * test_s + saves * seconds["saving"]
    checkpoints = min(config.output.keep_checkpoints + 2, saves)  # with the best one, and the one that is written
    clients = min(config.clients.count, config.rounds * config.clients.per_round)
    memories = measured["memory_bytes"] * (clients / config.clients.per_round + checkpoints)
    return {
        "round": measured,
        "workers_at_once": at_once,
        "round_s": base_s + test_s + seconds["saving"],
        "hours": total_s / 3600,
        "all_ranks_bytes": plan.ranks * measured["peak_bytes"]
        - (plan.ranks - 1) * (plan.data_bytes_node + plan.frozen_bytes_node),
        "disk_bytes": round(checkpoints * measured["checkpoint_bytes"] + memories),
    }


def lines(estimate: dict[str, Any]) -> list[str]:
    """Returns the estimate in words."""
    measured = estimate["round"]
    parts = ", ".join(f"{stage} {value:.3g}" for stage, value in measured["seconds"].items() if stage != "wall")
    return [
        f"measured on {measured['device']}: one round in {measured['seconds']['wall']:.3g} s ({parts})",
        f"expected with {counted(estimate['workers_at_once'], 'worker')} at once: {estimate['round_s']:.3g} s for a "
        "round with test and checkpoint; "
        f"{short_duration(3600 * estimate['hours'])} for the run, without start or network",
        f"memory: {size(measured['peak_bytes'])} a rank at most, {size(estimate['all_ranks_bytes'])} all ranks; "
        f"disk: {size(estimate['disk_bytes'])}",
    ]
