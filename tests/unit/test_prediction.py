"""`plan --measure`: rounds and hours by hand out of given seconds, and what is measured, never how long it took."""

import json
import os
import re
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn.functional import cross_entropy

from fedmpi.check.small import small_config
from fedmpi.command.plan import main as plan
from fedmpi.config.load import load
from fedmpi.errors import ConfigError
from fedmpi.learning.leading import LeadingConvs
from fedmpi.rounds.client import simulate_client
from fedmpi.running.forecast import Forecast, TierForecast, forecast
from fedmpi.running.half_precision import bf16_share
from fedmpi.running.measure import measure
from fedmpi.running.measured import ClientTrial, Measured, NetsTrial, NetTrial, told_apart
from fedmpi.running.prediction import Prediction, client_s, measured_plan, predict

# Eight clients with 15 of 120 examples each, all in every round; 48 test examples.
WORDS = (
    "method.name=fedavg",
    "partition.name=iid",
    "clients.per_round=8",
    "rounds=4",
    "train.local_epochs=2",
    "evaluation.every=2",
    "evaluation.bn=restat",
    "output.checkpoint_every=3",
)
# 16 examples in two steps of 0.25 s and 0.1 s around them, 0.01 s to add an upload.
GIVEN = Measured(
    device="cpu",
    threads=1,
    clients=(ClientTrial("1", "train", 2, 16, 0.5, 0.1, 0.01),),
    nets=NetsTrial(0.001, 0.002),
    personal=(),
    publishing_s=0.3,
    updating_s=0.2,
    saving_s=0.4,
    checkpoint_bytes=1000,
    memory_bytes=0,
    rank_0_peak_bytes=10**8,
    worker_peak_bytes=2 * 10**8,
    gpu_peak_bytes=0,
)
# Two epochs of 15 examples at 0.5 / 16 s each.
CLIENT_S = 0.1 + 0.5 * 30 / 16


def test_a_client_by_hand() -> None:
    assert client_s(GIVEN.clients[0], 15, 2) == pytest.approx(CLIENT_S)


@pytest.mark.parametrize(
    ("ranks", "cores", "at_once", "training_s", "aggregation_s"),
    [
        (1, 2, 1, 8 * CLIENT_S + 0.08, 0.2),  # alone, it adds what it has trained
        (3, 3, 2, 4 * CLIENT_S, 0.2),  # rank 0 adds while two workers train
        (3, 2, 2, 4 * CLIENT_S + 0.08, 0.2),
        (9, 4, 4, 2 * CLIENT_S + 0.08, 0.2),  # eight workers on four cores
    ],
)
def test_a_run_by_hand(ranks: int, cores: int, at_once: int, training_s: float, aggregation_s: float) -> None:
    """Four rounds, and the last test's publishing; tests with re-estimation after two; saves after rounds 3 and 4."""
    config = small_config(*WORDS)
    found = predict(config, forecast(config, ranks), GIVEN, cores)
    assert (found.workers_at_once, found.rank_0_has_a_core) == (at_once, 1 < ranks <= cores)
    assert found.training_s == pytest.approx(training_s) and found.aggregation_s == pytest.approx(aggregation_s)
    test_s, restat_s = 48 * 0.001 / at_once, 120 * 0.002 / at_once
    assert (found.test_s, found.restat_s) == (pytest.approx(test_s), pytest.approx(restat_s))
    base_s = training_s + aggregation_s + 0.3
    assert found.round_s == pytest.approx(base_s + test_s + restat_s + 0.4)
    parts_s = found.training_s + found.aggregation_s + found.publishing_s + found.test_s + found.restat_s
    assert found.round_s == pytest.approx(parts_s + found.saving_s)
    assert (found.rounds, found.tests, found.restats, found.saves) == (4, 2, 2, 2)
    assert found.hours == pytest.approx((4 * base_s + 0.3 + 2 * (test_s + restat_s) + 2 * 0.4) / 3600)
    data_bytes = forecast(config, ranks).data_bytes_node  # once
    assert found.all_ranks_bytes == (2 * 10**8 if ranks == 1 else 10**8 + (ranks - 1) * (2 * 10**8 - data_bytes))
    assert (found.most_checkpoints, found.disk_bytes) == (2, 2000)


def test_adding_that_takes_longer_than_training_is_waited_for() -> None:
    config, slow = small_config(*WORDS), replace(GIVEN.clients[0], adding_s=10.0)
    found = predict(config, forecast(config, 3), replace(GIVEN, clients=(slow,)), 3)
    assert found.training_s == pytest.approx(4 * CLIENT_S)
    assert found.aggregation_s == pytest.approx(80 - 4 * CLIENT_S + 0.2)


