"""From a config to everything a rank needs for all rounds; `resuming` has the state that it begins with. A step
that can fail by the user's doing is done by all ranks together: all end with the same lines and exit code 2.
"""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from hashlib import blake2b
from typing import Any

import numpy as np
import psutil
import torch
from torch import nn

from fedmpi import costs, methods, seeds
from fedmpi.clock import Clock
from fedmpi.config.fields import DATA_PLACES
from fedmpi.config.schema import VALIDATION_SHARE, Config, named_in_full
from fedmpi.data import lending
from fedmpi.data.batches import DeviceData, batch_bounds, with_examples
from fedmpi.data.dataset import Arrays, DataInfo, Dataset, load_data, place_of, task_of
from fedmpi.data.partition import Partition, make_partition, present_labels
from fedmpi.data.personal import hold_out
from fedmpi.devices.fleet import Fleet
from fedmpi.errors import ConfigError, StartupError, counted, one_line
from fedmpi.federation.assignment import Task, worker_ranks
from fedmpi.federation.participation import Participation
from fedmpi.federation.tiers import tier_blocks
from fedmpi.learning import loss_scale, metrics, twice
from fedmpi.learning.bn import num_statistics
from fedmpi.learning.determinism import make_deterministic, settings_kept
from fedmpi.learning.evaluate import EvaluationPlan, Scoring
from fedmpi.learning.flat import Buffers, FlatNet, net_layout
from fedmpi.learning.freed_memory import keep_freed_memory
from fedmpi.learning.local import LocalTrainer
from fedmpi.methods import aggregate
from fedmpi.methods.protocol import all_nets
from fedmpi.models import create, pretrained
from fedmpi.models.trial import Trial, examples_of, tried, try_batches
from fedmpi.models.width import Rounding
from fedmpi.mpi import mpirun, placement
from fedmpi.mpi.communicator import Communicator, SerialComm, together
from fedmpi.report.terminal import warn
from fedmpi.rounds.evaluate import own_tests
from fedmpi.rounds.state import Design, Federation, Setup, draw_tasks
from fedmpi.running import made_with
from fedmpi.running.remarks import thin_rounds
from fedmpi.store.memory import MemoryStore
from fedmpi.store.run_dir import RunDir
from fedmpi.store.units import size
from fedmpi.tensors import total_bytes

_DIGEST_BYTES = 6
Present = Callable[[int], np.ndarray]
"""Returns the classes that a client's training examples have."""
_COPIES = 12
"""So many copies of the largest net training a client twice holds at most: values, gradients, moments and results."""


def load_material(config: Config, comm: Communicator) -> Federation:
    """Reads and partitions the data, tries the model and makes the method. Raises `StartupError` on all ranks."""
    dataset = _read_once_a_node(config, comm)
    info = with_examples(config.data.used(), dataset)
    trial = together(comm, lambda: check_model(config, info))
    on_cpu = made_with.computed_with("cpu", "cpu", placement.Device("cpu", "cpu", ""))
    # Ranks of unlike processors or packages may have other outputs; a name that only one has is compared with none.
    outputs = f"outputs for the first examples (of ranks with {_digest_of(on_cpu)})"
    _check_alike(comm, {"parameters": trial.parameters, outputs: trial.outputs})
    pretrained.use_copies(_lent(comm, comm.here, pretrained.copies()))
    material = together(comm, lambda: _material(config, dataset, info, trial))
    participation = material.participation
    clients = sorted(participation.named(1)) if participation.function else []
    _check_alike(comm, {"sampling": clients, **material.file_digests})
    return material


def divided(config: Config, dataset: Dataset) -> tuple[Dataset, Partition, Partition | None]:
    """Returns the examples, which of them each client trains on, and, where validation data have taken the place of the
    test examples, whose these are. Raises `ConfigError` for test targets that have no variance, by which r2 divides."""
    partition = make_partition(config.partition, dataset.train_y, config.clients.count, config.seed, dataset.groups)
    validation = None
    if config.evaluation.on == "validation":
        dataset, partition, validation = hold_out(dataset, partition, VALIDATION_SHARE, config.seed)
    targets = dataset.test_y
    if task_of(targets) == "regression" and (targets == targets[:1]).all():
        problem = f"the {len(targets)} test targets are the same number, and r2 divides by their variance"
        raise ConfigError("data", f"{problem}; test with others, or more")
    return dataset, partition, validation


