"""Measures what a net costs where it runs, and checks that its file gives the accuracy that was reported."""

from __future__ import annotations

import logging
import statistics
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode

from fedmpi import costs
from fedmpi.export.formats import Answers, Pt2
from fedmpi.export.nets import TrainedNet

BATCHES = (1, 64)
_LEAST = 5
_ENOUGH_S = 0.5


@dataclass(frozen=True)
class Latency:
    """Seconds of a pass: the median, and the first and last decile."""

    median_s: float
    low_s: float
    high_s: float


@dataclass(frozen=True)
class Measured:
    """What a net costs."""

    params: int
    macs: int
    """Of one example."""
    latency: dict[int, Latency]
    """By batch size; of the file's own runtime."""
    peak_bytes: dict[int, int]
    """By batch size: weights, input, and the most bytes of tensors that are alive at once in a pass of torch's net.
    What an operator needs inside is not seen."""


def measure(trained: TrainedNet, answers: Answers) -> Measured:
    shape = trained.saved.setup.data.info.example_shape
    found = costs.measure(trained.net, shape)
    inputs = {size: trained.example()[:1].expand(size, *shape).clone() for size in BATCHES}
    with torch.no_grad():
        latency = {size: _latency(answers, batch) for size, batch in inputs.items()}
        peaks = {size: peak_bytes(trained.net, batch) for size, batch in inputs.items()}
    return Measured(found.params, found.macs, latency, peaks)


def _latency(answers: Answers, inputs: Tensor) -> Latency:
    """Times passes for about a second, on one thread, after some that do not count."""
    # Else the import warns on each machine that has CUDA's compiler and no GPU.
    logging.getLogger("torch.utils.cpp_extension").setLevel(logging.ERROR)
    from torch.utils import benchmark

    values = {"answers": answers, "inputs": inputs}
    # Files run on the CPU, so there is no accelerator to wait for.
    timer = benchmark.Timer("answers(inputs)", globals=values, num_threads=1, timer=time.perf_counter)
    times = [*timer.timeit(_LEAST).times, *timer.blocked_autorange(min_run_time=_ENOUGH_S).times]
    deciles = statistics.quantiles(times, n=10, method="inclusive")
    return Latency(statistics.median(times), deciles[0], deciles[-1])


def peak_bytes(net: nn.Module, inputs: Tensor) -> int:
    """Weights, `inputs`, and the most bytes that operators have returned and that are alive at once."""
    weights = sum(value.nbytes for value in [*net.parameters(), *net.buffers()])
    with _Alive(inputs) as alive:
        net(inputs)
    return weights + alive.peak_bytes


class _Alive(TorchDispatchMode):
    """Sums the storages that operators have returned and that are still alive; weights do not count."""

    def __init__(self, inputs: Tensor) -> None:
        TorchDispatchMode.__init__(self)
        self._storages: dict[int, tuple[StorageWeakRef, int]] = {}
        self._add(inputs)
        self.peak_bytes = self._now()

    def __torch_dispatch__(
        self, func: Any, types: object, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        out = func(*args, **(kwargs or {}))
        if not func.is_view:  # a view is of what counts already, or of a weight
            for tensor in out if isinstance(out, (tuple, list)) else [out]:
                self._add(tensor)
            self.peak_bytes = max(self.peak_bytes, self._now())
        return out

    def _add(self, tensor: object) -> None:
        if isinstance(tensor, Tensor):
            storage = tensor.untyped_storage()
            self._storages[storage._cdata] = StorageWeakRef(storage), storage.nbytes()

    def _now(self) -> int:
        self._storages = {key: entry for key, entry in self._storages.items() if not entry[0].expired()}
        return sum(num_bytes for _, num_bytes in self._storages.values())


_TOLERANCE = 2 / 10_000


@dataclass(frozen=True)
class Checked:
    """What a file gives on the test examples."""

    correct: int
    expected: int
    num_tested: int
    num_other: int
    """Predictions that are not the net's own."""
    largest_difference: float
    """Between two logits of the file and of the net."""
    holds: bool


def check(path: Path, trained: TrainedNet, form: Pt2) -> Checked:
    """Whether a file that torch runs gives the reported number of correct answers exactly; one of ONNX, and one of a
    net that is cut, but for 2 of 10,000 predictions (at least one).
    """
    correct, num_other, largest = compared(form.load(path, trained), trained)
    expected, total = trained.accuracy.correct, trained.accuracy.num_tested
    allowed = 0 if form.is_exact and not trained.is_cut else max(1, int(total * _TOLERANCE))
    holds = max(abs(correct - expected), num_other) <= allowed
    return Checked(correct, expected, total, num_other, largest, holds)


@torch.no_grad()
def compared(answers: Answers, trained: TrainedNet) -> tuple[int, int, float]:
    """On the test examples: right answers, predictions other than the net's own, and the largest difference of a
    logit."""
    correct = num_other = 0
    largest = 0.0
    for inputs, targets in trained.batches():
        found, own = answers(inputs), trained.net(inputs)
        correct += int((found.argmax(1) == targets).sum())
        num_other += int((found.argmax(1) != own.argmax(1)).sum())
        largest = max(largest, float((found - own).abs().max()))
    return correct, num_other, largest
