"""Scores of a tested net beside accuracy and loss (`evaluation.metrics`), from its logits of all test examples.

Each rank fills in the logits of the batches that it tests, bit by bit; an integer sum brings them together, and rank 0
computes. So the scores do not depend on the number of ranks.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedmpi import registry
from fedmpi.errors import ConfigError, UnknownError

Metric = Callable[[np.ndarray, np.ndarray], Any]
"""labels int64 (N,), logits float32 (N, classes) -> a number."""


def f1_macro(labels: np.ndarray, logits: np.ndarray) -> float:
    """Returns the mean over the classes of F1; 0 for a class that is neither there nor predicted."""
    from sklearn.metrics import f1_score

    classes = range(logits.shape[1])
    return float(f1_score(labels, logits.argmax(1), labels=classes, average="macro", zero_division=0))


def auc(labels: np.ndarray, logits: np.ndarray) -> float:
    """Returns the mean area under the ROC curve, by softmax, of each class against the rest; classes that no test
    example or all of them have are left out. NaN for logits that are not finite.
    """
    from sklearn.metrics import roc_auc_score

    present = np.unique(labels)
    if len(present) < 2 or not np.isfinite(logits).all():
        return float("nan")
    shares = torch.from_numpy(logits).double().softmax(1).numpy()
    return float(np.mean([roc_auc_score(labels == label, shares[:, label]) for label in present]))


def top5(labels: np.ndarray, logits: np.ndarray) -> float:
    """Returns the share of examples whose class is among the five of the largest logits; of equals the first."""
    best = np.argsort(-logits, axis=1, kind="stable")[:, :5]
    return float((best == labels[:, None]).any(axis=1).mean())


def confusion(labels: np.ndarray, logits: np.ndarray) -> list[list[int]]:
    """Returns how many examples of each class (rows) are taken for which class (columns)."""
    from sklearn.metrics import confusion_matrix

    counts: list[list[int]] = confusion_matrix(labels, logits.argmax(1), labels=range(logits.shape[1])).tolist()
    return counts


BUILT_IN: dict[str, Metric] = {"f1_macro": f1_macro, "auc": auc, "top5": top5, "confusion": confusion}


def named(names: Sequence[str]) -> dict[str, Metric]:
    """Returns the metrics of a config by name. Raises `ConfigError` for one that cannot be imported."""
    found: dict[str, Metric] = {}
    for name in names:
        try:
            found[name] = BUILT_IN.get(name) or registry.import_object(name)
        except UnknownError as error:
            raise ConfigError("evaluation.metrics", str(error)) from None
        if not callable(found[name]):
            raise ConfigError("evaluation.metrics", f"{name!r} is no function; expected metric(labels, logits)")
    return found


def measure(metrics: dict[str, Metric], labels: np.ndarray, logits: Tensor, class_names: Sequence[str]) -> Any:
    """Returns each metric's value for a record; the confusion matrix has the classes' names, or numbers, with it."""
    values: dict[str, Any] = {}
    for name, metric in metrics.items():
        value = metric(labels, logits.numpy())
        if name == "confusion":
            values[name] = {"classes": list(class_names or map(str, range(logits.shape[1]))), "counts": value}
        else:
            values[name] = float(value)
    return values
