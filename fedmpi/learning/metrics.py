"""Scores of a tested net beside accuracy and loss (`evaluation.metrics`), from its logits of all test examples; the
trials of a user's metrics and loss.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedmpi import registry, seeds
from fedmpi.config.schema import Train
from fedmpi.data.dataset import DataInfo
from fedmpi.errors import ConfigError, UnknownError, one_line, users_code
from fedmpi.learning.twice import variables_of
from fedmpi.models import trial

Metric = Callable[[np.ndarray, np.ndarray], Any]
"""targets (classes int64 (N,), else float32 (N, outputs)), outputs float32 (N, outputs) -> a number."""


def f1_macro(labels: np.ndarray, logits: np.ndarray) -> float:
    """Returns the mean over the classes or labels of F1; 0 for one that is neither there nor predicted."""
    from sklearn.metrics import f1_score

    predicted = logits.argmax(1) if labels.ndim == 1 else (logits > 0).astype(labels.dtype)
    return float(f1_score(labels, predicted, labels=range(logits.shape[1]), average="macro", zero_division=0))


def auc(labels: np.ndarray, logits: np.ndarray) -> float:
    """Returns the mean area under the ROC curve, by softmax, of each class against the rest, or of each label; those
    that no test example or all of them have are left out. NaN for logits that are not finite.
    """
    from sklearn.metrics import roc_auc_score

    if not np.isfinite(logits).all():
        return float("nan")
    if labels.ndim == 1:
        logits = torch.from_numpy(logits).double().softmax(1).numpy()
        labels = labels[:, None] == np.arange(logits.shape[1])
    mixed = [each for each in range(logits.shape[1]) if 0 < labels[:, each].sum() < len(labels)]
    return float(np.mean([roc_auc_score(labels[:, each], logits[:, each]) for each in mixed])) if mixed else math.nan


def top5(labels: np.ndarray, logits: np.ndarray) -> float:
    """Returns the share of examples whose class is among the five of the largest logits; of equals the first."""
    best = np.argsort(-logits, axis=1, kind="stable")[:, :5]
    return float((best == labels[:, None]).any(axis=1).mean())


def confusion(labels: np.ndarray, logits: np.ndarray) -> list[list[int]]:
    """Returns how many examples of each class (rows) are taken for which class (columns)."""
    from sklearn.metrics import confusion_matrix

    counts: list[list[int]] = confusion_matrix(labels, logits.argmax(1), labels=range(logits.shape[1])).tolist()
    return counts


def mse(targets: np.ndarray, outputs: np.ndarray) -> float:
    """Returns the mean squared error over examples and outputs."""
    return float(np.square(outputs.astype(np.float64) - targets).mean())


def mae(targets: np.ndarray, outputs: np.ndarray) -> float:
    """Returns the mean absolute error over examples and outputs."""
    return float(np.abs(outputs.astype(np.float64) - targets).mean())


BUILT_IN: dict[str, Metric] = {metric.__name__: metric for metric in (f1_macro, auc, top5, confusion, mse, mae)}


def named(names: Sequence[str]) -> dict[str, Metric]:
    """Returns the metrics of a config by name. Raises `ConfigError` for one that cannot be imported."""
    found: dict[str, Metric] = {}
    for name in names:
        try:
            found[name] = BUILT_IN.get(name) or registry.import_object(name)
        except UnknownError as error:
            raise ConfigError("evaluation.metrics", str(error)) from None
        if not callable(found[name]) or isinstance(found[name], type):
            raise ConfigError("evaluation.metrics", f"{name!r} is no function; expected metric(targets, outputs)")
    return found


def check(names: Sequence[str], info: DataInfo) -> None:
    """Tries each metric of the user's on random outputs. Raises `ConfigError` unless it gives a number."""
    count = max(10, 2 * info.num_classes)
    for name, metric in named(names).items():
        if name not in BUILT_IN:
            what = f"gives no number for {count} examples"
            call = f"{name}, called as metric(targets, outputs), {what}"
            with users_code("evaluation.metrics", call, ConfigError):
                value = metric(*drawn(info, count))
            try:
                is_finite = math.isfinite(float(value))
            except (TypeError, ValueError):
                is_finite = False
            if not is_finite:
                returned = one_line(repr(value))[:60]
                problem = f"{name} {what} of random outputs: it returns {returned}; expected a finite number"
                raise ConfigError("evaluation.metrics", problem)


def check_loss(train: Train, info: DataInfo) -> None:
    """Tries the user's loss (`train.loss`) on random outputs. Raises `ConfigError` unless it gives a number, or one for
    each example, with gradients.
    """
    if train.loss == "auto":
        return
    loss = registry.import_object(train.loss)
    count = info.num_classes + 3  # not as many as there are outputs, with which a loss might broadcast
    targets, outputs = map(torch.from_numpy, drawn(info, count))
    what = f"for {count} examples"
    call = f"{train.loss}, called as loss(outputs, targets),"
    values = []
    kept = []
    for _ in range(2):
        with seeds.global_generators(0), users_code("train.loss", f"{call} failed {what}", ConfigError):
            values.append(loss(outputs.requires_grad_(), targets))
        kept.append(variables_of(loss))
    value = values[0]
    is_loss = isinstance(value, Tensor) and value.shape in ((), (count,)) and value.grad_fn
    if not is_loss or not math.isfinite(value.detach().mean()):
        given = f"{tuple(value.shape)}" if isinstance(value, Tensor) else type(value).__name__
        expected = f"a finite tensor () or ({count},) with gradients"
        raise ConfigError("train.loss", f"{train.loss} gives {given} {what}; expected {expected}")
    if kept[0] != kept[1] or not torch.equal(*values):
        problem = "keeps something from one call to the next, which the next client on the same rank would inherit"
        raise ConfigError("train.loss", f"{train.loss} {problem}; compute from its outputs and targets alone")
    if trial.graph_leaves_of(values[0]) & trial.graph_leaves_of(values[1]) - {outputs}:
        problem = "computes with a parameter of its own, which nobody trains; make it a part of the net"
        raise ConfigError("train.loss", f"{train.loss} {problem}")


def drawn(info: DataInfo, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns `count` targets of the kind that the data have, and random outputs, as a metric gets them."""
    generator = np.random.default_rng(0)
    outputs = generator.standard_normal((count, *info.output_shape), dtype=np.float32)
    if info.task in ("classification", "token_classification"):
        shape = outputs.shape[:-1]
        return np.arange(math.prod(shape)).reshape(shape) % info.num_classes, outputs
    return (generator.random(outputs.shape) < 0.5).astype(np.float32), outputs


def measure(metrics: dict[str, Metric], labels: np.ndarray, logits: Tensor, class_names: Sequence[str]) -> Any:
    """Returns each metric's value for a record; the confusion matrix has the classes' names, or numbers, with it."""
    values: dict[str, Any] = {}
    for name, metric in metrics.items():
        value = metric(labels.copy(), logits.clone().numpy())  # one may write into what it gets
        if name == "confusion":
            values[name] = {"classes": list(class_names or map(str, range(logits.shape[1]))), "counts": value}
        else:
            values[name] = float(value)
    return values