def _material(config: Config, dataset: Dataset, info: DataInfo, trial: Trial) -> Federation:
    """Divides the data and makes the method, on this rank alone."""
    dataset, partition, validation = divided(config, dataset)
    if validation is not None:
        info = replace(info, num_test=len(dataset.test_y))

    def present(client: int) -> np.ndarray:
        return present_labels(dataset.classes("train"), partition.client(client), info.num_classes)

    check_batches(config, info, partition.sizes)
    design = designed(config, info, partition.sizes, present, trial)
    if design.fleet:
        design.fleet.check()
    availability = design.participation.availability
    digests = {
        "availability": availability.digest if availability else "",
        made_with.FROZEN: trial.frozen,
        made_with.DEVICES: design.fleet.digest if design.fleet else "",
    }
    used = {name: digest for name, digest in digests.items() if digest}
    tests = own_tests(config, design.method, partition, dataset, validation)
    return Federation(**vars(design), dataset=dataset, partition=partition, personal_tests=tests, file_digests=used)


def designed(config: Config, info: DataInfo, sizes: np.ndarray, present: Present | None, trial: Trial) -> Design:
    """Makes the method, its nets without values, what these cost, and the clients' devices. `sizes` (clients,) has the
    clients' numbers of examples; a plan has no labels (`present`). Raises `ConfigError`."""
    method = methods.create(method_context(config, info, present, trial))
    skeletons = [method.net(number, empty=True) for number in all_nets(method)]
    nets = [costs.measure(net, examples_of(info)) for net in skeletons]
    fleet = Fleet.of(config, method, nets)
    if fleet and fleet.decides_tiers:
        method = methods.create(replace(method.context, tiers_in_use=fleet.tiers_in_use()))
    participation = Participation.of(config, sizes, fleet.tier if fleet and fleet.decides_tiers else None)
    return Design(config, info, participation, fleet, method, skeletons, nets)


def _read_once_a_node(config: Config, comm: Communicator) -> Dataset:
    """Reads the examples on the highest rank of a node (the server has enough to hold); the others map them, or read
    them if they have them in another place or cannot (`data.lending`). Raises `StartupError` on all ranks."""
    place = place_of(config.data)
    places = comm.allgather_object(place)
    alike = [rank for rank in comm.here if places[rank] == place]
    reads = comm.rank == alike[-1] or config.data.reads_to_know  # those have read, so they compare what they have read
    own = together(comm, lambda: load_data(config.data) if reads else None)
    digest = comm.allgather_object(own.digest if own else "")[alike[-1]]
    arrays: Any = _lent(comm, alike, own.arrays if own else {})
    mapped = Dataset(**arrays, digest=digest) if arrays else None
    dataset = together(comm, lambda: mapped or own or load_data(config.data))
    settings = config.to_dict() | {"output": None}  # only rank 0 writes
    settings["data"] = {key: value for key, value in settings["data"].items() if key not in DATA_PLACES}
    _check_alike(comm, {"config": settings, "data": (own or dataset).digest})
    return dataset


def _lent(comm: Communicator, ranks: Sequence[int], arrays: Arrays) -> Mapping[str, np.ndarray]:
    """Returns, on these ranks of a node, the arrays of the highest one, which lie in memory once; {} if that cannot be
    or there is no other rank."""
    lends = comm.rank == ranks[-1] and len(ranks) > 1
    with lending.lent(arrays if arrays and lends else None) as text:
        lent = comm.allgather_object(text)[ranks[-1]]
        return together(comm, lambda: lending.taken(lent)) or {}


