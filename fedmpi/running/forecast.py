"""Says what a run will cost, before anyone queues for it (`fedmpi plan`). Trains nothing.

Parameters and bytes are exact: 4 per parameter each way, summed over the cohorts that the run will draw, without
clients that miss a deadline. Compute is that of arXiv:2111.14655, section 4: MACs of a forward pass x local epochs (or
steps) x samples x rounds, with a client's mean samples and mean share of the work. Memory is what fedmpi allocates,
without the few hundred MB of libraries.
"""

import contextlib
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import psutil

from fedmpi import methods
from fedmpi.config.schema import VALIDATION_SHARE, Config
from fedmpi.data.dataset import DataInfo, load_data
from fedmpi.data.subset import Ints
from fedmpi.devices.expected import Expectation, Expected
from fedmpi.errors import ConfigError, DataError, counted
from fedmpi.federation.assignment import Task, worker_ranks
from fedmpi.methods.values import ClientLoad
from fedmpi.mpi import mpirun
from fedmpi.report.table_text import text_lines
from fedmpi.report.terminal import wrapped
from fedmpi.rounds.exchange import WAVE_BYTES
from fedmpi.rounds.state import Design
from fedmpi.running import start
from fedmpi.running.remarks import defaults, remarks, thin_rounds
from fedmpi.store.units import si, size
from fedmpi.tensors import Layout, frozen_values, specs_of, total_bytes

_ELEMENT_BYTES = {"image": 1, "vector": 4, "tokens": 2}


@dataclass(frozen=True)
class TierForecast:
    """One tier. MACs are of one forward pass of one example; bytes, examples and compute per client and round."""

    name: str
    capacity: float
    clients: int
    params: int
    macs: int
    macs_with_norm_and_activations: int
    activation_bytes: int
    down_bytes: int
    up_bytes: int
    training_examples: float
    training_macs: float
    client_rounds: int


@dataclass(frozen=True, repr=False)
class Forecast:
    """The whole run; printed, it is the text of `fedmpi plan`."""

    method: str
    model: str
    data: str
    examples: str
    """Their shape, type and classes in words."""
    rounds: int
    ranks: int
    clients_per_worker: tuple[int, int]
    down_bytes_per_round: float
    up_bytes_per_round: float
    bytes_per_run: int
    training_macs_per_run: float
    tests_per_run: int
    model_bytes_worker: int
    model_bytes_server: int
    frozen_bytes_node: int
    data_bytes_node: int
    """Of the data set, which the ranks of a node have together. At the start one of them holds a second copy."""
    tiers: tuple[TierForecast, ...]
    defaults: str
    """What decides results and is not chosen, in a line; '' for nothing."""
    warnings: tuple[str, ...]
    devices: Expected | None = None
    """Time, energy and memory on the clients' devices, where they have a clock."""

    def __repr__(self) -> str:
        rows = []
        for tier in self.tiers:
            row = [tier.name, f"{tier.capacity:g}", str(tier.clients), f"{tier.params:,}", si(tier.macs or None)]
            rows.append([*row, size(tier.down_bytes), size(tier.up_bytes), si(tier.training_macs or None)])
        heads = ("tier", "share", "clients", "params", "MACs", "down", "up", "compute")
        low, high = self.clients_per_worker
        frozen = f", {size(self.frozen_bytes_node)} of values that are not trained" if self.frozen_bytes_node else ""
        lines = [
            f"examples: {self.examples}",
            "share: of the full net's capacity, or a rank; down and up: bytes of a client in a round",
            "compute: MACs x examples that pass in training, of a mean client in a round",
            f"per round: {size(self.down_bytes_per_round)} down, {size(self.up_bytes_per_round)} up",
            f"per run:   {size(self.bytes_per_run)}, {si(self.training_macs_per_run)} MACs",
            f"tests:     {self.tests_per_run:,}",
            f"clients per worker and round: {low if low == high else f'{low} to {high}'}",
            f"memory: {size(self.model_bytes_worker)} model on a worker, {size(self.model_bytes_server)} on rank 0; "
            f"{size(self.data_bytes_node)} data on a node{frozen}",
            *filter(None, [self.defaults]),
            *(f"warning: {warning}" for warning in self.warnings),
        ]
        length = f"{counted(self.rounds, 'round')} on {counted(self.ranks, 'rank')}"
        head = wrapped(f"{self.method} on {self.data} with {self.model}: {length}")
        on_devices = self.devices.lines() if self.devices else []
        return "\n".join([*head, *text_lines(heads, rows, 1), *wrapped(*lines), *on_devices])


