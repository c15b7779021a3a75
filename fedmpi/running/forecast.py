"""What a run will cost, before anyone queues for it (`fedmpi plan`). Trains nothing.

Parameters and bytes are exact. Bytes per client are the papers' formula, 4 per parameter each way;
a run's are summed over the very cohorts that it will draw. Compute is that of arXiv:2111.14655, section 4:
MACs of a forward pass x local epochs x samples x rounds, a client's samples being the mean. Tests are counted
beside it: every tested net passes the test examples and, for BatchNorm, the clients' training examples.
Memory is what fedmpi itself allocates, without the libraries' own few hundred MB and without client
memories, of which one at a time is read.
"""

from __future__ import annotations

import json
import math
import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace

from fedmpi import costs, methods
from fedmpi.config.schema import Config
from fedmpi.data.dataset import DataInfo
from fedmpi.errors import counted
from fedmpi.federation.assignment import PART_BYTES, worker_ranks
from fedmpi.learning.bn import num_statistics
from fedmpi.methods.protocol import all_nets, sums_of
from fedmpi.methods.values import Phase, Turn
from fedmpi.mpi import mpirun
from fedmpi.report.table_text import text_lines
from fedmpi.report.terminal import NO_BREAK, wrapped
from fedmpi.rounds.receiving import is_ahead
from fedmpi.rounds.state import draw_cohort, reestimates
from fedmpi.running import start
from fedmpi.running.remarks import remarks
from fedmpi.store.units import si, size
from fedmpi.tensors import Layout, specs_of

# Above this many client-rounds cohorts are not drawn one by one: shares of the tiers are used.
_DRAWN_AT_MOST = 200_000
_LOOKED_AT = 1000
_LARGE_SHARE = 1 / 3
_PASSES_OF_A_STEP = 3
"""What a step of training costs beside a test: forward, and backward for inputs and for weights."""
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
    client_rounds: float


@dataclass(frozen=True, repr=False)
class Forecast:
    """The whole run; printed, it is the text of `fedmpi plan`.

    `exact_cohorts` says whether cohorts were drawn, or their expectation taken.
    """

    method: str
    model: str
    data: str
    rounds: int
    ranks: int
    clients_per_worker: tuple[int, int]
    down_bytes_per_round: float
    up_bytes_per_round: float
    bytes_per_run: float
    training_macs_per_run: float
    tests_per_run: int
    test_macs_per_run: float
    """Of all tests of a run, BatchNorm's re-estimation included."""
    exact_cohorts: bool
    model_bytes_worker: int
    model_bytes_server: int
    data_bytes_node: int
    """Of the data set, which the ranks of a node have together. At the start one of them holds a second copy."""
    tiers: tuple[TierForecast, ...]
    warnings: tuple[str, ...] = ()

    @property
    def test_share(self) -> float:
        """The part of a run's compute that tests take."""
        training = _PASSES_OF_A_STEP * self.training_macs_per_run
        return self.test_macs_per_run / max(self.test_macs_per_run + training, 1.0)

    def __repr__(self) -> str:
        return self.text("text")

    def text(self, form: str) -> str:
        """The plan as `form` says, "text" or "json"."""
        return json.dumps(asdict(self), indent=2) if form == "json" else _text(self)


