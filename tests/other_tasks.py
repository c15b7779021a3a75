"""Data with numbers or labels for targets, and a loss and a metric of a user's."""

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F


def _features(num: int) -> tuple[np.ndarray, np.ndarray]:
    generator = np.random.default_rng(0)
    return generator.standard_normal((num, 6)).astype(np.float32), generator.standard_normal((6, 3))


def _parts(x: np.ndarray, y: np.ndarray) -> dict[str, np.ndarray]:
    cut = len(x) * 3 // 4
    return {"train_x": x[:cut], "train_y": y[:cut], "test_x": x[cut:], "test_y": y[cut:]}


def numbers(num: int = 120, outputs: int = 0) -> dict[str, np.ndarray]:
    """Sums of features; with `outputs` 0 a number (N,), else rows of so many."""
    x, weights = _features(num)
    y = x @ weights
    return _parts(x, y[:, :outputs] if outputs else y[:, 0])


def tags(num: int = 120) -> dict[str, np.ndarray]:
    """Three labels, each where a sum of features is above 0."""
    x, weights = _features(num)
    return _parts(x, (x @ weights > 0).astype(np.int8))


def given(kind: str = "text") -> dict[str, np.ndarray]:
    """Targets of every wrong kind."""
    x, _ = _features(40)
    rows = np.arange(40)
    targets = {
        "text": rows.astype(str),
        "one-hot": np.eye(4, dtype=np.int64)[rows % 4],
        "one-hot floats": np.eye(4)[rows % 4],
        "counts": np.stack([rows, rows], 1),
        "nan": np.where(rows == 3, np.nan, rows),
        "cube": np.zeros((40, 2, 2)),
    }
    return _parts(x, targets[kind])


def huber(outputs: Tensor, targets: Tensor) -> Tensor:
    """One loss for each example."""
    return F.huber_loss(outputs, targets, reduction="none").mean(1)


def smooth(outputs: Tensor, targets: Tensor) -> Tensor:
    """The mean over the batch, of classes."""
    return F.cross_entropy(outputs, targets, label_smoothing=0.1)


def for_each_number(outputs: Tensor, targets: Tensor) -> Tensor:
    return (outputs - targets).square()


def without_gradients(outputs: Tensor, targets: Tensor) -> Tensor:
    return (outputs.detach() - targets).square().mean()


def failing(outputs: Tensor, targets: Tensor) -> Tensor:
    raise ValueError("no way")


def squares(outputs: Tensor, targets: Tensor) -> Tensor:
    return (outputs - targets).square().mean()


def endless(outputs: Tensor, targets: Tensor) -> Tensor:
    return outputs.sum() * torch.inf


_CALLS = []
_LAYER = nn.Linear(1, 1)
_CACHE: dict[str, Tensor] = {}


def counting(outputs: Tensor, targets: Tensor) -> Tensor:
    """Halves the loss after a while."""
    _CALLS.append(1)
    return squares(outputs, targets) * (1 if len(_CALLS) < 30 else 0.5)


def learning(outputs: Tensor, targets: Tensor) -> Tensor:
    """Nobody trains its layer."""
    return squares(_LAYER(outputs), targets)


def steady(outputs: Tensor, targets: Tensor) -> Tensor:
    """Computes a constant once, and draws from torch's generator."""
    weight = _CACHE.setdefault("weight", torch.full((1,), 0.5))
    return squares(outputs + weight * torch.randn_like(outputs), targets)


def median_error(targets: np.ndarray, outputs: np.ndarray) -> float:
    return float(np.median(np.abs(targets - outputs)))
