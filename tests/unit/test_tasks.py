"""Regression, multi-label and a user's loss: by hand, in whole runs, and what makes no sense with them."""

import math
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from data_fixtures import refusal
from other_tasks import numbers, smooth, tags
from small_runs import run_alone, small_config
from torch import nn

import fedmpi
from fedmpi.config.address import CONFIGS
from fedmpi.config.load import load
from fedmpi.config.schema import Train
from fedmpi.data.dataset import classes_of, task_of
from fedmpi.errors import ConfigError, UserError
from fedmpi.learning.evaluate import Scoring
from fedmpi.learning.local import MaskedCrossEntropy, loss_of
from fedmpi.learning.metrics import auc, f1_macro, mae, mse
from fedmpi.results.page import page_of
from fedmpi.results.run import Run
from fedmpi.running.forecast import forecast
from fedmpi.store import manifest
from fedmpi.store.run_dir import RunDir

MLP = """model.name=mlp model.hidden=[8] train.masked_loss=false train.lr=0.02 rounds=2
    partition.name=iid output.report=true""".split()
NUMBERS = "data.name=other_tasks:numbers"
LEARNS = ("rounds=4", "train.local_epochs=4", "train.schedule.milestones=[]", "clients.per_round=8")
TARGETS = np.array([[1.0], [2.0], [3.0], [6.0]], np.float32)
OUTPUTS = np.array([[1.0], [3.0], [3.0], [4.0]], np.float32)
LABELS = np.array([[1, 0], [1, 1], [0, 0], [1, 0]], np.float32)
LOGITS = np.array([[2, -1], [-1, 3], [-2, 1], [1, 1]], np.float32)


def test_what_targets_are_for() -> None:
    assert task_of(np.array([0, 1, 2])) == "classification"
    assert task_of(np.array([0.5, 1.0])) == task_of(np.zeros((2, 3))) == "regression"
    assert task_of(np.array([[0, 1], [1, 1]])) == task_of(np.array([[True], [False]])) == "multi_label"
    assert task_of(np.array([[0, 2]])) is task_of(np.array(["a"])) is task_of(np.zeros((2, 2, 2))) is None
    assert classes_of(np.array([1, 0], np.uint8)).tolist() == [1, 0]
    assert classes_of(np.array([0.5, 1.5])).tolist() == [0, 0]


def test_scores_of_numbers_by_hand() -> None:
    """The mean is 3 and the squares around it add up to 4 + 1 + 0 + 9 = 14; the errors are 0, 1, 0, -2."""
    scoring = Scoring.of(Train(), "regression", TARGETS)
    points, loss = scoring.of_batch(torch.from_numpy(OUTPUTS), torch.from_numpy(TARGETS)).tolist()
    assert (points, loss, scoring.unit) == (5.0, 5.0, 14 / 4)
    assert scoring.score(points, 4) == pytest.approx(1 - 5 / 14)
    assert (mse(TARGETS, OUTPUTS), mae(TARGETS, OUTPUTS)) == (5 / 4, 3 / 4)
    two = np.concatenate([TARGETS, TARGETS], axis=1)  # the second number is predicted without an error
    both = Scoring.of(Train(), "regression", two)
    found = both.points(torch.from_numpy(np.concatenate([OUTPUTS, TARGETS], axis=1)), torch.from_numpy(two))
    assert both.score(float(found), 4) == pytest.approx(1 - 5 / 28)


def test_scores_of_labels_by_hand() -> None:
    """Of label 0 two are found and one is missed, of label 1 one is found and two are said of others."""
    scoring = Scoring.of(Train(), "multi_label", LABELS)
    points, loss = scoring.of_batch(torch.from_numpy(LOGITS), torch.from_numpy(LABELS)).tolist()
    assert points == 5 and scoring.score(points, 4) == 5 / 8
    signed = np.where(LABELS > 0, LOGITS, -LOGITS)
    assert loss / 4 == pytest.approx(np.log1p(np.exp(-signed)).mean(), abs=1e-6)
    assert f1_macro(LABELS, LOGITS) == pytest.approx((4 / 5 + 2 / 4) / 2)
    assert auc(LABELS, LOGITS) == 1.0
    assert math.isnan(auc(np.ones((4, 1)), LOGITS[:, :1]))


