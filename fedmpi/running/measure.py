"""`fedmpi plan --measure`: what a run's parts take on this machine, each tried once, by the code that the run uses.

One process plays all parts: it publishes, tests all nets on two batches (after one that warms up), trains a client of
every tier, adds the uploads, updates the server, and writes a checkpoint. Tests come before what only the server does,
so that the memory of a worker is known. A client is trained for its epochs on one batch, which warms up, on one batch
again, and on all its examples, or on two batches where all would take longer than `_WHOLE_S`. The last two tell what a
step takes from what a client takes once, such as to choose what it prunes. Where the first batch takes longer than
`_LONG_S` it is the measurement itself. `_BUDGET_S` seconds after the tests of all nets, the tiers that are left and
their clients' own nets are estimated by their MACs. Nothing of it is kept. `running/prediction.py` makes hours of it.
"""

from __future__ import annotations

import resource
import sys
import time
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TypeVar

import numpy as np
import torch

from fedmpi.config.schema import Config
from fedmpi.data.partition import Partition
from fedmpi.errors import counted
from fedmpi.federation.assignment import Assignment, Task
from fedmpi.methods.values import Phase
from fedmpi.mpi.serial import SerialComm
from fedmpi.rounds.client import simulate_client
from fedmpi.rounds.evaluate import test_client, test_tiers
from fedmpi.rounds.exchange import ClientResult, open_exchange
from fedmpi.rounds.publish import broadcast
from fedmpi.rounds.recovering import open_phase
from fedmpi.rounds.state import Published, ServerState, Setup, personal_task, reestimates
from fedmpi.running import resuming, start
from fedmpi.running.measured import ClientTrial, Measured, NetsTrial, NetTrial, told_apart
from fedmpi.store import checkpoint
from fedmpi.store.run_dir import RunDir
from fedmpi.train_round import refresh, update

_LONG_S, _BUDGET_S, _WHOLE_S = 10.0, 60.0, 2.0
_BATCHES = 2
_FEWEST = 2
"""Examples of what is not to be measured beside something else: BatchNorm needs two."""
# Times the server's state: exact sums in int64, and the means.
_SUMS_AND_NEW_STATE = 3
Key = TypeVar("Key", bound=Hashable)


@dataclass
class _Trials:
    """The setup of the trial, how long it has lasted, and who is told what is tried."""

    setup: Setup
    state: ServerState
    hears: Callable[[str], None]
    begun: float = field(default_factory=time.perf_counter)
    """After the tests of all nets."""
    trained_peak_bytes: int = 0
    """After these, and the training of the first, the largest tier."""

    @property
    def is_over(self) -> bool:
        return time.perf_counter() - self.begun > _BUDGET_S

    def warm(self, act: Callable[[int], float]) -> tuple[float, int]:
        """Seconds of `act` (on so many batches, gives its seconds) once it has warmed up, and on how many batches."""
        first_s = act(1)
        return (first_s, 1) if first_s > _LONG_S else (act(_BATCHES), _BATCHES)

    def tested(
        self, net: str, macs: float, found: Sequence[tuple[float, NetTrial]], act: Callable[[], float]
    ) -> tuple[float, NetTrial]:
        """The MACs of a net and its test by `act`; once the time is up, by the MACs of the first of those `found`."""
        if not (found and self.is_over):
            return macs, NetTrial(net, act())
        known_macs, like = found[0]
        return macs, NetTrial(net, like.test_s * macs / max(known_macs, 1.0), is_estimated=True)


def measure(config: Config, hears: Callable[[str], None] = lambda line: None) -> Measured:
    """Tries the parts of `config`'s rounds in this process. `hears` is told of each before it begins, because one may
    take a minute. Raises `StartupError`, or `DataError`.
    """
    hears("reading the data, building the nets")
    quiet = {"on_divergence": "drop"}
    trial_config = config.model_copy(update={"train": config.train.model_copy(update=quiet)})
    with TemporaryDirectory(prefix="fedmpi-measure-") as folder:
        setup = start.prepare(trial_config, SerialComm(), RunDir(Path(folder)))
        trials = _Trials(setup, resuming.initial_state(setup, None), hears)
        tasks = _tasks(setup)
        published, _ = _publish(trials, tasks)
        published_peak, nets = _peak_bytes(), _nets(trials, published)
        trials.begun = time.perf_counter()
        clients, updating_s = _clients(trials, tasks, published)
        published, publishing_s = _publish(trials, tasks)
        saving_s, checkpoint_bytes = _save(trials, RunDir(Path(folder)))
        files = [path.stat().st_size for path in Path(folder, "memory").rglob("*.h5")]
        server_bytes = sum(value.numel() * value.element_size() for value in trials.state.params.values())
        on_gpu = setup.data.device.type == "cuda"
        return Measured(
            device=setup.device.description,
            threads=config.mpi.threads,
            clients=clients,
            nets=nets,
            personal=_personal(trials, published),
            publishing_s=publishing_s,
            updating_s=updating_s,
            saving_s=saving_s,
            checkpoint_bytes=checkpoint_bytes,
            memory_bytes=max(files, default=0),
            rank_0_peak_bytes=published_peak + _SUMS_AND_NEW_STATE * server_bytes,
            worker_peak_bytes=trials.trained_peak_bytes - server_bytes,
            gpu_peak_bytes=torch.cuda.max_memory_allocated() if on_gpu else 0,
        )