def _check_alike(comm: Communicator, own: Mapping[str, object]) -> None:
    """Raises `StartupError` on all ranks if one has something else than the others, as on a node with its own files."""
    values = made_with.values_of_ranks(comm, {name: _digest_of(value) for name, value in own.items()})
    for name, found in made_with.differences(values).items():
        todo = "give all the same files, and code that does the same in each process (a set has another order in each)"
        raise StartupError("start", one_line(f"ranks have different {name}, by digest: {found}; {todo}"))


def _digest_of(value: object) -> str:
    return blake2b(json.dumps(value, sort_keys=True).encode(), digest_size=_DIGEST_BYTES).hexdigest()


def _computed_with(comm: Communicator, kinds: tuple[str, str], device: placement.Device) -> dict[str, str]:
    """Returns what the ranks compute with; rank 0 warns if they differ."""
    values = made_with.values_of_ranks(comm, made_with.computed_with(*kinds, device))
    found = [f"{name}: {ranks}" for name, ranks in made_with.differences(values).items() if name in made_with.COMPARED]
    if found and comm.is_root:
        warn(one_line(f"ranks differ in {', '.join(found)}: results may depend on which rank simulates a client"))
    return {name: " and ".join(sorted(values[name])) for name in sorted(values)}


def check_model(config: Config, info: DataInfo) -> Trial:
    """Tries what the user brings: loss, metrics, aggregate, and the model as a run computes. Raises `ConfigError`."""
    metrics.check_loss(config.train, info)
    metrics.check(config.evaluation.metrics, info)
    aggregate.check(config.method.aggregate, config.clients.per_round)
    with settings_kept():
        make_deterministic(config.mpi.threads)
        return tried(config.model, info)


def check_batches(config: Config, info: DataInfo, sizes: np.ndarray | None) -> None:
    """Refuses a net that cannot take the smallest or the largest batch of the run. `sizes` (clients,) has the clients'
    numbers of examples, None where a plan does not know them."""
    train = config.train
    trained = {min(train.batch_size, info.num_train)}
    if sizes is not None and not train.drop_last:
        found = {size for number in np.unique(sizes).tolist() for size in _batch_sizes(number, train.batch_size)}
        trained = {min(found), max(found)}
    tests = _batch_sizes(info.num_test, config.evaluation.batch_size)
    with settings_kept():
        make_deterministic(config.mpi.threads)
        try_batches(config.model, info, trained, tests - trained)


def _batch_sizes(num_examples: int, batch_size: int) -> set[int]:
    return {stop - start for start, stop in batch_bounds(num_examples, batch_size)}


def check_twice(design: Design) -> None:
    """Trains a client of the trial's examples twice, as a run does before its first round, if the config names code
    that is not built in, unless the nets would take much of the free memory: a plan may be for another machine.
    Raises `ConfigError`."""
    config = design.config
    is_built_in = not named_in_full(config.to_dict())
    if is_built_in or _COPIES * _largest(design.skeletons) > psutil.virtual_memory().available:
        return
    info = design.info
    x = examples_of(info).numpy()
    targets, _ = metrics.drawn(info, len(x))
    form = replace(info, kind="tokens" if info.kind == "tokens" else "vector")  # used as they are
    examples = DeviceData(form, Dataset(x, targets, x, targets), "cpu", augment=False)
    in_fp32 = config.train.model_copy(update={"precision": "fp32"})  # a CPU may lack layers in another
    design = replace(design, config=config.model_copy(update={"train": in_fp32}))
    with settings_kept():
        make_deterministic(config.mpi.threads)
        trainers = _trainers(design, SerialComm(), examples)
        macs = [net.weight for net in design.nets]
        twice.check_nets(trainers, design.method.net, macs, np.arange(len(x)), config.seed, config.model.name)