def test_losses() -> None:
    outputs = torch.from_numpy(OUTPUTS)
    targets = torch.from_numpy(TARGETS)
    assert isinstance(loss_of(Train(), "classification"), MaskedCrossEntropy)
    assert loss_of(Train(), "regression")(outputs, targets) == 5 / 4
    own = Train(loss="other_tasks:huber")
    assert loss_of(own, "regression")(outputs, targets) == (0.5 + 1.5) / 4
    assert Scoring.of(own, "regression", TARGETS).of_batch(outputs, targets).tolist() == [5.0, 2.0]


@pytest.mark.parametrize("method", ["fedavg", "fedhm", "heterofl"])
def test_nets_learn_numbers_and_labels(tmp_path: Path, method: str) -> None:
    words = (*MLP, f"method.name={method}", *LEARNS)
    run = run_alone(tmp_path / "numbers", *words, NUMBERS, "evaluation.metrics=[mse,mae]")
    scores = [next(iter(record["tiers"].values())) for record in run.records]
    assert scores[-1]["loss"] == pytest.approx(scores[-1]["mse"]) and scores[-1]["mse"] < scores[0]["mse"]
    assert scores[-1]["r2"] == pytest.approx(1 - scores[-1]["mse"] / numbers()["test_y"].var()) and scores[-1]["r2"] > 0
    words = (*words, "data.name=other_tasks:tags", "evaluation.metrics=[f1_macro]", "train.lr=0.1")
    scores = [next(iter(record["tiers"].values())) for record in run_alone(tmp_path / "tags", *words).records]
    whole = round(scores[-1]["accuracy"] * tags()["test_y"].size)
    assert scores[-1]["accuracy"] == whole / tags()["test_y"].size > 0.5 and scores[-1]["loss"] < scores[0]["loss"]


def test_one_round_is_torchs_own(tmp_path: Path) -> None:
    """One client, one epoch of one batch, without momentum: a step of SGD on the mean squared error."""
    words = ("clients.count=1", "clients.per_round=1", "train.batch_size=90", "train.momentum=0")
    words = (*MLP, *words, "train.weight_decay=0", "method.name=fedavg", NUMBERS, "train.schedule.milestones=[]")
    run_alone(tmp_path / "one", *words, "rounds=1")
    run_alone(tmp_path / "two", *words, "rounds=2")
    arrays = {name: torch.from_numpy(value.astype(np.float32)) for name, value in numbers().items()}
    net = fedmpi.open_run(tmp_path / "one", data={"name": "other_tasks:numbers"}).net().train().requires_grad_()
    after = fedmpi.open_run(tmp_path / "two", data={"name": "other_tasks:numbers"}).net()
    nn.functional.mse_loss(net(arrays["train_x"])[:, 0], arrays["train_y"]).backward()
    for mine, theirs in zip(net.parameters(), after.parameters(), strict=True):
        torch.testing.assert_close(mine - 0.02 * mine.grad, theirs, rtol=1e-4, atol=1e-6)


def test_clients_with_nets_of_their_own(tmp_path: Path) -> None:
    """Their r2 divides by the variance of all test targets: one example alone has none."""
    run_alone(tmp_path / "run", *MLP, "method.name=standalone", "data.name=other_tasks:numbers", "stop.patience=1")
    run = Run(tmp_path / "run")
    record = run.records[-1]
    assert set(record["clients"]) == {"r2", "std", "worst_decile", "clients", "without_test_data"}
    lines = (run.path / "report/clients.csv").read_text().splitlines()
    assert lines[0] == "client,r2" and len(lines) == 1 + record["clients"]["clients"]
    assert run.best.last["clients"] == record["clients"]["r2"]