def forecast(config: Config, num_ranks: int, method: methods.Method | None = None) -> Forecast:
    """What `config` will cost on `num_ranks` ranks; `method` may have been built from it already. Reads data only where
    nothing else says their sizes (a user's own file or folder, or a function's arrays), and, for a partition of the
    user's own, where that takes no file. Raises `ConfigError` if the
    model cannot take the data.
    """
    info, blocks = config.data.used(), start.blocks(config)
    if method is None:
        start.check_model(config, info)
        method = methods.create(start.method_context(config, info))
    is_drawn = config.rounds * config.clients.per_round <= _DRAWN_AT_MOST
    times, down_bytes, up_bytes = [0.0] * len(blocks), 0.0, 0.0
    for number, counts in (_cohorts if is_drawn else _expected_cohorts)(config, method, blocks):
        for tier, count in counts.items():
            each = method.costs(Turn(tier, round_number=number))
            times[tier] += count
            down_bytes, up_bytes = down_bytes + count * each.down_bytes, up_bytes + count * each.up_bytes
    info, samples = _parted(config, info)
    nets = [costs.measure(method.net(number, empty=True), info.example_shape) for number in all_nets(method)]
    tiers = tuple(_tier(method, nets, blocks, tier, times[tier], samples) for tier in range(len(method.tiers)))
    workers = len(worker_ranks(num_ranks, server_trains=config.mpi.server_trains))
    per_round = sum(_cohort(config, blocks, phase)[1] for phase in method.phases(1))
    training_macs = sum(tier.training_macs * tier.client_rounds for tier in tiers)
    test_macs, restat_macs = _tests(config, info, method, nets, blocks, samples)
    num_tests, num_restats = count_tests(config)
    plan = Forecast(
        method=config.method.name,
        model=config.model.name,
        data=config.data.name,
        rounds=config.rounds,
        ranks=num_ranks,
        clients_per_worker=(per_round // workers, -(-per_round // workers)),
        down_bytes_per_round=down_bytes / config.rounds,
        up_bytes_per_round=up_bytes / config.rounds,
        bytes_per_run=down_bytes + up_bytes,
        training_macs_per_run=training_macs,
        tests_per_run=num_tests,
        test_macs_per_run=num_tests * test_macs + num_restats * restat_macs,
        exact_cohorts=is_drawn,
        **_memory(config, info, method, num_ranks),
        tiers=tiers,
        warnings=remarks(config, info, method, workers, per_round),
    )
    return replace(plan, warnings=(*plan.warnings, *_many_tests(config, plan), *start.tried_partition(config)))


def _parted(config: Config, info: DataInfo) -> tuple[DataInfo, float]:
    """The data as the run sees them, and the mean number of examples that a client trains on."""
    examples = config.partition.mean_examples(info, config.clients.count)
    if config.evaluation.on == "test":
        return info, examples
    held = config.evaluation.validation_share * examples
    return replace(info, num_test=round(held * config.clients.count)), examples - held


def _tests(
    config: Config,
    info: DataInfo,
    method: methods.Method,
    nets: Sequence[costs.Costs],
    blocks: Sequence[int],
    samples: float,
) -> tuple[float, float]:
    """The MACs of all tests of a round, and of its re-estimation of BatchNorm's statistics."""
    evaluation = config.evaluation
    has_norms = [num_statistics(method.net(number, empty=True)) > 0 for number in all_nets(method)]
    num_restat = round(samples * config.clients.count)
    parts: list[tuple[float, int, float, float]] = [
        (1.0, net.net, info.num_test, num_restat) for net in method.tested()
    ]
    if evaluation.personal == "on" or (evaluation.personal == "auto" and method.traits.personal):
        share = (evaluation.clients or config.clients.count) / config.clients.count
        own_tests = samples * info.num_test / info.num_train
        parts += [(share * count, tier, own_tests, samples) for tier, count in enumerate(blocks)]
    test = sum(times * nets[number].macs * tests for times, number, tests, _ in parts)
    return test, sum(times * nets[number].macs * restat for times, number, _, restat in parts if has_norms[number])


def count_tests(config: Config) -> tuple[int, int]:
    """Returns how many rounds of a run are tested, and how many of those tests re-estimate BatchNorm's statistics."""
    every, rounds = config.evaluation.every, config.rounds
    num_tests = -(-rounds // every)
    changes = (1, *getattr(config.train.schedule, "milestones", ()))  # statistics are re-estimated from one of these on
    first = min((number for number in changes if reestimates(config, number)), default=rounds + 1)
    return num_tests, num_tests - (first - 1) // every if first <= rounds else 0


def _many_tests(config: Config, plan: Forecast) -> Iterator[str]:
    """Yields a line where tests take a large share of the compute and rarer ones would take less."""
    if plan.test_share > _LARGE_SHARE and plan.tests_per_run > 1:
        yield f"tests take {100 * plan.test_share:.0f} % of the compute; a larger evaluation.every makes it less"


def machine_bytes() -> int:
    """The memory of this machine."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def lacking_here(plan: Forecast) -> Iterator[str]:
    """What this machine has not, where all ranks are to run on it."""
    others = plan.ranks - 1
    models = plan.model_bytes_server + others * plan.model_bytes_worker
    needed = plan.data_bytes_node + max(models, plan.data_bytes_node * (others > 0))
    if needed > (has := machine_bytes()):
        yield f"all ranks need {size(needed)} of memory, and this machine has {size(has)}"
    if plan.ranks > (cores := mpirun.cores()):
        yield f"{plan.ranks} ranks share {counted(cores, 'core')} here; give mpirun more nodes, or fewer ranks"


Counts = Iterator[tuple[int, Mapping[int, float]]]
"""For every phase of a run its round, and how many clients of each tier take part."""


def _cohorts(config: Config, method: methods.Method, blocks: tuple[int, ...]) -> Counts:
    """The run's own cohorts, all of them."""
    for number in range(1, config.rounds + 1):
        for phase in method.phases(number):
            yield number, Counter(tier for _, tier in draw_cohort(config, blocks, number, phase))


def _expected_cohorts(config: Config, method: methods.Method, blocks: tuple[int, ...]) -> Counts:
    """Cohorts spread over the tiers by their shares; phases are those of some rounds, evenly spaced."""
    looked_at = range(1, config.rounds + 1, -(-config.rounds // _LOOKED_AT))
    for number in looked_at:
        for phase in method.phases(number):
            tiers, size = _cohort(config, blocks, phase)
            share = size / sum(blocks[tier] for tier in tiers) * config.rounds / len(looked_at) if size else 0.0
            yield number, {tier: share * blocks[tier] for tier in tiers}


def _cohort(config: Config, blocks: tuple[int, ...], phase: Phase) -> tuple[Sequence[int], int]:
    """The tiers of a phase, and how many of their clients take part; nobody is drawn, there may be a billion."""
    tiers = range(len(blocks)) if phase.tiers is None else sorted(phase.tiers)
    size = config.clients.per_round if phase.num_clients is None else phase.num_clients
    return tiers, min(size, sum(blocks[tier] for tier in tiers))


def _tier(
    method: methods.Method,
    nets: Sequence[costs.Costs],
    blocks: tuple[int, ...],
    tier: int,
    times: float,
    samples: float,
) -> TierForecast:
    turn = method.costs(Turn(tier, samples, [net.macs for net in nets]))
    return TierForecast(
        name=method.tiers[tier].name,
        capacity=method.tiers[tier].capacity,
        clients=blocks[tier],
        **asdict(nets[tier]),
        down_bytes=turn.down_bytes,
        up_bytes=turn.up_bytes,
        training_examples=turn.examples,
        training_macs=turn.macs,
        client_rounds=times,
    )


def _memory(config: Config, info: DataInfo, method: methods.Method, num_ranks: int) -> dict[str, int]:
    """Bytes of a worker's and the server's buffers, and of the data set on each node."""
    workers = len(worker_ranks(num_ranks, server_trains=config.mpi.server_trains))
    uploads = [Layout.of(method.upload_specs(tier.index)).num_bytes for tier in method.tiers]
    skeletons = [method.net(number, empty=True).named_parameters() for number in all_nets(method)]
    sizes = [Layout.of(specs_of(parameters, channels_last=False)).num_bytes for parameters in skeletons]
    published = Layout.of(method.published_specs(range(len(method.tiers)))).num_bytes
    specs = method.state_specs()
    state = Layout.of(specs).num_bytes
    summed = Layout.of({name: specs[tensor] for name, tensor in sums_of(method).items()}).num_bytes
    longest = max((spec.num_elements for spec in specs.values()), default=0)
    moments = 2 * config.method.num_moments * state  # old and new ones
    at_once = min(workers * max(uploads), max(PART_BYTES, max(uploads)))
    num_parts = 1 + (config.clients.per_round * max(uploads) > at_once)
    received = (1 + is_ahead(num_ranks, num_parts)) * at_once if config.mpi.exchange != "reduce" else 0
    values = math.prod(info.example_shape)
    return {
        # parameters, gradients, momentum (AdamW: and squares); what was published; two uploads under way
        "model_bytes_worker": (3 + (config.train.optimizer == "adamw")) * max(sizes) + published + 2 * max(uploads),
        # old and new state, with moments; what is published; sums in int64 and one term; uploads at once, and the next
        "model_bytes_server": 2 * state + moments + published + 2 * summed + 16 * longest + received,
        "data_bytes_node": (info.num_train + info.num_test) * (values * _ELEMENT_BYTES[info.kind] + 8),
    }


def _text(plan: Forecast) -> str:
    low, high = plan.clients_per_worker
    share = f"{high}" if low == high else f"{low} to {high}"
    drawn = "its own cohorts" if plan.exact_cohorts else "expected cohorts"
    activations = ", ".join(f"{tier.name}{NO_BREAK}{size(tier.activation_bytes)}" for tier in plan.tiers)
    head = f"{plan.method} on {plan.data} with {plan.model}: "
    head += f"{counted(plan.rounds, 'round')} on {counted(plan.ranks, 'rank')}"
    lines = [
        "share: of the full net's capacity; down and up: bytes of a client in a round",
        "compute: MACs x local epochs x mean samples, of a client in a round",
        f"activations of an example: {activations}",
        f"per round: {size(plan.down_bytes_per_round)} down, {size(plan.up_bytes_per_round)} up",
        f"per run:   {size(plan.bytes_per_run)}, {si(plan.training_macs_per_run)} MACs ({drawn})",
        f"tests:     {plan.tests_per_run:,}, {si(plan.test_macs_per_run)} MACs, {100 * plan.test_share:.0f} % of the "
        f"compute (a step of training is {_PASSES_OF_A_STEP} passes)",
        f"clients per worker and round: {share}",
        f"memory: {size(plan.model_bytes_worker)} model on a worker, {size(plan.model_bytes_server)} on rank 0; "
        f"{size(plan.data_bytes_node)} data on a node",
        *(f"warning: {warning}" for warning in plan.warnings),
    ]
    return "\n".join([*wrapped(head), *_table(plan.tiers), *wrapped(*lines)])


def _table(tiers: Sequence[TierForecast]) -> list[str]:
    rows = [
        (
            tier.name,
            f"{tier.capacity:g}",
            str(tier.clients),
            f"{tier.params:,}",
            si(tier.macs),
            size(tier.down_bytes),
            size(tier.up_bytes),
            si(tier.training_macs),
        )
        for tier in tiers
    ]
    return text_lines(("tier", "share", "clients", "params", "MACs", "down", "up", "compute"), rows, 1)
