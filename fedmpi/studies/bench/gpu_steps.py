"""Local steps of each rank ratio on one GPU: as fedmpi computes them, replayed, and by hand; and what surrounds them.

`by hand` is what one would write without fedmpi: an ordinary module, `torch.optim.SGD`, normalized images in the GPU's
memory, `torch.amp.GradScaler` where the loss is scaled. It is measured with fedmpi's settings of torch (deterministic
kernels, no TF32), and `freely`: any kernel, the fastest of cuDNN's, TF32. fedmpi's steps are without what a method adds
to gradients.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from functools import partial

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from fedmpi.learning.determinism import settings_kept
from fedmpi.learning.local import LocalTrainer, MaskedCrossEntropy, plain_step
from fedmpi.learning.replay import DRAWS, OTHER_BITS, CudaGraphs, Record, replay_steps
from fedmpi.learning.twice import initial_values
from fedmpi.lowrank.publishing import PublishedFactors
from fedmpi.methods.fedhm import FedHM
from fedmpi.report.table_text import markdown_lines
from fedmpi.rounds.state import Setup
from fedmpi.studies.bench import energy
from fedmpi.studies.bench.factorize import factors_of, squared_error
from fedmpi.studies.bench.sections import Measuring, SectionError
from fedmpi.tensors import Params, host_buffer

_LR = 1e-4
_WARM_UP = 5
_TURNS = 3
_COPIES = 20

Steps = Callable[[int], None]
"""Takes so many steps, and returns when the device is done."""


def speed(measuring: Measuring) -> list[str]:
    """Images per second, the median of three turns through the columns."""
    rows, notes, replays = [], [], Replays()
    for precision in ("fp32", _half_precision()):
        with measuring.but(f"train.precision={precision}").setup() as setup:
            for number, tier in enumerate(setup.method.tiers):
                ways, why_not = _ways(setup, number, replays)
                notes += [f"- {precision}, rank ratio {tier.name} is not replayed: {why_not}"] if why_not else []
                images_per_s = _images_per_s(ways, setup.config.train.batch_size, measuring.seconds)
                cells = [measuring.shown(value, "{:,.0f}") for value in images_per_s.values()]
                cells[1] = _of_replay(measuring, cells[1], why_not)
                rows.append([tier.name, precision, *cells])
    heads = ["rank ratio", "precision", "computed", "replayed", "by hand", "by hand, freely"]
    return [*markdown_lines(heads, rows, 2), *_notes(measuring, notes)]


def _half_precision() -> str:
    """The one that a GPU has kernels for: fp16 before sm_80 (V100)."""
    is_older = torch.cuda.is_available() and torch.cuda.get_device_capability()[0] < 8
    return "fp16" if is_older else "bf16"


def _ways(setup: Setup, number: int, replays: Replays) -> tuple[dict[str, Steps], str]:
    """The columns of `speed`, and why `replayed` computes, too, if it does."""
    trainer, by_hand = setup.trainers[number], ByHand(setup, number)
    computed, replayed = trainer, trainer.with_net(trainer.net, trainer.batch_size)
    why_not = replays.begin(replayed, setup.method.tiers[number].name)
    ways: dict[str, Steps] = {
        "computed": partial(train, computed),
        "replayed": partial(train, replayed),
        "by hand": by_hand.run,
        "freely": partial(_freely, by_hand.run),
    }
    return ways, why_not


class Replays:
    """Lets trainers replay their steps, each with a memory of its own, or with `record`; on a CPU none does.

    None does after a recording that failed: torch's allocator and generators may take themselves to be recording still,
    and the next one would fail for that reason instead of its own.
    """

    def __init__(self, record: Record | None = None) -> None:
        self._record, self.failed = record, ""

    def begin(self, trainer: LocalTrainer, tier: str) -> str:
        """Why the trainer does not replay, empty if it does. Its net has initial values afterwards."""
        data, why_not = trainer.data, self.failed or "no GPU"
        if not self.failed and data.device.type != "cpu":
            record = self._record or CudaGraphs(data.device)
            [why_not] = replay_steps([trainer], np.arange(len(data.train_y)), 0, record)
            if why_not not in ("", DRAWS, OTHER_BITS):
                self.failed = f"not tried after the recording of rank ratio {tier} failed"
        initial_values(trainer.net, 0)
        return why_not


def train(trainer: LocalTrainer, steps: int) -> None:
    """So many batches of any examples, from the values that the net has."""
    count, size = len(trainer.data.train_y), trainer.batch_size
    draws = trainer.data.draws(np.resize(np.arange(count), steps * size), 1, torch.Generator().manual_seed(0))
    trainer.run(draws, _LR, MaskedCrossEntropy(None), plain_step, lambda net: None)


class ByHand:
    """Plain PyTorch on the data and nets of a run."""

    def __init__(self, setup: Setup, number: int) -> None:
        data, train = setup.data, setup.config.train
        self._batch_size, self._device = train.batch_size, data.device
        self._dtype = {"bf16": torch.bfloat16, "fp16": torch.float16}.get(train.precision)
        net = setup.method.net(number)
        # Factors come as zeros, which would train unlike others. A GPU's generator fails after a failed recording.
        for parameter in net.parameters():
            nn.init.normal_(parameter, std=0.02)
        self._net = net.to(self._device).to(memory_format=torch.channels_last)
        self._sgd = torch.optim.SGD(self._net.parameters(), lr=_LR, momentum=train.momentum, weight_decay=1e-4)
        is_scaled = train.precision == "fp16"
        self._scaler = torch.amp.GradScaler(self._device.type, init_scale=train.loss_scale, enabled=is_scaled)
        whole = data.draws(np.arange(len(data.train_y)), 1, torch.Generator(), shuffle=False)
        self._images, self._labels = data.train_batch(whole, 0, 0, len(data.train_y))

    def run(self, steps: int) -> None:
        self._net.train()
        numbers = torch.randint(len(self._labels), (steps, self._batch_size)).to(self._device)
        for batch in numbers:
            self._step(self._images[batch], self._labels[batch])
        _wait(self._device)

    def _step(self, images: Tensor, labels: Tensor) -> None:
        self._sgd.zero_grad()
        with torch.autocast(self._device.type, self._dtype, enabled=self._dtype is not None):
            loss = functional.cross_entropy(self._net(images), labels)
        torch.autograd.backward(self._scaler.scale(loss))
        self._scaler.step(self._sgd)
        self._scaler.update()


def _freely(run: Steps, steps: int) -> None:
    with settings_kept():
        torch.set_deterministic_debug_mode("default")
        torch.backends.cudnn.benchmark = True
        torch.backends.cudnn.allow_tf32 = True
        torch.backends.cuda.matmul.allow_tf32 = True
        run(steps)


def _images_per_s(ways: dict[str, Steps], batch_size: int, least_s: float) -> dict[str, float]:
    found: dict[str, list[float]] = {name: [] for name in ways}
    counts = {name: _enough(run, least_s) for name, run in ways.items()}
    for _ in range(_TURNS):
        for name, run in ways.items():
            found[name].append(counts[name] * batch_size / _seconds(partial(run, counts[name])))
    return {name: statistics.median(values) for name, values in found.items()}


def _enough(run: Steps, least_s: float) -> int:
    """Steps that take `least_s`, warmed up."""
    run(_WARM_UP)
    return max(_WARM_UP, round(least_s * _WARM_UP / _seconds(partial(run, _WARM_UP))))


def memory(measuring: Measuring) -> list[str]:
    """What torch has allocated and reserved at most, while a graph was recorded, too: what a replay uses lies in the
    recording's own pool, which no longer counts as allocated. Graphs keep their memory, so they come last and share it,
    as in a run.
    """
    rows, notes = [], []
    with measuring.setup() as setup:
        device = setup.data.device
        replays = Replays(CudaGraphs(device) if device.type != "cpu" else None)
        for way in ("computed", "replayed"):
            for tier, trainer in zip(setup.method.tiers, setup.trainers, strict=False):
                if not replays.failed:  # after a recording that failed torch's allocator refuses this
                    _forget_peaks(device)
                why_not = replays.begin(trainer, tier.name) if way == "replayed" else ""
                if why_not:
                    notes.append(f"- rank ratio {tier.name} is not replayed: {why_not}")
                cells = _peaks(measuring, trainer) if not why_not or measuring.is_dry else ["not replayed"] * 2
                rows.append([tier.name, way, *cells])
    heads = ["rank ratio", "steps", "allocated at most", "reserved at most"]
    return [*markdown_lines(heads, rows, 2), *_notes(measuring, notes)]


def _forget_peaks(device: torch.device) -> None:
    if device.type != "cpu":
        of_device = torch.get_device_module(device)
        of_device.empty_cache()
        of_device.reset_peak_memory_stats(device)


def _peaks(measuring: Measuring, trainer: LocalTrainer) -> list[str]:
    """Since they were forgotten."""
    device, found = trainer.data.device, (0, 0)
    train(trainer, _WARM_UP)
    if device.type != "cpu":
        of_device = torch.get_device_module(device)
        found = of_device.max_memory_allocated(device), of_device.max_memory_reserved(device)
    return [measuring.shown(1e-6 * value, "{:,.0f} MB") for value in found]


def energy_of_steps(measuring: Measuring) -> list[str]:
    """Joules of 1,000 images, of the whole card. Says why where NVML cannot tell."""
    rows, notes, replays = [], [], Replays()
    with measuring.setup() as setup:
        size, device = setup.config.train.batch_size, setup.data.device
        for number, tier in enumerate(setup.method.tiers):
            ways, why_not = _ways(setup, number, replays)
            notes += [f"- rank ratio {tier.name} is not replayed: {why_not}"] if why_not else []
            cells = []
            for run in (ways["computed"], ways["replayed"], ways["by hand"]):
                steps = _enough(run, 0.0 if measuring.is_dry else energy.LEAST_S)
                try:
                    used = energy.joules(partial(run, steps), device)
                    cells.append(measuring.shown(1000 * used / steps / size, "{:.2f} J"))
                except energy.NoEnergyError as error:
                    cells.append(measuring.shown("not measured"))
                    notes.append(f"- not measured: {error}")
            cells[1] = _of_replay(measuring, cells[1], why_not)
            rows.append([tier.name, *cells])
    heads = ["rank ratio", "computed", "replayed", "by hand"]
    return [*markdown_lines(heads, rows, 1), *_notes(measuring, notes)]


def factorization(measuring: Measuring) -> list[str]:
    """Seconds of one factorization of the whole net at the largest rank ratio below 1, by solver and device, and how
    far the squared errors of all layers are from those of the CPU. `auto` has bases, as from the second round on, of
    the same weights; turning them is part of its time. Raises `SectionError` without such a tier.
    """
    rows = []
    with measuring.but("method.solver=auto", "mpi.factorization=root").setup() as setup:
        method = setup.method
        assert isinstance(method, FedHM)
        if not (ratios := [tier.capacity for tier in method.tiers if tier.capacity < 1]):
            raise SectionError("nothing is factorized, because method.rank_ratio has nothing below 1")
        ratio, errors = max(ratios), {}
        state = method.refresh(method.initial_state())
        for solver in ("gram", "exact", "auto"):
            for device in dict.fromkeys((torch.device("cpu"), setup.data.device)):
                there = {name: value.to(device) for name, value in state.items()}
                act = partial(_factors, method, solver, there, ratio, device)
                errors[device.type] = squared_error(method, state, act())  # and warms up
                seconds = _median_s(act, device, _TURNS if device.type != "cpu" else 1)
                excess = abs(errors[device.type] / errors["cpu"] - 1)
                where = device.type if device.type != "cpu" else f"cpu, {torch.get_num_threads()} thread"
                rows.append([solver, where, measuring.shown(seconds, "{:.3f} s"), measuring.shown(excess, "{:.1e}")])
    return markdown_lines(["solver", "device", "a round", "squared error: off the CPU's by"], rows, 2)


def _factors(method: FedHM, solver: str, state: Params, ratio: float, device: torch.device) -> Params:
    if solver == "auto":
        return factors_of(method.factorization, method.refresh(state), ratio, device)
    by = PublishedFactors(method.layers, "gram" if solver == "gram" else "exact", None)
    return factors_of(by, state, ratio, device)


def copies(measuring: Measuring) -> list[str]:
    """What the net's bytes take from the GPU to the host and back: what a GPU-aware MPI could save of an upload."""
    rows = []
    with measuring.setup() as setup:
        device, num_bytes = setup.data.device, setup.trainers[0].net.layout.num_bytes
        there = torch.zeros(num_bytes, dtype=torch.uint8, device=device)
        for name, is_pinned in (("page-locked", device.type != "cpu"), ("ordinary", False)):
            here = host_buffer(num_bytes, is_pinned=is_pinned)
            for way, action in (("down", partial(here.copy_, there)), ("up", partial(there.copy_, here))):
                action()
                seconds = _median_s(action, device, _COPIES)
                took = measuring.shown(1e3 * seconds, "{:.2f} ms")
                rate = measuring.shown(1e-9 * num_bytes / seconds, "{:.1f} GB/s")
                rows.append([name, way, measuring.shown(1e-6 * num_bytes, "{:.1f} MB"), took, rate])
    return markdown_lines(["host memory", "way", "upload", "a copy", "rate"], rows, 2)


def _median_s(action: Callable[[], object], device: torch.device, times: int) -> float:
    """Seconds of one call, until the device is done."""

    def act() -> None:
        action()
        _wait(device)

    return statistics.median(_seconds(act) for _ in range(times))


def _seconds(action: Callable[[], object]) -> float:
    started = time.perf_counter()
    action()
    return time.perf_counter() - started


def _wait(device: torch.device) -> None:
    torch.get_device_module(device).synchronize(device)


def _of_replay(measuring: Measuring, cell: str, why_not: str) -> str:
    """The cell, unless it is of computed steps."""
    return "not replayed" if why_not and not measuring.is_dry else cell


def _notes(measuring: Measuring, notes: list[str]) -> list[str]:
    """Each once, below a table."""
    return ["", *dict.fromkeys(notes)] if notes and not measuring.is_dry else []
