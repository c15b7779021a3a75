"""From what was measured here (`running/measure.py`) to seconds a round, hours, memory and space of a whole run.

Workers train at once as far as there are cores (each rank has `mpi.threads`) or GPUs; a round's clients are dealt to
that many workers, longest first, as the run deals them. Rank 0 adds uploads while workers train if it has a core of its
own, else after them (as `mpi.exchange=gather` does). The network is left out, and that ranks share memory bandwidth: a
node full of ranks is slower.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np
import torch

from fedmpi.config.schema import Config
from fedmpi.data.dataset import load_data
from fedmpi.data.partition import Partition, make_partition
from fedmpi.errors import ConfigError, counted
from fedmpi.federation.assignment import Task, assign, worker_ranks
from fedmpi.methods import create
from fedmpi.mpi import mpirun
from fedmpi.report.terminal import wrapped
from fedmpi.rounds.state import draw_tasks
from fedmpi.running import start
from fedmpi.running.forecast import Forecast, machine_bytes
from fedmpi.running.half_precision import bf16_share
from fedmpi.running.measure import measure
from fedmpi.running.measured import ClientTrial, Measured
from fedmpi.running.rarer_tests import MANY_TESTS, CostOfTests, count_tests, many_tests
from fedmpi.store.units import size, took

_LOOKED_AT = 20
"""Rounds, evenly spaced, whose cohorts are dealt to the workers."""
_WHILE_SAVING = 2
"""Checkpoints beside the newest ones: the best one, and the one that is being written."""


@dataclass(frozen=True)
class Prediction:
    """What a run is expected to take on this machine."""

    measured: Measured
    cores: int
    workers: int
    workers_at_once: int
    rank_0_has_a_core: bool
    training_s: float
    """Of the clients; with the adding of their uploads where rank 0 has no core of its own."""
    aggregation_s: float
    """What is left of adding and updating once the workers are done."""
    publishing_s: float
    test_s: float
    restat_s: float
    personal_test_s: float
    saving_s: float
    round_s: float
    """Of a round that has all these parts. Of the run's `rounds`, `tests` have a test, `restats` of these re-estimate
    BatchNorm's statistics, and `saves` save.
    """
    rounds: int
    tests: int
    restats: int
    saves: int
    hours: float
    test_share: float
    """The part of these hours that tests take, with the re-estimation of statistics."""
    all_ranks_bytes: int
    machine_bytes: int
    most_checkpoints: int
    disk_bytes: int
    free_bytes: int

    def cost_of_tests(self) -> CostOfTests:
        """What tests take of the run's seconds."""
        rest_s = 3600 * self.hours * (1 - self.test_share)
        return CostOfTests(self.test_s + self.personal_test_s, self.restat_s, rest_s, self.measured.publishing_s)

    def lines(self) -> list[str]:
        """The lines of the plan's text."""
        found = self.measured
        rows = [
            f"  tier {trial.tier}: {1000 * trial.training_s / max(1, trial.steps):.4g} ms a step "
            f"({counted(trial.steps, 'step')}, {counted(trial.examples, 'example')}), "
            f"{1000 * trial.other_s:.4g} ms around it, {1000 * trial.adding_s:.4g} ms to add its upload"
            + " (estimated by MACs)"
            * trial.is_estimated
            for trial in found.clients
        ]
        threads = counted(found.threads, "thread")
        space = f"{counted(self.most_checkpoints, 'checkpoint')} of {size(found.checkpoint_bytes)}"
        memories = f" and client memories of {size(found.memory_bytes)}" if found.memory_bytes else ""
        few = self.machine_bytes < self.all_ranks_bytes, self.free_bytes < self.disk_bytes
        return [
            f"measured on {found.device}, {threads}:",
            *rows,
            f"expected, if {self.workers_at_once} of {self.workers} workers train at once on "
            f"{counted(self.cores, 'core')} and rank 0 has {'a' if self.rank_0_has_a_core else 'no'} core of its own:",
            f"  a round with all parts: {self.round_s:.3g} s = training {self.training_s:.3g}, aggregation "
            f"{self.aggregation_s:.3g}, publishing {self.publishing_s:.3g}, test "
            f"{self.test_s + self.personal_test_s:.3g}, re-estimation {self.restat_s:.3g}, saving {self.saving_s:.3g}",
            f"  the run: {took(3600 * self.hours)} for {counted(self.rounds, 'round')}, of which {self.tests:,} test, "
            f"{self.restats:,} re-estimate BatchNorm's statistics and {self.saves:,} save; without start and network",
            f"  memory:  {size(found.worker_peak_bytes)} a worker, {size(found.rank_0_peak_bytes)} rank 0 (most ever "
            f"resident); all ranks {size(self.all_ranks_bytes)} of this machine's {size(self.machine_bytes)}",
            f"  disk:    {space}{memories}: {size(self.disk_bytes)} of {size(self.free_bytes)} free",
            *["warning: all ranks need more memory than this machine has"] * few[0],
            *["warning: checkpoints need more space than there is free in output.dir"] * few[1],
        ]