def forecast(config: Config, num_ranks: int) -> Forecast:
    """Returns the costs of `config` on `num_ranks` ranks. Reads data only where nothing else says their sizes (a user's
    own file, folder or function). Raises `ConfigError` if the model cannot take the data."""
    info = config.data.used()
    samples = config.partition.mean_examples(info, config.clients.count)
    if config.evaluation.on == "validation":
        held = VALIDATION_SHARE * samples
        info = replace(info, num_test=round(held * config.clients.count))
        samples -= held
    known = _known_sizes(config, info)
    sizes = np.full(config.clients.count, max(1, round(samples))) if known is None else known
    trial = start.check_model(config, info)
    start.check_batches(config, info, known)
    design = start.designed(config, info, sizes, None, trial)
    start.check_twice(design)
    rounds = _Rounds(design.method, Expectation(design.fleet) if design.fleet else None)
    thin = thin_rounds(config, map(rounds.added, start.drawn_rounds(design)))
    tiers = tuple(_tiers(design, samples, rounds.client_rounds))
    num_workers = len(worker_ranks(num_ranks, server_trains=config.mpi.server_trains))
    devices = None
    if rounds.expectation:
        share = design.participation.mean_work_share
        devices = rounds.expectation.result(samples, share, sizes_are_known=known is not None)
    return Forecast(
        method=config.method.name,
        model=config.model.name,
        data=config.data.name,
        examples=info.in_words(),
        rounds=config.rounds,
        ranks=num_ranks,
        clients_per_worker=(min(rounds.clients) // num_workers, math.ceil(max(rounds.clients) / num_workers)),
        down_bytes_per_round=rounds.down_bytes / config.rounds,
        up_bytes_per_round=rounds.up_bytes / config.rounds,
        bytes_per_run=rounds.down_bytes + rounds.up_bytes,
        training_macs_per_run=sum(tier.training_macs * tier.client_rounds for tier in tiers),
        tests_per_run=math.ceil(config.rounds / config.evaluation.every),
        **_memory(design, num_ranks),
        tiers=tiers,
        defaults=defaults(config, design.method),
        warnings=(*remarks(design, num_workers), *thin, *_warnings(design, tiers, devices)),
        devices=devices,
    )


def _tiers(design: Design, samples: float, client_rounds: Mapping[int, int]) -> Iterator[TierForecast]:
    """Yields the tiers; a mean client has so many samples."""
    method = design.method
    participation = design.participation
    fraction = samples / max(1, round(samples))  # a step has whole examples
    for tier in method.tiers:
        load = ClientLoad(tier.index, samples, share=participation.mean_work_share)
        net = design.nets[tier.index]
        moved = method.costs(load)
        training = method.count_training(load)
        yield TierForecast(
            name=tier.name,
            capacity=tier.capacity,
            clients=design.fleet.count(tier.index) if design.fleet else participation.blocks[tier.index],
            params=net.params,
            macs=net.macs,
            macs_with_norm_and_activations=net.macs_with_norm_and_activations,
            activation_bytes=net.activation_bytes,
            down_bytes=moved.down_bytes,
            up_bytes=moved.up_bytes,
            training_examples=fraction * training.examples,
            training_macs=fraction * training.macs([net.macs for net in design.nets]),
            client_rounds=client_rounds[tier.index],
        )


def _known_sizes(config: Config, info: DataInfo) -> Ints | None:
    """Returns how many examples each client trains on, int64 (clients,); None where only the data say it. Reads these
    if they are the user's own, or, where the clock of devices needs them, if they are there. Raises `UserError`."""
    if config.data.reads_to_know:
        return start.divided(config, load_data(config.data))[1].sizes
    known = config.partition.sizes_without_data(info, config.clients.count, config.seed)
    if known is not None and config.evaluation.on != "validation":
        return known
    if config.devices.is_on:
        with contextlib.suppress(DataError):
            return start.divided(config, load_data(config.data))[1].sizes
    return None


def _warnings(design: Design, tiers: Sequence[TierForecast], devices: Expected | None) -> Iterator[str]:
    for tier in tiers:
        if not tier.macs:
            yield f"the MACs of tier {tier.name} are not counted: this net does not run without values"
    if design.fleet and devices:
        config = design.config
        yield from devices.warnings(config.rounds, fits=config.clients.tier_assignment == "fits")
        try:
            design.fleet.check()
        except ConfigError as error:
            yield f"a run is refused: {error.text()}"


@dataclass
class _Rounds:
    """Adds up how often clients of each tier train, bytes down and up, and what the clients' devices take."""

    method: methods.Method
    expectation: Expectation | None
    client_rounds: Counter[int] = field(default_factory=Counter)
    down_bytes: int = 0
    up_bytes: int = 0
    clients: list[int] = field(default_factory=list)
    """How many take part in each round."""

    def added(self, tasks: Sequence[Task]) -> Sequence[Task]:
        """Adds a round, and returns it; clients that miss its deadline get and train nothing."""
        self.clients.append(len(tasks))
        if self.expectation:
            self.expectation.add(tasks)
        trained = Counter((task.tier, task.round_number) for task in tasks if not task.is_late)
        arrived = Counter(task.tier for task in tasks if task.arrives)
        for (tier, number), count in trained.items():
            turn = self.method.costs(ClientLoad(tier, round_number=number))
            self.down_bytes += count * turn.down_bytes
            self.up_bytes += arrived[tier] * turn.up_bytes
            self.client_rounds[tier] += count
        return tasks


def lacking_here(plan: Forecast, threads: int) -> Iterator[str]:
    """Yields what this machine lacks if all ranks run on it."""
    others = plan.ranks - 1
    models = plan.model_bytes_server + others * plan.model_bytes_worker
    needed = plan.data_bytes_node + plan.frozen_bytes_node + max(models, plan.data_bytes_node * (others > 0))
    if needed > (here := psutil.virtual_memory().total):
        yield f"all ranks need {size(needed)} of memory, and this machine has {size(here)}"
    if plan.ranks * threads > (cores := mpirun.cores()):
        who = mpirun.ranks_of_threads(plan.ranks, threads)
        todo = "give mpirun more nodes, or fewer ranks" if threads == 1 else "a smaller mpi.threads is faster"
        yield f"{who} share {counted(cores, 'core')} here; {todo}"


def _memory(design: Design, num_ranks: int) -> dict[str, int]:
    """Returns bytes of a worker's and the server's buffers, and of the data set on each node."""
    config = design.config
    method = design.method
    info = design.info
    largest_upload = max(Layout.of(method.upload_specs(tier.index)).num_bytes for tier in method.tiers)
    parameters = [net.named_parameters() for net in design.skeletons]
    largest_net = max(Layout.of(specs_of(named, channels_last=False)).num_bytes for named in parameters)
    specs = method.state_specs()
    with_state = specs if any(method.late.values()) else {}
    published = Layout.of(method.published_specs(range(len(method.tiers))) | with_state).num_bytes
    state = Layout.of(specs).num_bytes
    summed = Layout.of({name: specs[tensor] for name, tensor in method.sums().items()}).num_bytes
    longest = max((spec.num_elements for spec in specs.values()), default=0)
    server = getattr(config.method, "server", None)
    moments = 2 * getattr(server, "num_moments", 0) * state  # old and new ones
    at_once = min((num_ranks - 1) * largest_upload, max(WAVE_BYTES, largest_upload))
    received = at_once + largest_upload if config.mpi.exchange != "reduce" else 0
    if config.method.aggregate != "mean":
        received += config.clients.per_round * summed  # it keeps all uploads
    return {
        # parameters, gradients, momentum (AdamW: and squares); what was published; two uploads under way
        "model_bytes_worker": (3 + (config.train.optimizer == "adamw")) * largest_net + published + 2 * largest_upload,
        # old and new state, with moments; what is published; sums in int64 and one term; uploads under way, and one
        "model_bytes_server": 2 * state + moments + published + 2 * summed + 16 * longest + received,
        "data_bytes_node": (info.num_train + info.num_test)
        * (math.prod(info.example_shape) * _ELEMENT_BYTES[info.kind] + 8),
        "frozen_bytes_node": total_bytes(frozen_values(method.net(0, empty=True)).values()),
    }