def prepare(config: Config, comm: Communicator, run_dir: RunDir, material: Federation | None = None) -> Setup:
    """Makes everything that a rank is given once. Raises `StartupError` on all ranks together."""
    make_deterministic(config.mpi.threads)
    kinds, device = _devices(config, comm)
    computed_with = _computed_with(comm, kinds, device)
    material = material or load_material(config, comm)
    together(comm, lambda: _check_memory(material, comm, device.train))
    resident = DeviceData(material.info, material.dataset, device.train, config.train.augment)
    return Setup(
        **vars(material),
        comm=comm,
        device=device,
        data=resident,
        computed_with={**computed_with, **material.file_digests},
        trainers=_trainers(material, comm, resident),
        evaluation=_evaluation(material),
        memories=MemoryStore(run_dir),
        clock=Clock(comm.traffic),
    )


def method_context(
    config: Config, info: DataInfo, present_labels: Present | None = None, trial: Trial | None = None
) -> methods.MethodContext:
    """Returns what the config's method is built from; a forecast has no labels. Without a `trial` the model is tried
    when the method first asks for its classifier."""

    def make(
        width: float = 1.0, rounding: Rounding = "round", seed: int | None = None, *, empty: bool = False
    ) -> nn.Module:
        if empty:
            return create.skeleton(config.model, info, width, rounding)
        return create.build(config.model, info, config.seed if seed is None else seed, width, rounding)

    return methods.MethodContext(
        options=config.method,
        make=make,
        train=config.train,
        clients=config.clients,
        seed=config.seed,
        tier_blocks=tier_blocks(config),
        dense_layers=config.model.dense_layers,
        num_classes=info.num_classes,
        present_labels=present_labels if info.task == "classification" else None,
        classifier=lambda: (trial or check_model(config, info)).classifier,
    )


def _devices(config: Config, comm: Communicator) -> tuple[tuple[str, str], placement.Device]:
    """Returns the kinds of device that all workers and the server's part compute on, and this rank's own devices."""
    trains = config.mpi.server_trains or comm.size == 1
    worker = placement.worker_index(comm.rank, comm.here, server_trains=trains)
    asks = config.mpi.device != "cpu" or config.mpi.server_device == "cuda"
    gpus = placement.visible_gpus() if asks else ()
    counts = comm.allgather_object(len(gpus))
    workers = worker_ranks(comm.size, server_trains=trains)
    # Only if every worker has one: else bits would differ.
    kind = placement.resolve(config.mpi.device, has_gpus=all(counts[rank] for rank in workers))
    server_kind = placement.resolve(config.mpi.server_device, has_gpus=kind == "cuda" and counts[0] > 0)
    needs_server = comm.is_root or config.mpi.exchange != "gather"
    server = server_kind if needs_server else "cpu"
    built_for = torch.cuda.get_arch_list() if gpus else []
    device = together(comm, lambda: placement.place(worker, gpus, train=kind, server=server, built_for=built_for))
    if device.has_gpu:  # what does not name a device (pinned memory) must not open the first GPU in every rank
        torch.cuda.set_device(device.train if device.train != "cpu" else device.server)
    return (kind, server_kind), device


def _check_memory(material: Federation, comm: Communicator, worker_device: str) -> None:
    """Raises `ConfigError` where the largest net, its gradients and momentum do not fit this node's memory."""
    config = material.config
    workers = [rank for rank in comm.here if rank in worker_ranks(comm.size, server_trains=config.mpi.server_trains)]
    needed = len(workers) * (3 + (config.train.optimizer == "adamw")) * _largest(material.skeletons)
    has = psutil.virtual_memory().total
    if worker_device == "cpu" and needed > has:
        takes = f"'{config.model.name}' takes {size(needed)} of memory on {counted(len(workers), 'worker')}"
        raise ConfigError("model.name", f"{takes}, and {comm.host} has {size(has)}; take a smaller net, or fewer ranks")


def _largest(nets: Sequence[nn.Module]) -> int:
    """Returns the bytes of the largest net's parameters."""
    return max(total_bytes(net.parameters()) for net in nets)