def _peak_bytes() -> int:
    """The most resident memory that this process ever had (Linux counts in KiB, macOS in bytes)."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def _tasks(setup: Setup) -> list[tuple[Phase, Task]]:
    """The client that has most examples, for every phase and tier, in the last round: by then clients remember."""
    phases = {phase.name: phase for number in (1, setup.config.rounds) for phase in setup.method.phases(number)}
    ends = np.cumsum(setup.blocks)
    tasks = []
    for phase in phases.values():
        for tier, size in enumerate(setup.blocks):
            if size and (phase.tiers is None or tier in phase.tiers):
                first = int(ends[tier]) - size
                client = first + int(setup.partition.sizes[first : ends[tier]].argmax())
                tasks.append(
                    (phase, Task(client, tier, setup.config.rounds, phase.name, setup.partition.size(client), 0.0))
                )
    return tasks


def _with_examples(setup: Setup, client: int, num_examples: int) -> Setup:
    """The setup in which this client has the first so many of its examples, and the others have none."""
    return replace(setup, partition=_only(setup.partition, client, num_examples))


def _only(partition: Partition, client: int, num_examples: int) -> Partition:
    own = partition.client(client)[:num_examples]
    sizes = np.zeros(partition.num_clients, np.int64)
    sizes[client] = len(own)
    return Partition.of(own, sizes)


def _publish(trials: _Trials, tasks: Sequence[tuple[Phase, Task]]) -> tuple[Published, float]:
    """All nets, and the seconds that it took."""
    setup, started = trials.setup, time.perf_counter()
    tested = {net.net for net in setup.method.tested()}
    published = broadcast(setup, trials.state, 1, [tasks[0][1]], sorted(tested | {task.tier for _, task in tasks}))
    return published, time.perf_counter() - started


def _clients(
    trials: _Trials, tasks: Sequence[tuple[Phase, Task]], published: Published
) -> tuple[tuple[ClientTrial, ...], float]:
    """A client of each tier in each phase; the seconds of an update of the server's state, the longest of them."""
    found: list[ClientTrial] = []
    updating_s = 0.0
    for place, (phase, task) in enumerate(tasks, 1):
        if found and trials.is_over:
            found.append(_estimated(trials.setup, found, task))
            continue
        tier = trials.setup.method.tiers[task.tier].name
        trials.hears(f"training a client of tier {tier} ({place} of {len(tasks)})")
        trial, update_s = _client(trials, phase, task, published)
        found.append(trial)
        updating_s = max(updating_s, update_s)
    return tuple(found), updating_s


def _estimated(setup: Setup, found: Sequence[ClientTrial], task: Task) -> ClientTrial:
    tier, names = setup.method.tiers[task.tier].name, [tier.name for tier in setup.method.tiers]
    like = max(found, key=lambda trial: setup.macs[names.index(trial.tier)])
    ratio = setup.macs[task.tier] / max(setup.macs[names.index(like.tier)], 1.0)
    training_s = like.training_s * ratio
    return replace(like, tier=tier, phase=task.phase, training_s=training_s, is_estimated=True)


def _client(trials: _Trials, phase: Phase, task: Task, published: Published) -> tuple[ClientTrial, float]:
    """Trains, uploads, adds and updates; the new state is forgotten."""
    trial, setup, own, (report, upload) = _trained(trials, task, published)
    trials.trained_peak_bytes = trials.trained_peak_bytes or _peak_bytes()
    adding_s = update_s = 0.0
    if upload is not None:
        planned, begun = Assignment((own,), ((own,),)), time.perf_counter()
        exchange = open_exchange("gather", open_phase(setup, planned, published))
        opened = time.perf_counter()
        exchange.post(own, (report, upload))
        added = time.perf_counter()
        summed = exchange.finish(trials.state.params)
        refresh(setup, *update(setup, trials.state, summed, phase, [own], published))
        adding_s, update_s = added - opened, time.perf_counter() - added + opened - begun
    return replace(trial, adding_s=adding_s), update_s


