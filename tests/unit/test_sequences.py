"""A label for each token, and text: by hand, in whole runs, and what makes no sense with them."""

import math
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from data_fixtures import refusal
from sequences import LENGTH, parity, write_users
from small_runs import run_alone, small_config

import fedmpi
from fedmpi.config.schema import Train
from fedmpi.data.dataset import IGNORED, load_data, task_of
from fedmpi.data.sets.own_files import Npz
from fedmpi.data.sets.text import Text, _blocks
from fedmpi.errors import ConfigError, DataError
from fedmpi.export.formats import metadata
from fedmpi.export.nets import net_of_tier
from fedmpi.export.saved import saved_round
from fedmpi.learning.evaluate import Scoring
from fedmpi.learning.local import loss_of
from fedmpi.results.run import Run

PARITY = "data.name=sequences:parity"
NET = ("model.name=sequences:Tagger", "method.name=fedavg", "train.masked_loss=false", "partition.name=iid")
LEARNS = (PARITY, *NET, "rounds=4", "train.local_epochs=4", "train.schedule.milestones=[]", "train.lr=0.5")
# Of the four tokens one has no label, one is wrong.
CHANCES = torch.tensor([[[0.75, 0.25], [0.75, 0.25]], [[0.1, 0.9], [0.25, 0.75]]])
TARGETS = torch.tensor([[0, 1], [IGNORED, 1]])


def test_what_targets_are_for() -> None:
    labels = np.array([[0, 1], [1, 1]])
    assert task_of(labels, (2, 2)) == "token_classification"
    assert task_of(labels) == task_of(labels, (2, 3)) == task_of(labels > 0, (2, 2)) == "multi_label"


def test_scores_by_hand() -> None:
    """The labels' chances are 3/4, 1/4 and 3/4, so the mean loss is ln(64 / 9) / 3; two of the three are right."""
    logits = CHANCES.log()
    expected = math.log(64 / 9) / 3
    assert loss_of(Train(), "token_classification")(logits, TARGETS).item() == pytest.approx(expected)
    scoring = Scoring.of(Train(), "token_classification", TARGETS.numpy())
    points, loss = scoring.of_batch(logits, TARGETS).tolist()
    counted = scoring.num_counted(np.arange(2))
    assert (points, counted, scoring.score(points, counted)) == (2.0, 3, 2 / 3)
    assert loss / counted == pytest.approx(expected) and math.exp(loss / counted) == pytest.approx((64 / 9) ** (1 / 3))
    assert scoring.num_counted(np.array([1])) == 1


def test_a_run_learns_and_says_it(tmp_path: Path) -> None:
    """Scores are shares of the tokens with a label, whatever the batches of the test."""
    run_alone(tmp_path / "run", *LEARNS, "evaluation.batch_size=4", "output.report=true")
    scores = [record["tiers"]["1"] for record in Run(tmp_path / "run").records]
    counted = int((parity()["test_y"] != IGNORED).sum())
    right = round(scores[-1]["accuracy"] * counted)
    assert scores[-1]["accuracy"] == right / counted > 0.9 and scores[-1]["loss"] < scores[0]["loss"] / 2
    assert all(score["perplexity"] == math.exp(score["loss"]) for score in scores)
    run_alone(tmp_path / "whole", *LEARNS, "evaluation.batch_size=100")
    assert Run(tmp_path / "whole").records[-1]["tiers"]["1"]["accuracy"] == scores[-1]["accuracy"]
    net = net_of_tier(saved_round(tmp_path / "run", overrides=[PARITY, NET[0]]))
    assert metadata(net)["output"].startswith(f"float32 (batch, {LENGTH}, 3): for each token a logit for each class")


def test_clients_with_nets_of_their_own(tmp_path: Path) -> None:
    """Their accuracy, too, is a share of tokens, of which an example has several."""
    run_alone(tmp_path / "run", *LEARNS, "method.name=standalone", "evaluation.on=validation")
    assert 0.5 < Run(tmp_path / "run").records[-1]["clients"]["accuracy"] <= 1


@pytest.mark.parametrize(("large", "dtype"), [(0, "int16"), (32_763, "int16"), (32_764, "int32"), (2**31 - 7, "int32")])
def test_tokens_are_stored_narrow(tmp_path: Path, large: int, dtype: str) -> None:
    np.savez(tmp_path / "mine.npz", **parity(large=large))
    options = small_config("data.name=npz", f"data.path={tmp_path}/mine.npz", *NET).data
    dataset = load_data(options)
    assert dataset.train_x.dtype == dataset.test_x.dtype == dtype and dataset.train_y.dtype == "int16"
    assert options.info().vocabulary_size == large + 5 and dataset.train_x.min() == large


@pytest.mark.parametrize(("given", "tokens"), [(0, 9), (50, 50)])
def test_tokens_that_follow_are_as_many_as_tokens(tmp_path: Path, given: int, tokens: int) -> None:
    """8 is the first token of a test example and 7 the last target: no part alone has all."""
    x = np.array([[1, 2, 3], [2, 3, 4], [3, 4, 0]])
    y = np.array([[2, 3, 5], [3, 4, 6], [4, IGNORED, IGNORED]])
    np.savez(tmp_path / "next.npz", train_x=x, train_y=y, test_x=[[8, 1, 2]], test_y=[[1, 2, 7]])
    np.savez(tmp_path / "tags.npz", train_x=x, train_y=y[:, ::-1], test_x=[[8, 1, 2]], test_y=[[1, 2, 7]])
    for name, num_classes in (("next", tokens), ("tags", 8)):
        info = Npz(path=f"{tmp_path}/{name}.npz", vocabulary_size=given).info()
        assert (info.vocabulary_size, info.num_classes) == (tokens, num_classes)


