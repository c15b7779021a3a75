"""The whole test set through an exported file: it must give the accuracy that was reported, or say by how much its
outputs differ.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch

from fedmpi.export.formats import Answers, Format
from fedmpi.export.trained import TrainedNet

_TOLERANCE = 2 / 10_000


@dataclass(frozen=True)
class Checked:
    """What the file gives on the test examples."""

    correct: int
    expected: int
    num_tested: int
    num_other: int
    """Predictions that are not the net's own."""
    largest_difference: float
    """Between two logits of the file and of the net."""
    holds: bool


def check(path: Path, trained: TrainedNet, form: Format) -> Checked:
    """Whether a file that torch runs gives the reported number of correct answers exactly; one of ONNX, and one of a
    net that is cut, but for 2 of 10,000 predictions (at least one).
    """
    correct, num_other, largest = compared(form.load(path, trained), trained)
    expected, total = trained.accuracy.correct, trained.accuracy.num_tested
    allowed = 0 if form.IS_EXACT and not trained.is_cut else max(1, int(total * _TOLERANCE))
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