def _trainers(design: Design, comm: Communicator, resident: DeviceData) -> tuple[LocalTrainer, ...]:
    """Makes a trainer for each of the method's nets, all in the same buffers. Rank 0 has none if it does not train."""
    config = design.config
    method = design.method
    if comm.rank not in worker_ranks(comm.size, server_trains=config.mpi.server_trains):
        return ()
    keep_freed_memory()
    own = method.own_decay
    layouts = [net_layout(net.named_parameters(), own, channels_last=True) for net in design.skeletons]
    largest = max(layout.num_bytes for layout in layouts)
    is_fp16 = config.train.precision == "fp16"
    is_adamw = config.train.optimizer == "adamw"
    scale = loss_scale.INITIAL if is_fp16 else None
    buffers = Buffers(largest, resident.device, squares=is_adamw, loss_scale=scale)
    return tuple(
        LocalTrainer(FlatNet(method.net(number), layout, buffers), resident, config.train, list(own))
        for number, layout in enumerate(layouts)
    )


def _evaluation(material: Federation) -> EvaluationPlan:
    config = material.config
    method = material.method
    tested = [net.index for net in method.tested()]
    order = seeds.numpy_generator("restat order", config.seed)
    return EvaluationPlan(
        costs=tuple(material.nets[number].weight for number in tested),
        num_statistics=tuple(num_statistics(material.skeletons[number]) for number in tested),
        num_test=material.info.num_test,
        batch_size=config.evaluation.batch_size,
        # Shuffled once and for all: in a file sorted by class each batch would be one class.
        restat_indices=order.permutation(np.sort(material.partition.indices)),
        late=[place for place, net in enumerate(tested) if net in method.late_nets],
        scoring=Scoring.of(config.train, material.info.task, material.dataset.test_y),
        keeps_logits=bool(config.evaluation.metrics),
    )


def check_nets(setup: Setup) -> tuple[str, ...]:
    """Trains the same client twice on every worker before the first round. Returns what to warn of, as workers that
    compute other bits. Raises `StartupError` on all ranks for a net that keeps something between clients."""

    def check() -> str:
        if not setup.trainers:
            return ""
        examples = setup.partition.indices
        config = setup.config
        return twice.check_nets(setup.trainers, setup.method.net, setup.macs, examples, config.seed, config.model.name)

    digest = together(setup.comm, check)
    lines = [*_crowded_hosts(setup), *together(setup.comm, lambda: _thin_rounds(setup))]
    values = made_with.values_of_ranks(setup.comm, {"bits": digest} if digest else {})
    for found in made_with.differences(values).values():
        todo = "use processors of one kind, and in the net no order that differs from process to process (of a set)"
        why = f"so results depend on which rank trains whom; {todo}"
        lines.append(f"the same client trained on several ranks gives other bits, {why}; digests: {found}")
    return tuple(lines)


def _thin_rounds(setup: Setup) -> tuple[str, ...]:
    """Returns what `thin_rounds` says, on rank 0. Raises `ConfigError`."""
    is_full = setup.participation.is_uniform and not setup.config.clients.dropout
    if is_full or not setup.comm.is_root:
        return ()
    rounds = drawn_rounds(replace(setup, fleet=None))  # nobody is late, which changes no line
    return thin_rounds(setup.config, rounds)


def drawn_rounds(design: Design) -> Iterator[list[Task]]:
    """Draws the clients of each round, in all its phases."""
    for number in range(1, design.config.rounds + 1):
        tasks: list[Task] = []
        for phase in design.method.phases(number):
            tasks += draw_tasks(design, (), number, phase)
        yield tasks


def _crowded_hosts(setup: Setup) -> tuple[str, ...]:
    """Returns a line that names a host with more compute threads than cores; called by all ranks."""
    views = setup.comm.allgather_object((setup.comm.host, mpirun.usable_cpus(), mpirun.physical_cores()))
    threads = setup.config.mpi.threads
    for host, (ranks, cores) in mpirun.loads(views).items():
        if ranks * threads > cores:
            who = mpirun.ranks_of_threads(ranks, threads)
            return (f"{who} share {counted(cores, 'core')} of {host}, and take turns; fewer may be faster",)
    return ()
