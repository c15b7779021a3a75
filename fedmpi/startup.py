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
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import numpy as np
import torch
from torch import nn

from fedmpi import costs, data, learning, methods, models, seeds
from fedmpi.clock import Clock
from fedmpi.config.schema import Config
from fedmpi.errors import ConfigError, RunDirError, UserError
from fedmpi.federation.plan import worker_ranks
from fedmpi.learning.flat import Buffers, FlatNet, net_layout
from fedmpi.learning.local import LocalTrainer
from fedmpi.mpi import placement
from fedmpi.output import checkpoint, manifest
from fedmpi.output.best import Best
from fedmpi.output.memory import MemoryStore
from fedmpi.output.run_dir import RunDir
from fedmpi.personal import own_tests
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


@dataclass(frozen=True)
class Material:
    """The examples, and whose they are."""

    info: data.DataInfo
    dataset: data.Dataset
    partition: data.Partition


def load_material(config: Config, comm: Comm) -> Material:
    """Reads and partitions the data. Raises `StartupError` on all ranks together; touches nothing on disk."""
    info = data.info(config.data)
    together(comm, lambda: check_model(config, info))
    dataset = together(comm, lambda: data.load(config.data))
    labels, groups = dataset.train_y, dataset.groups
    partition = together(
        comm, lambda: data.make_partition(config.partition, labels, config.clients.count, config.seed, groups)
    )
    together(comm, lambda: _check_batches(config, info, partition))
    return Material(info, dataset, partition)


def check_model(config: Config, info: data.DataInfo) -> None:
    """Whether the model can take the data, found out in a dry run. Raises `ConfigError`."""
    try:
        costs.measure(models.skeleton(config.model, info), info.example_shape)
    except (RuntimeError, ValueError, TypeError) as error:
        shape = " x ".join(map(str, info.example_shape))
        reason = str(error).partition("\n")[0]
        raise ConfigError(
            "model.name", f"{config.model.name} cannot take inputs of {shape} (data {config.data.name}): {reason}"
        ) from None


def _check_batches(config: Config, info: data.DataInfo, partition: data.Partition) -> None:
    """Refuses batches of one example where the net normalizes single values: those have no variance."""
    if not learning.normalizes_single_values(models.skeleton(config.model, info), info.example_shape):
        return
    because = f"but {config.model.name} ends at 1 x 1 on these inputs, and BatchNorm needs two values or more"
    problems = []
    if int(np.min(partition.sizes, initial=2, where=partition.sizes > 0)) == 1:
        problems.append(f"partition: a client has a single example, {because}; take fewer clients")
    for key, size in (("train", config.train.batch_size), ("evaluation", config.evaluation.batch_size)):
        if size == 1:
            problems.append(f"{key}.batch_size is 1, {because}; make it 2 or more")
    if info.num_test == 1:
        problems.append(f"data: there is one test example, {because}")
    if problems:
        raise ConfigError(config.where, *problems)


MakeMethod = Callable[[methods.MethodContext], methods.Method]


def prepare(
    config: Config,
    comm: Comm,
    run_dir: RunDir,
    make_method: MakeMethod = methods.create,
    material: Material | None = None,
) -> Setup:
    """Everything a rank is given once. Raises `StartupError` on all ranks together."""
    learning.make_deterministic(config.mpi.threads)
    worker_device, device = _devices(config, comm)
    material = material or load_material(config, comm)
    info, labels, partition = material.info, material.dataset.train_y, material.partition

    def present(client: int) -> np.ndarray:
        return data.present_labels(labels, partition.client(client), info.num_classes)

    method = together(comm, lambda: make_method(method_context(config, info, present)))
    skeletons = [method.skeleton(number) for number in range(method.num_nets)]
    macs = tuple(float(costs.measure(net, info.example_shape).macs) for net in skeletons)
    resident = data.DeviceData(info, material.dataset, device.train, config.train.augment)
    return Setup(
        config=config,
        comm=comm,
        device=device,
        worker_device=worker_device,
        method=method,
        data=resident,
        labels=labels,
        partition=partition,
        blocks=blocks(config),
        macs=macs,
        trainers=_trainers(config, comm, method, skeletons, resident),
        evaluation=_evaluation(config, method, skeletons, macs, partition, info.num_test),
        memories=MemoryStore(run_dir),
        clock=Clock(comm.traffic),
        personal_tests=together(comm, lambda: own_tests(config, method, partition, material.dataset)),
    )


def method_context(
    config: Config, info: data.DataInfo, present_labels: Callable[[int], np.ndarray] | None = None
) -> methods.MethodContext:
    """What the config's method is built from; a forecast has no labels."""
    return methods.MethodContext(
        options=config.method,
        make_net=lambda width=1.0, rounding="round", seed=config.seed: models.build(
            config.model, info, seed, width, rounding
        ),
        make_skeleton=lambda width=1.0, rounding="round": models.skeleton(config.model, info, width, rounding),
        dense_layers=config.model.dense_layers,
        weight_decay=config.train.weight_decay,
        dynamic_tiers=config.clients.tier_assignment == "dynamic",
        channels_last=config.train.memory_format == "channels_last",
        seed=config.seed,
        num_clients=config.clients.count,
        clients_per_round=config.clients.per_round,
        tier_blocks=blocks(config),
        num_classes=info.num_classes,
        local_epochs=config.train.local_epochs,
        batch_size=config.train.batch_size,
        momentum=config.train.momentum,
        present_labels=present_labels,
    )


def blocks(config: Config) -> tuple[int, ...]:
    """Clients per tier."""
    own: tuple[int, ...] = config.method.tier_blocks(config.clients.count)
    return config.clients.tier_blocks or own


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
    device = together(comm, lambda: placement.place(worker, gpus, train=kind, server=server, built_for=built_for))
    if device.has_gpu:  # what does not name a device (pinned memory) must not open the first GPU in every rank
        torch.cuda.set_device(device.train if device.train != "cpu" else device.server)
    return kind, device


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
        # Shuffled once and for all: in a file sorted by class each batch would be one class.
        restat_indices=seeds.numpy_generator("restat order", config.seed).permutation(np.sort(partition.indices)),
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
        snapshot = checkpoint.load_newest_intact(run_dir, _warn, problem_of=lambda found: _problem(setup, found))
        if snapshot is None:
            print(f"no intact checkpoint in {run_dir.path}: starting at round 1 with {setup.config.where}", flush=True)
            return None
        differences = setup.config.diff(snapshot.config)
        if differences:
            raise RunDirError(
                str(run_dir.path),
                f"was run with another config: {'; '.join(differences)}; "
                "--resume needs the same, or take another --run-dir",
            )
        _check_partition(setup, run_dir)
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


def _check_partition(setup: Setup, run_dir: RunDir) -> None:
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
    array, task = (os.environ.get(name, "") for name in ("SLURM_ARRAY_JOB_ID", "SLURM_ARRAY_TASK_ID"))
    return f"{array}_{task}" if array or task else os.environ.get("SLURM_JOB_ID", "")


def job_name() -> str:
    """For the lock, which a rank that takes over on another host may take: the batch job, or the launcher's own."""
    return slurm_job() or os.environ.get("PMIX_NAMESPACE", "")