def test_validation_data_and_a_share_for_tests(tmp_path: Path) -> None:
    """Where there are no classes, examples are held out at random."""
    arrays = numbers()
    np.savez(tmp_path / "mine.npz", x=arrays["train_x"], y=arrays["train_y"])
    words = ("data.name=npz", f"data.path={tmp_path / 'mine.npz'}", "data.test_share=0.2", "evaluation.on=validation")
    info = small_config(*MLP, "method.name=fedavg", *words, "data.num_train=40").data.used()
    assert (info.task, info.num_classes, info.num_train, info.num_test) == ("regression", 1, 40, 18)
    run = run_alone(tmp_path / "run", *MLP, "method.name=fedavg", *words, "data.num_train=40")
    assert "r2" in run.records[-1]["tiers"]["1"]


def test_where_it_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    own = "other_tasks:median_error"
    words = (*MLP, "method.name=fedavg", "data.name=other_tasks:numbers", "train.loss=other_tasks:huber")
    run_alone(tmp_path / "run", *words, f"evaluation.metrics=[mae,{own}]", "output.progress=plain")
    said = capsys.readouterr().out
    assert "r2 of 1\n" in said and "  r2 " in said
    run = Run(tmp_path / "run")
    assert {"r2", "loss", "mae", own} == set(run.records[-1]["tiers"]["1"])
    code = manifest.user_code(RunDir(run.path))
    assert {key: entry["name"] for key, entry in code.items()} == {
        "data": "other_tasks:numbers",
        "loss": "other_tasks:huber",
        f"metric {own}": own,
    }
    assert len({entry["digest"] for entry in code.values()}) == 1
    page = page_of(run)
    assert "Test r2" in page and "Test accuracy" not in page and "Examples of each class" not in page
    with pytest.raises(ConfigError, match=r"name it again: .*train.loss=other_tasks:huber"):
        fedmpi.run(run_dir=run.path, resume=True)


def test_a_loss_of_classes_and_its_own_default(tmp_path: Path) -> None:
    """A config without the key has the hash and the bits that it had."""
    words = ("method.name=fedavg", "rounds=2", "train.masked_loss=false")
    assert small_config(*words).hash() == small_config(*words, "train.loss=auto").hash()
    assert small_config(*words).hash() != small_config(*words, "train.loss=other_tasks:smooth").hash()
    smooth = run_alone(tmp_path / "smooth", *words, "train.loss=other_tasks:smooth")
    assert run_alone(tmp_path / "plain", *words).server != smooth.server