@dataclass(frozen=True)
class MeasuredPlan:
    """A plan with what was measured."""

    plan: Forecast
    prediction: Prediction
    bf16_share: float | None = None
    """A step's time in bf16 as a share of that in float32 (`half_precision`); None unless the run is in float32
    and its net can be trained in bf16."""

    def text(self, form: str) -> str:
        """The plan as `form` says, "text" or "json"; there `measured` and `bf16_share` are keys beside the plan's."""
        if form == "json":
            measured = {"measured": asdict(self.prediction), "bf16_share": self.bf16_share}
            return json.dumps({**asdict(self.plan), **measured}, indent=2)
        lines = self.prediction.lines()
        if self.bf16_share is not None:
            lines.append(f"  bf16:    a step would take {self.bf16_share:.2f} of its time with train.precision=bf16")
        return "\n".join([self.plan.text("text"), *wrapped(*lines)])


def measured_plan(config: Config, plan: Forecast, hears: Callable[[str], None] = lambda line: None) -> MeasuredPlan:
    """Tries the parts of the run here, and tells `hears` of each. Raises `ConfigError` where the memory of this machine
    cannot hold one rank.
    """
    least = plan.data_bytes_node + plan.model_bytes_server + plan.model_bytes_worker
    if least > machine_bytes():
        needs = f"one process needs {size(least)} of memory, and this machine has {size(machine_bytes())}"
        raise ConfigError("--measure", f"{needs}; leave --measure away, or measure on a larger machine")
    found = predict(config, plan, measure(config, hears))
    others = [line for line in plan.warnings if not line.startswith(MANY_TESTS)]
    warnings = (*others, *many_tests(config, found.cost_of_tests(), "measured seconds"))
    is_fp32, device = config.train.precision == "fp32", "cuda" if found.measured.gpu_peak_bytes else "cpu"
    share = bf16_share(config, device) if is_fp32 else None
    return MeasuredPlan(replace(plan, warnings=warnings), found, share)