def test_a_vocabulary_that_does_not_fit(tmp_path: Path) -> None:
    np.savez(tmp_path / "tokens.npz", **parity())
    with pytest.raises(DataError, match="has the token 4, but data.vocabulary_size=4; allowed: 0 to 3"):
        Npz(path=f"{tmp_path}/tokens.npz", vocabulary_size=4).info()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("partition.name=shards",), "partition.name  'shards' needs classes, .* for token_classification"),
        (("evaluation.metrics=[top5]",), "top5, but .* for token_classification; allowed: none"),
        (("evaluation.metrics=[other_tasks:median_error]",), "median_error, but .*; allowed: none"),
    ],
)
def test_what_makes_no_sense_is_one_line(words: tuple[str, ...], message: str) -> None:
    assert re.search(message, refusal(small_config, PARITY, *NET, *words))


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("data.name=sequences:unlabelled",), "no token of training example 7 has a label; all are -100"),
        (("data.name=sequences:negative",), "test targets reach from -1 to 2, expected 0 to 2"),
        (("model.name=sequences:Forgetful",), r"gives \(2, 3\) of .*; expected a float tensor of shape \(2, 6, 3\)"),
    ],
)
def test_labels_and_nets_that_do_not_fit(tmp_path: Path, words: tuple[str, ...], message: str) -> None:
    assert re.search(message, refusal(run_alone, tmp_path / "run", PARITY, *NET, *words))


def test_blocks_by_hand() -> None:
    x, y = _blocks(np.array([5, 6, 7, 8, 9, 4], np.uint8), 2)
    assert x.tolist() == [[5, 6], [7, 8], [9, 0]] and y.tolist() == [[6, 7], [8, 9], [4, IGNORED]]
    x, y = _blocks(np.array([5, 6, 7], np.uint8), 2)
    assert x.tolist() == [[5, 6]] and y.tolist() == [[6, 7]]


def test_files_are_users(tmp_path: Path) -> None:
    """120 and 80 bytes, of which 108 and 72 train: 107 and 71 have a next one, in blocks of 10."""
    write_users(tmp_path / "users")
    options = Text(path=str(tmp_path / "users"), length=10)
    dataset = load_data(options)
    info = options.info()
    assert (info.task, info.num_classes, info.vocabulary_size, info.num_groups) == ("token_classification", 256, 256, 2)
    assert np.bincount(dataset.groups).tolist() == [11, 8] and np.bincount(dataset.test_groups).tolist() == [2, 1]
    assert bytes(dataset.train_x[0].tolist()) == b"abcdefghij" and bytes(dataset.train_y[0].tolist()) == b"bcdefghija"
    assert (dataset.train_y[10] == IGNORED).sum() == 3 and dataset.train_x.dtype == "int16"
    one = load_data(Text(path=str(tmp_path / "users/a.txt"), length=10))
    assert np.array_equal(one.train_x, dataset.train_x[:11])


def test_a_tokenizer_of_the_users(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("one two three four fifteen " * 10)
    options = Text(path=str(tmp_path / "a.txt"), length=4, tokenizer="sequences:words_of", vocabulary_size=40_000)
    dataset = load_data(options)
    assert dataset.train_x[0].tolist() == [3, 3, 5, 4] and dataset.train_y[0].tolist() == [3, 5, 4, 7]
    assert options.info().num_classes == 40_000 and dataset.train_x.dtype == dataset.train_y.dtype == "int32"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"tokenizer": "sequences:nothing"}, "sequences:nothing' cannot be .*; allowed: bytes, package"),
        ({"tokenizer": "sequences:LENGTH"}, "failed on .*not callable"),
        ({"tokenizer": "sequences:fractions_of"}, r"gave float64 \(200,\) for .*expected whole numbers \(N,\) from 0"),
        ({"tokenizer": "sequences:words_of", "vocabulary_size": 5}, "expected whole numbers .* from 0 to 4"),
        ({"test_share": 0.001}, "nobody with examples in both parts; take longer files"),
    ],
)
def test_text_that_cannot_be_used(tmp_path: Path, options: dict[str, object], message: str) -> None:
    (tmp_path / "a.txt").write_text("one fifteen a " * 14 + "last")
    assert re.search(message, refusal(lambda: load_data(Text(path=str(tmp_path), **options))))
    assert "nowhere" in refusal(lambda: load_data(Text(path=str(tmp_path / "nowhere"))))


def test_text_by_user(tmp_path: Path) -> None:
    """A resume does not import the tokenizer that only the run directory names."""
    write_users(tmp_path / "users")
    words = ("data.name=text", f"data.path={tmp_path}/users", "data.length=10", "data.tokenizer=sequences:codes_of")
    words = (*words, *NET, "partition.name=natural", "clients.count=2", "clients.per_round=2")
    words = (*words, "train.lr=1", "train.schedule.milestones=[]", "rounds=6")
    config = small_config(*words)
    assert not config.data.info().notes
    run_alone(tmp_path / "run", *words)
    scores = [record["tiers"]["1"] for record in Run(tmp_path / "run").records]
    assert scores[-1]["perplexity"] < scores[0]["perplexity"] < 123
    with pytest.raises(ConfigError, match="name it again: .*data.tokenizer=sequences:codes_of"):
        fedmpi.run(run_dir=tmp_path / "run", resume=True)