@pytest.mark.parametrize("words", [("method.name=fedhm",), ("method.name=standalone", "method.epochs_factor=1")])
def test_every_tier_and_net_is_tried(words: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A whole client of each tier, and each part is said before it begins; nothing stays on the disk."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    config = small_config(*words, "evaluation.bn=restat", "clients.tier_blocks=[]")
    lines: list[str] = []
    found, plan = measure(config, lines.append), forecast(config, 1)
    assert [trial.tier for trial in found.clients] == [tier.name for tier in plan.tiers]
    for trial in found.clients:
        assert trial.steps == -(-trial.examples // 8) and not trial.is_estimated
        assert trial.training_s >= 0 and min(trial.training_s + trial.other_s, trial.adding_s) > 0
    counted = [f" tier {trial.tier} ({place} of {len(plan.tiers)})" for place, trial in enumerate(found.clients, 1)]
    if "method.name=fedhm" in words:
        assert min(found.nets.test_s, found.nets.restat_s) > 0 and not found.personal
        (tests,) = (place for place, line in enumerate(lines) if f"testing {len(plan.tiers)} nets" in line)
    else:
        assert len(found.personal) == len(plan.tiers) and all(net.test_s > 0 for net in found.personal)
        assert found.nets == NetsTrial()
        tests = 0
    assert tests < 2 and len(lines) == 2 + tests + len(counted) + len(found.personal)
    assert all(line.endswith(words) for line, words in zip(lines[1 + tests :], counted, strict=False))
    assert found.checkpoint_bytes > 4 * plan.tiers[0].params
    assert (found.memory_bytes > 0) == ("method.name=standalone" in words)
    assert min(found.rank_0_peak_bytes, found.worker_peak_bytes) > 10**6
    assert os.listdir(tmp_path) == []


def test_what_a_client_takes_once_by_hand() -> None:
    """2 steps in 1.2 s and 10 in 2 s: 0.1 s a step and 1 s once. As many steps tell nothing apart; noise is no step."""
    few, many = ClientTrial("1", "train", 2, 16, 1.2, 0.3, 0.0), ClientTrial("1", "train", 10, 75, 2.0, 0.5, 0.0)
    assert told_apart(few, many) == replace(many, training_s=pytest.approx(1.0), other_s=pytest.approx(1.5))
    assert told_apart(many, many) == many
    assert told_apart(replace(few, training_s=2.5), many) == replace(many, training_s=0.0, other_s=2.5)


@pytest.mark.parametrize(("step_s", "batches"), [(0.01, 2), (0.9, 1)])
def test_what_a_method_does_once_is_in_no_step(monkeypatch: pytest.MonkeyPatch, step_s: float, batches: int) -> None:
    """A method that takes half a second beside its steps. A client of 15 examples has two batches of 8, in two epochs;
    all of them are tried where that takes less than the limit.
    """

    def as_if_timed(*arguments: Any) -> Any:
        report, upload = simulate_client(*arguments)
        return replace(report, training_s=0.5 + step_s * report.steps), upload

    monkeypatch.setattr("fedmpi.running.measure.simulate_client", as_if_timed)
    monkeypatch.setattr("fedmpi.running.measure._BATCHES", 1)
    (trial,) = measure(small_config(*WORDS)).clients
    assert (trial.steps, trial.examples) == (2 * batches, 30 if batches == 2 else 16)
    if batches == 2:
        assert trial.training_s == pytest.approx(step_s * trial.steps) and trial.other_s >= 0.5 - 1e-9


def test_nets_are_tested_as_the_run_tests_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """All at once, with the convs that all begin with (`learning.leading`): here the stem and the first block, 3, of
    both tiers' nets. What they keep is in a worker's memory.
    """
    shared, of = [], LeadingConvs.of

    def noted(*arguments: Any) -> LeadingConvs:
        shared.append((len(arguments[0]), (found := of(*arguments)).count))
        return found

    monkeypatch.setattr("fedmpi.learning.leading.LEAST_MACS", 0.0)
    monkeypatch.setattr(LeadingConvs, "of", noted)
    model = ("model.name=resnet18", "model.width=0.0625", "model.blocks=[1,1]", "data.shape=[3,8,8]")
    measure(small_config("method.name=fedhm", "method.rank_ratio=[1,0.5]", "clients.tier_blocks=[]", *model))
    assert {*shared} == {(2, 3)}


def test_the_time_being_up_estimates_by_macs(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first tier is always tried; the others take as much of its seconds as they have of its MACs."""
    monkeypatch.setattr("fedmpi.running.measure._BUDGET_S", -1.0)
    config = small_config("method.name=fedhm", "evaluation.personal=on", "clients.tier_blocks=[]")
    found, plan = measure(config), forecast(config, 1)
    assert len(found.personal) == len(plan.tiers) > 1
    for trials, seconds in ((found.clients, "training_s"), (found.personal, "test_s")):
        first, *others = trials
        assert not first.is_estimated and all(trial.is_estimated for trial in others)
        for trial, tier in zip(others, plan.tiers[1:], strict=True):
            expected = getattr(first, seconds) * tier.macs / plan.tiers[0].macs
            assert getattr(trial, seconds) == pytest.approx(expected)


def test_a_long_first_step_is_the_measurement(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedmpi.running.measure._LONG_S", 0.0)
    found = measure(small_config("method.name=fedavg", "partition.name=iid"))
    assert [(trial.steps, trial.examples) for trial in found.clients] == [(1, 8)]


def test_the_command(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedmpi.running.prediction.measure", lambda config, hears: GIVEN)
    monkeypatch.setattr("fedmpi.running.prediction.bf16_share", lambda config, device: {"cpu": 0.25}[device])
    words = ["model.width=0.125", "model.blocks=[1,1]", "method.name=fedavg", "rounds=2"]
    assert plan([*words, "--measure", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["bf16_share"] == 0.25
    assert found["measured"]["measured"]["checkpoint_bytes"] == 1000 and found["rounds"] == 2
    assert plan([*words, "--json", "--measure"]) == 0 and {*json.loads(capsys.readouterr().out)} == {*found}
    assert plan([*words, "--measure"]) == 0
    printed = capsys.readouterr().out
    assert "the run: " in printed and " 0.25 of its time" in printed
    assert plan([*words, "--measure", "train.precision=bf16"]) == 0
    assert "of its time" not in capsys.readouterr().out


@pytest.mark.parametrize(
    "words",
    [
        ("data.name=cifar10", "model.name=cnn_hermes"),
        ("data.name=cifar10", "model.name=resnet18"),
        ("data.name=digits", "model.name=mlp", "train.memory_format=contiguous"),
        ("data.name=imdb", "model.name=lstm_imdb", "data.length=4", "partition.name=iid"),
    ],
)
def test_a_step_is_tried_in_both_precisions(words: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    """On images, vectors and tokens, at least two examples and at most a batch; in bf16 only what is to be."""
    monkeypatch.setattr("fedmpi.running.half_precision._LEAST_S", 0.0)
    seen = set()

    def noted(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        seen.add((torch.is_autocast_enabled("cpu"), len(targets)))
        return cross_entropy(logits, targets)

    monkeypatch.setattr("fedmpi.running.half_precision.F.cross_entropy", noted)
    assert bf16_share(load(None, ["method.name=fedavg", "train.batch_size=8", *words]), "cpu") > 0
    assert {precision for precision, _ in seen} == {False, True} and all(2 <= count <= 8 for _, count in seen)


def test_a_net_that_bf16_cannot_train_is_measured_without(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        if torch.is_autocast_enabled("cpu"):
            raise RuntimeError("dtypes match")
        return cross_entropy(logits, targets)

    monkeypatch.setattr("fedmpi.running.half_precision.F.cross_entropy", refused)
    assert bf16_share(load(None, ["method.name=fedavg", "train.batch_size=8"]), "cpu") is None


def test_many_tests_are_told_by_their_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fast tests that the MACs warn of, and slow ones that they do not."""
    many = small_config("method.name=fedavg", "evaluation.bn=restat", "partition.name=iid", "train.local_epochs=1")
    assert any("tests take" in line for line in forecast(many, 1).warnings)
    few = small_config(*WORDS)
    assert not any("tests take" in line for line in forecast(few, 1).warnings)
    for config, test_s, warns in ((many, 1e-9, False), (few, 1e-9, False), (few, 1.0, True)):
        given = replace(GIVEN, nets=NetsTrial(test_s, test_s))
        monkeypatch.setattr("fedmpi.running.prediction.measure", lambda config, hears, given=given: given)
        found = measured_plan(config, forecast(config, 1))
        assert (found.prediction.test_share > 1 / 3) == warns
        assert ["measured seconds" in line for line in found.plan.warnings if "tests take" in line] == [True] * warns


def test_a_run_too_large_for_this_machine_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedmpi.running.prediction.machine_bytes", lambda: 1000)
    config = small_config(*WORDS)
    with pytest.raises(ConfigError, match=r"1.00 kB"):
        measured_plan(config, forecast(config, 3))


def test_every_field_of_the_json_plan_is_documented(capsys: pytest.CaptureFixture[str]) -> None:
    """In the README of runs, by name; no others stand there."""
    readme = Path(__file__).parents[2] / "fedmpi" / "running" / "README.md"
    section = readme.read_text().partition("## The plan as JSON\n")[2].partition("\n## ")[0]
    documented = set(re.findall(r"^\| `(\w+)`", section, re.MULTILINE))
    kinds = (Forecast, TierForecast, Prediction, Measured, ClientTrial, NetsTrial, NetTrial)
    names = {field.name for kind in kinds for field in fields(kind)}
    assert plan(["rounds=2", "--json"]) == 0
    found = json.loads(capsys.readouterr().out, parse_constant=pytest.fail)
    assert {*found} == {field.name for field in fields(Forecast)} and documented == names | {"bf16_share"}