def test_masked_loss_is_off_where_nothing_can_be_masked() -> None:
    """The default config sets `train.masked_loss`. A user's own loss turns it off, and the plan's line of defaults
    names it."""
    for words in (["train.loss=other_tasks:smooth"], [NUMBERS, "model.name=mlp", "partition.name=iid"]):
        config = load(None, ["method.name=fedavg", *words])
        assert not config.train.masked_loss and "train.masked_loss=false" in forecast(config, 1).defaults
        with pytest.raises(ConfigError, match=r"train.masked_loss  true .*allowed: false"):
            load(None, ["method.name=fedavg", *words, "train.masked_loss=true"])
        with pytest.raises(ConfigError, match=r"train.masked_loss \(.*base_digits.yaml.*\)  true .*allowed: false"):
            load(CONFIGS / "fedavg_digits.yaml", words)
    assert load(None, ["train.lr=1"]).train.masked_loss
    assert not fedmpi.load_config(method="fedavg", train={"loss": smooth}).train.masked_loss


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ((NUMBERS, "partition.name=shards"), "partition.name  'shards' needs classes, .* for regression; allowed: iid"),
        ((NUMBERS, "train.masked_loss=true"), "train.masked_loss  true needs classes"),
        ((NUMBERS, "evaluation.personal_test=classes"), "evaluation.personal_test  'classes' needs classes"),
        ((NUMBERS, "method.name=hermes"), "method.name  'hermes' needs classes"),
        ((NUMBERS, "method.name=fjord", "method.distillation=true"), "distillation  true needs .*allowed: false"),
        ((NUMBERS, "method.name=fdnnc", "method.loss=mse"), "method.loss  'mse' needs classes"),
        ((NUMBERS, "evaluation.metrics=[top5]"), "top5, but .* for regression; allowed: mse, mae"),
        (("evaluation.metrics=[mse]",), "mse, but synthetic has targets for classification; allowed: f1_macro"),
        (("train.loss=mse",), "train.loss  'mse' is no function; allowed: auto, package.module:function"),
        (("train.loss=torch.nn:CrossEntropyLoss",), r"is no function; allowed: .*function of \(outputs, targets\)"),
        (("train.loss=other_tasks:none",), "train.loss  'other_tasks:none' cannot be imported"),
        (("train.loss=other_tasks:smooth", "train.masked_loss=true"), "true masks cross-entropy, and train.loss is"),
    ],
)
def test_what_makes_no_sense_is_one_line(words: tuple[str, ...], message: str) -> None:
    assert re.search(message, refusal(small_config, *MLP, *words))


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("text", r"train_y is <U21 \(30,\); expected classes, whole numbers \(N,\); numbers to predict"),
        ("one-hot", r"each row of train_y has one 1, as of classes; give these as train_y.argmax\(1\)"),
        ("one-hot floats", r"each row of train_y has one 1, as of classes"),
        ("counts", r"train_y is int64 \(30, 2\); expected classes"),
        ("nan", r"training targets have values that are no finite numbers"),
        ("cube", r"train_y is float64 \(30, 2, 2\); expected classes"),
    ],
)
def test_targets_for_nothing(name: str, message: str) -> None:
    assert re.search(message, refusal(small_config, *MLP, "data.name=other_tasks:given", f"data.kind={name}"))


def test_one_test_target_has_no_r2(tmp_path: Path) -> None:
    words = (*MLP, "method.name=fedavg", NUMBERS, "data.num_test=1")
    for made in (lambda: run_alone(tmp_path / "run", *words), lambda: forecast(small_config(*words), 1)):
        assert "the 1 test targets are the same number" in refusal(made)


@pytest.mark.parametrize(
    ("loss", "message"),
    [
        ("for_each_number", r"gives \(4, 1\) for 4 examples; expected a finite tensor \(\) or \(4,\) with gradients"),
        ("without_gradients", r"gives \(\) for 4 examples"),
        ("endless", r"gives \(\) for 4 examples"),
        ("failing", r"called as loss\(outputs, targets\), failed for 4 examples: .*no way"),
        ("counting", r"train.loss: other_tasks:counting keeps something from one call to the next"),
        ("learning", r"train.loss: other_tasks:learning computes with a parameter of its own, which nobody trains"),
    ],
)
def test_a_loss_is_tried(tmp_path: Path, loss: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        run_alone(tmp_path / "run", *MLP, "method.name=fedavg", NUMBERS, f"train.loss=other_tasks:{loss}")
    assert not (tmp_path / "run" / "config.yaml").exists()


def test_a_loss_that_draws_and_caches_trains(tmp_path: Path) -> None:
    run_alone(tmp_path / "run", *MLP, "method.name=fedavg", NUMBERS, "rounds=1", "train.loss=other_tasks:steady")


def test_a_loss_that_takes_classes_for_numbers_is_refused(tmp_path: Path) -> None:
    """With as many examples as classes, torch would spread the classes over the outputs."""
    words = (*MLP, "method.name=fedavg", "data.classes=4", "train.masked_loss=false", "train.loss=other_tasks:squares")
    assert re.search("failed for 7 examples: .*size of tensor", refusal(run_alone, tmp_path / "run", *words))
