"""From a config to everything a rank needs for all rounds, and to the state it begins with.

Each step that can fail by the user's doing (a missing file, a GPU without code for it, an occupied
run directory) is done by all ranks together: whoever fails tells the others, and all end with the
same lines and exit code 2.
"""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import numpy as np
import torch
from torch import nn

from fedmpi import costs, data, learning, methods, models
from fedmpi.clock import Clock
from fedmpi.config.schema import Config
from fedmpi.errors import RunDirError, UserError
from fedmpi.federation import equal_blocks
from fedmpi.federation.plan import worker_ranks
from fedmpi.learning.flat import Buffers, FlatNet, net_layout
from fedmpi.learning.local import LocalTrainer
from fedmpi.mpi import placement
from fedmpi.output import checkpoint, manifest
from fedmpi.output.memory import MemoryStore
from fedmpi.output.run_dir import RunDir
from fedmpi.setup import ServerState, Setup

if TYPE_CHECKING:
    from fedmpi.mpi.comm import Comm

Value = TypeVar("Value")


class StartupError(UserError):
    """A user's mistake that every rank knows of: rank 0 says it, all exit with code 2."""

    def text(self) -> str:
        return "\n".join(self.problems)


def together(comm: Comm, action: Callable[[], Value]) -> Value:
    """`action` on every rank; if it is a `UserError` anywhere, a `StartupError` with all of them everywhere."""
    problem, value = "", None
    try:
        value = action()
    except UserError as error:
        problem = error.text()
    problems = list(dict.fromkeys(filter(None, comm.allgather_text(problem))))
    if problems:
        raise StartupError("start", *problems)
    return value  # type: ignore[return-value]


MakeMethod = Callable[[methods.MethodContext], methods.Method]


def prepare(config: Config, comm: Comm, run_dir: RunDir, make_method: MakeMethod = methods.create) -> Setup:
    """Everything a rank is given once. Raises `StartupError` on all ranks together."""
    learning.make_deterministic(config.mpi.threads)
    worker_device, device = _devices(config, comm)
    info = data.info(config.data)
    dataset = together(comm, lambda: data.load(config.data))
    partition = together(
        comm, lambda: data.make_partition(config.partition, dataset.train_y, config.clients.count, config.seed)
    )
    labels = dataset.train_y

    def present(client: int) -> np.ndarray:
        return data.present_labels(labels, partition.client(client), info.num_classes)

    method = together(comm, lambda: make_method(method_context(config, info, present)))
    skeletons = [method.skeleton(number) for number in range(method.num_nets)]
    macs = tuple(float(costs.measure(net, info.example_shape).macs) for net in skeletons)
    resident = data.DeviceData(info, dataset, device.train, config.train.augment)
    clock = Clock(comm.traffic)
    return Setup(
        config=config,
        comm=comm,
        device=device,
        worker_device=worker_device,
        method=method,
        data=resident,
        labels=labels,
        partition=partition,
        blocks=blocks(config, method),
        macs=macs,
        trainers=_trainers(config, comm, method, skeletons, resident),
        evaluation=_evaluation(config, method, skeletons, macs, partition, info.num_test),
        memories=MemoryStore(run_dir),
        clock=clock,
    )


def method_context(
    config: Config, info: data.DataInfo, present_labels: Callable[[int], np.ndarray] | None = None
) -> methods.MethodContext:
    """What the config's method is built from; a forecast has no labels."""
    return methods.MethodContext(
        options=config.method,
        make_net=lambda width=1.0: models.build(config.model, info, config.seed, width),
        make_skeleton=lambda width=1.0: models.skeleton(config.model, info, width),
        dense_layers=config.model.dense_layers,
        weight_decay=config.train.weight_decay,
        dynamic_tiers=config.clients.tier_assignment == "dynamic",
        channels_last=config.train.memory_format == "channels_last",
        seed=config.seed,
        present_labels=present_labels,
    )


def blocks(config: Config, method: methods.Method) -> tuple[int, ...]:
    """Clients per tier."""
    return config.clients.tier_blocks or equal_blocks(config.clients.count, len(method.tiers))


