"""`stop`: a run ends at its target or when nothing improves, in one go or in several."""

import json
from pathlib import Path

import pytest
from small_runs import run_alone, small_config
from written_runs import a_run

from fedmpi.config.schema import Stop
from fedmpi.report.records import Best
from fedmpi.results.archive import fingerprint
from fedmpi.results.launch import differences
from fedmpi.results.page import page_of
from fedmpi.results.run import Run
from fedmpi.store.run_dir import RunDir

FEDAVG = ("method.name=fedavg", "rounds=9", "train.lr=0.01")


@pytest.mark.parametrize(
    ("accuracies", "target", "patience", "why"),
    [
        ([], 0.5, 1, ""),
        ([0.4, 0.6], 0.0, 0, ""),
        ([0.6, 0.4], 0.5, 0, ""),  # a run that goes on in spite of its first test had another target then
        ([0.4, 0.5], 0.5, 0, "accuracy 0.5000 in round 4, and stop.accuracy is 0.5"),
        ([0.4, 0.6, 0.5], 0.0, 2, ""),
        ([0.6, 0.6, 0.5], 0.0, 2, "no test after round 2 was better than its 0.6000, and stop.patience is 2"),
        ([0.6, 0.5, 0.7, 0.6], 0.0, 2, ""),
    ],
)
def test_by_hand(accuracies: list[float], target: float, patience: int, why: str) -> None:
    """Rounds 2, 4, 6 ... were tested: tests count, not rounds."""
    tests = {2 * place: accuracy for place, accuracy in enumerate(accuracies, 1)}
    assert Best(largest=tests).why_over(Stop(accuracy=target, patience=patience)) == why


def test_the_reason_names_the_score() -> None:
    best = Best.of([{"round": 1, "tiers": {"1": {"r2": 0.6, "loss": 1.0}}}])
    assert best.why_over(Stop(accuracy=0.5)) == "r2 0.6000 in round 1, and stop.accuracy is 0.5"


def test_a_run_ends_at_its_target_and_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    straight = run_alone(tmp_path / "long", *FEDAVG)
    accuracies = [record["tiers"]["1"]["accuracy"] for record in straight.records]
    target = max(accuracies[:4])
    ends = accuracies.index(target) + 1
    words = (*FEDAVG, f"stop.accuracy={target!r}")
    whole = run_alone(tmp_path / "run", *words)
    run = Run(tmp_path / "run")
    assert run.is_finished and run.state == "finished" and run.done == ends < 9
    assert run.why_over.startswith(f"accuracy {target:.4f} in round {ends}, ")
    assert run.records[-1]["ended"] == run.why_over and "ended" not in run.records[0]
    assert json.loads((run.path / "report/summary.json").read_text())["ended"] == run.why_over
    assert f"The run ended early: {run.why_over}." in page_of(run)
    assert f"ended early: {run.why_over}" in capsys.readouterr().out
    assert run_alone(run.path, *words, "output.progress=plain", resume=True) == whole
    assert f"nothing left to do: {ends} rounds done; accuracy " in " ".join(capsys.readouterr().out.split())
    RunDir(run.path).checkpoint_path(ends).unlink()  # killed between its last record and its last save
    assert run_alone(run.path, *words, resume=True) == whole
    went_on = run_alone(run.path, *FEDAVG, resume=True)
    assert (went_on.server, len(went_on.records)) == (straight.server, 9)


def test_patience_counts_from_the_records(tmp_path: Path) -> None:
    """The first start of two rounds leaves its tests to the second one, which ends where a run in one go does."""
    words = ("method.name=standalone", "train.lr=1e-9", "clients.per_round=2", "stop.patience=3")
    straight = run_alone(tmp_path / "straight", *words, "rounds=30")
    run_alone(tmp_path / "parts", *words, "rounds=2")
    assert run_alone(tmp_path / "parts", *words, "rounds=30", resume=True) == straight
    accuracies = [record["clients"]["accuracy"] for record in straight.records]
    assert 4 <= len(accuracies) == accuracies.index(max(accuracies)) + 4 < 30
    assert Run(tmp_path / "straight").is_finished


def test_a_grid_takes_it_for_finished_and_knows_another_stop(tmp_path: Path) -> None:
    path = a_run(tmp_path / "run", [{"1": 0.5}, {"1": 0.75}])
    config = path / "config.yaml"
    config.write_text(config.read_text().replace("rounds: 2", "rounds: 5\nstop: {accuracy: 0.7}"))
    assert Run(path).is_finished
    without = small_config("rounds=3")
    with_stop = small_config("rounds=3", "stop.patience=2")
    assert differences(with_stop, without.to_dict()) == ["stop.patience: run has 0, you ask 2"]
    assert differences(with_stop, with_stop.to_dict()) == []
    assert fingerprint(with_stop, {}) != fingerprint(without, {}) and with_stop.hash() == without.hash()
