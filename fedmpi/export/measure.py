"""Times a net, and checks that its file gives the accuracy that was reported."""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from fedmpi.export.formats import Answers, Pt2
from fedmpi.export.nets import TrainedNet

if TYPE_CHECKING:
    from torch.utils.benchmark import Measurement

BATCHES = (1, 64)
_TIMED_S = 0.5
_TOLERANCE = 2 / 10_000


@torch.no_grad()
def latency(answers: Answers, inputs: Tensor) -> Measurement:
    """Times passes on one thread of the CPU."""
    # Else the import warns on each machine that has CUDA's compiler and no GPU.
    logging.getLogger("torch.utils.cpp_extension").setLevel(logging.ERROR)
    from torch.utils import benchmark

    given = {"answers": answers, "inputs": inputs}
    # By default the timer waits for whatever accelerator there is.
    timer = benchmark.Timer("answers(inputs)", globals=given, num_threads=1, timer=time.perf_counter)
    return timer.blocked_autorange(min_run_time=_TIMED_S)


@dataclass(frozen=True)
class Checked:
    """Answers to the test examples of a net, beside its own."""

    expected: int
    """Correct answers of the net."""
    correct: int
    num_tested: int
    num_other: int
    """Predictions that are not the net's own."""
    largest_difference: float
    """Between two logits."""
    num_allowed: int = 0
    """Predictions that may differ."""

    @property
    def holds(self) -> bool:
        return max(abs(self.correct - self.expected), self.num_other) <= self.num_allowed

    def verdict(self) -> str:
        """Says it in words."""
        counts = f"{self.correct} of {self.num_tested} right, expected {self.expected}"
        return f"{'ok' if self.holds else 'FAIL'}: {counts}; {self.difference()}"

    def difference(self) -> str:
        return f"{self.num_other} other predictions, outputs differ by {self.largest_difference:.2g} at most"


def check(path: Path, trained: TrainedNet, form: Pt2) -> Checked:
    """Tests a file. One that torch runs must give the reported number of correct answers exactly; one of ONNX, and one
    of a net that is cut, but for 2 of 10,000 predictions (at least one).
    """
    is_exact = form.is_exact and not trained.is_cut
    num_allowed = 0 if is_exact else max(1, int(trained.accuracy.num_tested * _TOLERANCE))
    return replace(compared(form.load(path, trained), trained), num_allowed=num_allowed)


@torch.no_grad()
def compared(answers: Answers, trained: TrainedNet) -> Checked:
    """Compares answers to the test examples with those of the net."""
    correct = 0
    num_other = 0
    largest = 0.0
    for inputs, targets in trained.batches():
        found = answers(inputs)
        own = trained.net(inputs)
        correct += int((found.argmax(1) == targets).sum())
        num_other += int((found.argmax(1) != own.argmax(1)).sum())
        largest = max(largest, float((found - own).abs().max()))
    return Checked(trained.accuracy.correct, correct, trained.accuracy.num_tested, num_other, largest)