def _devices(config: Config, comm: Comm) -> tuple[str, placement.Device]:
    """The kind of device that all workers train on, and this rank's own devices."""
    trains = config.mpi.server_trains or comm.size == 1
    worker = placement.worker_index(comm.local_rank, server_here=comm.server_here, server_trains=trains)
    gpus = placement.visible_gpus() if config.mpi.device != "cpu" or config.mpi.server_device != "cpu" else ()
    counts = [int(text) for text in comm.allgather_text(str(len(gpus)))]
    workers = worker_ranks(comm.size, server_trains=trains)
    kind = placement.resolve(config.mpi.device, [counts[rank] for rank in workers])
    needs_server = comm.is_root or config.mpi.exchange != "gather"
    server = config.mpi.server_device if needs_server else "cpu"
    built_for = torch.cuda.get_arch_list() if gpus else []
    return kind, together(comm, lambda: placement.place(worker, gpus, train=kind, server=server, built_for=built_for))


def _trainers(
    config: Config, comm: Comm, method: methods.Method, skeletons: Sequence[nn.Module], resident: data.DeviceData
) -> tuple[LocalTrainer, ...]:
    """One for each of the method's nets, all in the same buffers. Rank 0 has none if it does not train."""
    if comm.rank not in worker_ranks(comm.size, server_trains=config.mpi.server_trains):
        return ()
    own, channels_last = method.own_decay, config.train.memory_format == "channels_last"
    layouts = [net_layout(net.named_parameters(), own, channels_last=channels_last) for net in skeletons]
    buffers = Buffers(max(layout.num_bytes for layout in layouts), resident.device)
    return tuple(
        LocalTrainer(FlatNet(method.net(number), layout, buffers), resident, config.train, list(own))
        for number, layout in enumerate(layouts)
    )


def _evaluation(
    config: Config,
    method: methods.Method,
    skeletons: Sequence[nn.Module],
    macs: Sequence[float],
    partition: data.Partition,
    num_test: int,
) -> learning.EvaluationPlan:
    tested = [net.net for net in method.tested()]
    return learning.EvaluationPlan(
        costs=tuple(macs[number] for number in tested),
        num_statistics=tuple(learning.num_statistics(skeletons[number]) for number in tested),
        num_test=num_test,
        batch_size=config.evaluation.batch_size,
        restat_indices=np.sort(partition.indices),
    )


# Where the run lives, and where it begins.


def open_run_dir(config: Config, comm: Comm, asked: str | None, *, resume: bool) -> RunDir:
    """The run directory, opened (or made) by rank 0 and known to all."""

    def open_it() -> str:
        if not comm.is_root:
            return ""
        if asked is None:
            label = f"{Path(config.where).stem}-seed{config.seed}"
            return str(RunDir.new(config.output.dir, label).path.resolve())
        return str(RunDir.open_for(asked, resume=resume).path.resolve())

    return RunDir(Path(comm.allgather_text(together(comm, open_it))[0]))


def resume_command(run_dir: RunDir, num_ranks: int) -> str:
    """What to type to go on with a run."""
    launcher = f"mpirun -n {num_ranks} " if num_ranks > 1 else ""
    return f"{launcher}python -m fedmpi.main --run-dir {shlex.quote(str(run_dir.path))} --resume"


def restore(setup: Setup, run_dir: RunDir, *, resume: bool) -> checkpoint.Snapshot | None:
    """The newest intact checkpoint (rank 0 only), or None to begin at round 1. Refuses another config."""

    def find() -> checkpoint.Snapshot | None:
        if not (resume and setup.comm.is_root):
            return None
        snapshot = checkpoint.load_newest_intact(run_dir, _warn)
        if snapshot is None:
            print(f"no intact checkpoint in {run_dir.path}: starting at round 1", flush=True)
            return None
        differences = setup.config.diff(snapshot.config)
        if differences:
            raise RunDirError(
                str(run_dir.path),
                f"was run with another config: {'; '.join(differences)}; "
                "--resume needs the same, or take another --run-dir",
            )
        _warn_of_other_bits(snapshot.versions, computed_with(setup))
        return snapshot

    return together(setup.comm, find)


def computed_with(setup: Setup) -> dict[str, str]:
    """What bits depend on beside the config: versions and the workers' kind of device. Saved with each checkpoint."""
    return {**manifest.versions(), "device": setup.worker_device}


def _warn_of_other_bits(then: Mapping[str, str], now: Mapping[str, str]) -> None:
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
    """The batch job's number, for the lock and the manifest; empty outside Slurm."""
    return os.environ.get("SLURM_JOB_ID", "")