def predict(config: Config, plan: Forecast, found: Measured, num_cores: int | None = None) -> Prediction:
    """The whole run on the plan's ranks; `num_cores` are those that this process may use unless given."""
    cores = num_cores or mpirun.cores()
    workers = len(worker_ranks(plan.ranks, server_trains=config.mpi.server_trains))
    at_once = min(workers, torch.cuda.device_count() if found.gpu_peak_bytes else max(1, cores // found.threads))
    has_core = 1 < plan.ranks <= cores // found.threads
    partition, num_test = _partition(config), config.data.used().num_test
    training_s, adding_s, num_phases = _of_rounds(config, partition, found, at_once)
    together_s = max(training_s, adding_s) if has_core else training_s + adding_s
    test_s = found.nets.test_s * num_test / at_once
    restat_s = found.nets.restat_s * len(partition.indices) / at_once
    personal_s = _personal_s(config, found, len(partition.indices) + num_test) / at_once
    aggregation_s, publishing_s = num_phases * found.updating_s, num_phases * found.publishing_s
    times, base_s = _times(config, restat_s), together_s + aggregation_s + publishing_s
    # The last test needs what is published for a round that does not come.
    tests_s = found.publishing_s + times["tests"] * (test_s + personal_s) + times["restats"] * restat_s
    total_s = config.rounds * base_s + tests_s + times["saves"] * found.saving_s
    most = min(config.output.keep_checkpoints + _WHILE_SAVING, times["saves"])
    return Prediction(
        measured=found,
        cores=cores,
        workers=workers,
        workers_at_once=at_once,
        rank_0_has_a_core=has_core,
        training_s=training_s if has_core else together_s,
        aggregation_s=aggregation_s + (together_s - training_s if has_core else 0.0),
        publishing_s=publishing_s,
        test_s=test_s,
        restat_s=restat_s,
        personal_test_s=personal_s,
        saving_s=found.saving_s,
        round_s=base_s + test_s + personal_s + restat_s + found.saving_s,
        **times,
        hours=total_s / 3600,
        test_share=tests_s / max(total_s, 1e-9),
        all_ranks_bytes=_peak_bytes(found, plan),
        machine_bytes=machine_bytes(),
        most_checkpoints=most,
        disk_bytes=most * found.checkpoint_bytes + _num_memories(config, most) * found.memory_bytes,
        free_bytes=free_bytes(config.output.dir),
    )


def _times(config: Config, restat_s: float) -> dict[str, int]:
    """How often the run does what not every round does; a net without BatchNorm re-estimates nothing."""
    num_tests, num_restats = count_tests(config)
    saves = -(-config.rounds // config.output.checkpoint_every)
    return {"rounds": config.rounds, "tests": num_tests, "restats": num_restats if restat_s else 0, "saves": saves}


def _peak_bytes(found: Measured, plan: Forecast) -> int:
    """Of all ranks on one node, where the data count once."""
    peaks, others = (found.rank_0_peak_bytes, found.worker_peak_bytes), plan.ranks - 1
    return peaks[0] + others * (peaks[1] - plan.data_bytes_node) if others else max(peaks)


def _num_memories(config: Config, most_checkpoints: int) -> int:
    """Files of client memories at most: the newest of each client, and older ones that checkpoints refer to."""
    per_round = config.clients.per_round
    return min(config.clients.count, config.rounds * per_round) + most_checkpoints * per_round


def client_s(trial: ClientTrial, num_examples: float, epochs: int) -> float:
    """Seconds of a client with so many examples: its steps in proportion, what is around them once."""
    return trial.other_s + trial.training_s * num_examples * epochs / max(1, trial.examples)


def _partition(config: Config) -> Partition:
    dataset = load_data(config.data)
    return make_partition(config.partition, dataset.train_y, config.clients.count, config.seed, dataset.groups)


def _of_rounds(config: Config, partition: Partition, found: Measured, at_once: int) -> tuple[float, float, float]:
    """Means over the rounds looked at: seconds until the last worker is done, seconds of adding, phases."""
    method = create(start.method_context(config, config.data.used()))
    names = [tier.name for tier in method.tiers]
    trials = {one.tier: one for one in found.clients} | {(one.tier, one.phase): one for one in found.clients}
    looked_at = range(1, config.rounds + 1, -(-config.rounds // _LOOKED_AT))
    blocks, rows = start.blocks(config), []
    for number in looked_at:
        phases = method.phases(number)
        row = np.array([0.0, 0.0, len(phases)])
        for phase in phases:
            tasks = []
            for task in draw_tasks(config, blocks, partition, number, phase):
                trial = trials.get((names[task.tier], phase.name)) or trials[names[task.tier]]
                tasks.append(replace(task, cost=client_s(trial, task.num_examples, config.train.local_epochs)))
                row[1] += trial.adding_s
            row[0] += _longest(assign(tasks, range(at_once), at_once).by_rank)
        rows.append(row)
    training_s, adding_s, num_phases = np.mean(rows, axis=0).tolist()
    return training_s, adding_s, num_phases


def _longest(by_rank: Sequence[Sequence[Task]]) -> float:
    return max((sum(task.cost for task in own) for own in by_rank), default=0.0)


def _personal_s(config: Config, found: Measured, num_examples: int) -> float:
    """Seconds to test the clients with their own nets, over all of them that are tested."""
    if not found.personal:
        return 0.0
    mean_s = sum(net.test_s for net in found.personal) / len(found.personal)
    return mean_s * num_examples * (config.evaluation.clients or config.clients.count) / config.clients.count


def free_bytes(folder: str) -> int:
    """Free space where `folder` is, or would be made."""
    place = Path(os.path.abspath(os.path.expanduser(folder)))
    while not place.exists():
        place = place.parent
    return shutil.disk_usage(place).free
