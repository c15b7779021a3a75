"""`evaluation.metrics` by hand, and their way into records, rows and pages."""

import csv
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from data_fixtures import refusal
from own_data import folder_of
from small_runs import run_alone, small_config

import fedmpi
from fedmpi.config.fields import METRICS
from fedmpi.data.sets.own_files import ImageFolder
from fedmpi.errors import ConfigError, StartupError
from fedmpi.learning.metrics import BUILT_IN, auc, check, confusion, f1_macro, measure, named, top5
from fedmpi.results.page import page_of
from fedmpi.results.run import Run
from fedmpi.results.show import rounds_as_csv

LABELS = np.array([0, 0, 1, 1, 2, 2])
LOGITS = np.array([[3, 1, 0], [0, 2, 1], [1, 2, 0], [0, 1, 0], [0, 0, 1], [2, 0, 1]], np.float32)
"""Right, taken for 1, right, right, right, taken for 0."""


def share_of_first(labels: np.ndarray, logits: np.ndarray) -> float:
    return float((logits.argmax(1) == 0).mean())


def test_by_hand() -> None:
    """Class 0 has precision and recall 1/2, class 1 2/3 and 1, class 2 1 and 1/2: F1 is 1/2, 4/5 and 2/3."""
    assert confusion(LABELS, LOGITS) == [[1, 1, 0], [0, 2, 0], [1, 0, 1]]
    assert f1_macro(LABELS, LOGITS) == pytest.approx((1 / 2 + 4 / 5 + 2 / 3) / 3)
    assert top5(LABELS, LOGITS) == 1.0
    assert top5(np.array([0, 6]), np.arange(14, dtype=np.float32).reshape(2, 7)) == 0.5


def test_auc_by_hand() -> None:
    """Of the four pairs of an example of class 1 and one of class 0, three are in order."""
    logits = np.array([[0, 1], [0, 3], [0, 2], [0, 4]], np.float32)
    assert auc(np.array([0, 0, 1, 1]), logits) == 0.75
    assert math.isnan(auc(np.array([0, 0, 1, 1]), logits * np.nan)) and math.isnan(auc(np.zeros(4, int), logits))


def nothing(labels: np.ndarray, logits: np.ndarray) -> None:
    """Forgets to return."""


def each(labels: np.ndarray, logits: np.ndarray) -> np.ndarray:
    return logits


def swapped(logits: np.ndarray, labels: np.ndarray) -> float:
    return float((logits.argmax(1) == labels).mean())


@pytest.mark.parametrize(
    ("metric", "message"),
    [
        ("nothing", "it returns None; expected a finite number"),
        ("each", r"it returns array\(\["),
        ("swapped", r"called as metric\(targets, outputs\), gives no number .*test_metrics.py"),
        ("Run", r"is no function; expected metric\(targets, outputs\)"),
    ],
)
def test_what_a_metric_returns_is_said(metric: str, message: str) -> None:
    """With no place in our own files."""
    with pytest.raises(ConfigError, match=message) as caught:
        check([f"{__name__}:{metric}"], small_config("method.name=fedavg").data.info())
    assert "learning/metrics.py" not in str(caught.value)


def never(labels: np.ndarray, logits: np.ndarray) -> float:
    return float("nan")


def sometimes(labels: np.ndarray, logits: np.ndarray) -> float:
    """Is not a number for as many examples as the small federation tests."""
    return float("nan") if len(labels) == 48 else 1.0


def test_a_metric_that_is_not_a_number(tmp_path: Path) -> None:
    """Before the run if it never is one."""
    with pytest.raises(StartupError, match=r"evaluation.metrics: .*:never gives no number .*: it returns nan;"):
        run_alone(tmp_path / "never", f"evaluation.metrics=[{__name__}:never]")
    assert not (tmp_path / "never").exists()
    run_alone(tmp_path / "run", "method.name=fedavg", "rounds=2", f"evaluation.metrics=[{__name__}:sometimes]")
    assert Run(tmp_path / "run").records[0]["tiers"]["1"][f"{__name__}:sometimes"] is None


def spoils(labels: np.ndarray, logits: np.ndarray) -> float:
    """Writes over what it gets."""
    labels[:] = 0
    logits[:] = 0
    return 1.0


def test_a_metric_that_writes_over_its_arrays_changes_no_other() -> None:
    values = measure({"spoils": spoils, "confusion": confusion}, LABELS.copy(), torch.from_numpy(LOGITS.copy()), "abc")
    assert values["confusion"]["counts"] == confusion(LABELS, LOGITS)


def test_names_are_those_of_the_schema() -> None:
    assert tuple(BUILT_IN) == tuple(METRICS)
    assert "evaluation.metrics: 'math:none' cannot be imported" in refusal(named, ["math:none"])
    assert "'math:pi' is no function" in refusal(named, ["math:pi"])


def test_a_run_has_them_everywhere(tmp_path: Path) -> None:
    own = f"{__name__}:share_of_first"
    run_alone(tmp_path / "run", "method.name=fedavg", "rounds=2", f"evaluation.metrics=[f1_macro,confusion,{own}]")
    run = Run(tmp_path / "run")
    scores = run.records[-1]["tiers"]["1"]
    counts = np.array(scores["confusion"]["counts"])
    assert scores["confusion"]["classes"] == [str(label) for label in range(len(counts))]
    assert scores["accuracy"] == counts.trace() / counts.sum() and scores[own] == counts[:, 0].sum() / counts.sum()
    rows = list(csv.DictReader(rounds_as_csv([run]).splitlines()))
    assert float(rows[-1]["tiers/1/f1_macro"]) == scores["f1_macro"]
    page = page_of(run)
    assert "f1_macro, " in page and "Confusion, tier 1" in page
    again = refusal(fedmpi.run, run_dir=tmp_path / "run", resume=True)
    assert "to run this code, name it again: evaluation.metrics=" in again


def test_names_of_classes_in_a_table_are_in_records(tmp_path: Path) -> None:
    """`ill` is class 0 and `well` class 1, because classes are numbered in sorted order."""
    rows = [f"{age},{('well', 'ill')[age % 2]}" for age in range(40)]
    (tmp_path / "mine.csv").write_text("\n".join(["age,label", *rows]))
    data = ("data.name=table", f"data.path={tmp_path / 'mine.csv'}", "data.test_share=0.5")
    net = ("model.name=mlp", "model.hidden=[4]", "partition.name=iid", "clients.count=4", "clients.per_round=4")
    run_alone(tmp_path / "run", "method.name=fedavg", "rounds=1", "evaluation.metrics=[confusion]", *data, *net)
    assert fedmpi.open_run(tmp_path / "run").records[0]["tiers"]["1"]["confusion"]["classes"] == ["ill", "well"]


def test_classes_have_the_names_of_their_folders(tmp_path: Path) -> None:
    folder_of(tmp_path, {"train": {"cat": 3, "ant": 3}, "test": {"ant": 2, "cat": 2}})
    assert ImageFolder(path=str(tmp_path)).info().class_names == ("ant", "cat")