def _trained(trials: _Trials, task: Task, published: Published) -> tuple[ClientTrial, Setup, Task, ClientResult]:
    """The trial of a client without the server's part, and its last training: setup, task and result."""
    train, tier = trials.setup.config.train, trials.setup.method.tiers[task.tier].name

    def trained(num_batches: int) -> tuple[ClientTrial, Setup, Task, ClientResult]:
        setup = _with_examples(trials.setup, task.client, num_batches * train.batch_size)
        own = replace(task, num_examples=setup.partition.size(task.client))
        started = time.perf_counter()
        report, upload = simulate_client(setup, own, published)
        other_s = max(0.0, time.perf_counter() - started - report.training_s)
        did = report.steps, own.num_examples * train.local_epochs, report.training_s, other_s, 0.0
        return ClientTrial(tier, task.phase, *did), setup, own, (report, upload)

    first = trained(1)
    if (first_s := first[0].training_s) > _LONG_S:
        return first
    few, all_batches = first[0] if first_s > _WHOLE_S else trained(1)[0], -(-task.num_examples // train.batch_size)
    many = trained(all_batches if few.training_s * all_batches <= _WHOLE_S else min(_BATCHES, all_batches))
    return told_apart(few, many[0]), *many[1:]


def _nets(trials: _Trials, published: Published) -> NetsTrial:
    """All tested nets on test batches and, if the run re-estimates statistics, on batches of training examples."""
    setup, plan = trials.setup, trials.setup.evaluation
    if not plan.costs:
        return NetsTrial()
    trials.hears(f"testing {counted(len(plan.costs), 'net')}")

    def seconds(num_test: int, num_restat: int) -> float:
        part = replace(plan, num_test=min(num_test, plan.num_test), restat_indices=plan.restat_indices[:num_restat])
        started = time.perf_counter()
        test_tiers(replace(setup, evaluation=part), setup.config.rounds, published)
        return time.perf_counter() - started

    def test(num_batches: int) -> float:
        num_test = min(num_batches * plan.batch_size, plan.num_test)
        return seconds(num_test, _FEWEST) / num_test

    def restat(num_batches: int) -> float:
        num_restat = min(num_batches * plan.batch_size, len(plan.restat_indices))
        return seconds(_FEWEST, num_restat) / num_restat

    has_restat = reestimates(setup.config, setup.config.rounds) and any(plan.num_statistics)
    return NetsTrial(trials.warm(test)[0], trials.warm(restat)[0] if has_restat else 0.0)


def _personal(trials: _Trials, published: Published) -> tuple[NetTrial, ...]:
    """A client of each tier, tested with its own net on two batches."""
    setup = trials.setup
    found: list[tuple[float, NetTrial]] = []
    tests, ends = setup.personal_tests, np.cumsum(setup.blocks)
    for tier, size in enumerate(setup.blocks) if tests is not None else ():
        first = int(ends[tier]) - size
        if not size or tests is None or not (own := tests.sizes[first : ends[tier]]).any():
            continue
        act = partial(_own_test, trials, published, tests, first + int(own.argmax()))
        found.append(trials.tested(setup.method.tiers[tier].name, setup.macs[tier], found, act))
    return tuple(trial for _, trial in found)


def _own_test(trials: _Trials, published: Published, tests: Partition, client: int) -> float:
    """Seconds of each example that the test of this client's own net needs."""
    setup = trials.setup
    tier = setup.method.tiers[personal_task(setup, client, 1).tier].name
    trials.hears(f"testing a client of tier {tier} with its own net")

    def test(num_batches: int) -> float:
        most = num_batches * setup.config.evaluation.batch_size
        part = replace(_with_examples(setup, client, most), personal_tests=_only(tests, client, most))
        task = personal_task(part, client, 1)
        started = time.perf_counter()
        test_client(part, task, published)
        return (time.perf_counter() - started) / max(1, task.num_examples + min(most, tests.size(client)))

    return trials.warm(test)[0]


def _save(trials: _Trials, folder: RunDir) -> tuple[float, int]:
    """Seconds and bytes of a checkpoint as the run writes it."""
    trials.hears("writing a checkpoint")
    setup, config = trials.setup, trials.setup.config
    has_statistics = reestimates(config, config.rounds)
    sizes = zip(setup.method.tested(), setup.evaluation.num_statistics, strict=True)
    statistics = {net.name: torch.zeros(count) for net, count in sizes if has_statistics and count}
    snapshot = checkpoint.Snapshot(
        round=1,
        server=trials.state.params,
        clients={},
        progress={},
        config=config.to_dict(),
        config_hash=config.hash(),
        seed=config.seed,
        versions=setup.computed_with,
        data_digest=setup.data_digest,
        statistics=statistics,
    )
    started = time.perf_counter()
    path = checkpoint.save(folder, snapshot)
    return time.perf_counter() - started, path.stat().st_size
