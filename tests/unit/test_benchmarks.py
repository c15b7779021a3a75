"""`jobs/bench.py`: which benchmark a command line names; what those of steps, of tests and of ranks find."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from small_runs import small_setup

from fedmpi.config.address import CONFIGS
from fedmpi.mpi.serial import SerialComm
from fedmpi.studies.bench import aggregate, benchmarks, overhead, scaling, share_of_tests, startup, steps
from fedmpi.studies.bench.on_ranks import launched

SMALL = ("method.name=fedhm", "method.rank_ratio=[1,0.5]", "model.width=0.125", "model.blocks=[1,1]")


@pytest.mark.parametrize("name", benchmarks.MODULES)
def test_each_has_a_help_of_its_own(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="0"):
        benchmarks.main([name, "--help"])
    help_text = capsys.readouterr().out
    assert f"python jobs/bench.py {name} " in help_text and "child" not in help_text
    with pytest.raises(SystemExit, match="0"):
        benchmarks.main(["--help"])
    assert f"python jobs/bench.py {name} " in capsys.readouterr().out


def test_the_name_is_found_wherever_it_stands(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[list[str]] = []
    for module in (startup, overhead, aggregate):
        monkeypatch.setattr(module, "main", lambda argv: seen.append(argv) or 0)
    assert benchmarks.main(["--ranks", "1", "startup"]) == 0
    assert benchmarks.main(["--case=small", "train.lr=0.1", "overhead", "--pairs", "2"]) == 0
    assert benchmarks.main(["--case", "startup", "aggregate"]) == 0  # a value is no name
    assert seen == [
        ["startup", "--ranks", "1"],
        ["overhead", "--case=small", "train.lr=0.1", "--pairs", "2"],
        ["aggregate", "--case", "startup"],
    ]


def test_overrides_change_a_benchmarks_own_settings() -> None:
    asked = aggregate._arguments(["aggregate", "clients.per_round=5", "--case", "small"])
    assert [*asked.runs] == ["small"] and asked.runs["small"][-1] == "clients.per_round=5"


def test_steps_are_taken_in_turn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each once in each of three turns, of which the first is not counted."""
    log: list[str] = []

    def fake(setup: Any) -> Any:
        precision = setup.config.train.precision
        return [({"tier": name}, lambda name=name: log.append(f"{name} {precision}")) for name in ("1", steps.BARE)]

    monkeypatch.setattr(steps, "steps_of", fake)
    found = steps.on_ranks(SerialComm(), tmp_path, SMALL, pairs=2, precisions=["fp32", "bf16"])["steps"]
    one_turn = ["1 fp32", f"{steps.BARE} fp32", "1 bf16", f"{steps.BARE} bf16"]
    assert log == 3 * one_turn and [len(row["seconds"]) for row in found] == 4 * [2]
    assert [f"{row['tier']} {row['precision']}" for row in found] == one_turn


def test_a_step_is_one_of_the_trainer_of_its_tier(tmp_path: Path) -> None:
    setup = small_setup(tmp_path, *SMALL)
    rows = steps.steps_of(setup)
    assert [row["tier"] for row, _ in rows] == ["1", "0.5", steps.BARE]
    assert [row["macs"] for row, _ in rows] == [*setup.macs, setup.macs[0]]
    for (_, step), trainer in zip(rows[:-1], setup.trainers, strict=True):
        before = {name: value.clone() for name, value in trainer.net.params.items()}
        step()
        assert any(not torch.equal(before[name], value) for name, value in trainer.net.params.items())
    rows[-1][1]()


def test_ratios_of_steps_by_hand() -> None:
    """Turn by turn: the dense tier takes 4 and 2 s, the tier 2 and 0.5 s, the bare loop 1 and 3 s."""
    rows = [
        {"tier": "1", "precision": "fp32", "macs": 8.0, "seconds": [4.0, 2.0]},
        {"tier": "0.5", "precision": "fp32", "macs": 2.0, "seconds": [2.0, 0.5]},
        {"tier": steps.BARE, "precision": "fp32", "macs": 8.0, "seconds": [1.0, 3.0]},
    ]
    _, tier, _ = steps.lines({"steps": rows})
    assert tier == [
        *("0.5", "fp32", "1250 ms", "500 - 2000 ms"),
        *("3.00", "2.00 - 4.00", "3.25", "0.50 - 6.00", "4.00"),
    ]


def test_the_share_of_tests(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Three rounds of 2 + 1 + 0.5 s before each test of 0.75 + 0 + 0.25 s; measured anew in each trial."""
    trials = iter((0.1, 0.3, 0.2))
    parts = {"test_s": 0.75, "personal_test_s": 0.0, "restat_s": 0.25}
    rest = {"training_s": 2.0, "aggregation_s": 1.0, "publishing_s": 0.5}
    monkeypatch.setattr(share_of_tests, "measure", lambda config: next(trials))

    def predicted(config: Any, plan: Any, found: float, num_cores: int) -> SimpleNamespace:
        return SimpleNamespace(**parts, **rest, test_share=found)

    monkeypatch.setattr(share_of_tests, "predict", predicted)
    words = ("evaluation.every=3", "model.width=0.125")
    config = str(CONFIGS / "fedhm_digits.yaml")
    found = share_of_tests.on_ranks(SerialComm(), tmp_path, words, config, pairs=3)
    assert found["share"] == [0.1, 0.3, 0.2] and 0 < found["macs_share"] < 1
    shown = share_of_tests.cells({**found, "macs_share": 0.25})
    assert shown == ["3", "1 s", "1 s - 1 s", "10.5 s", "10.5 s - 10.5 s", "20.0%", "10.0% - 30.0%", "25.0%"]


def test_the_share_of_tests_is_measured(tmp_path: Path) -> None:
    config, words = str(CONFIGS / "fedhm_digits.yaml"), [*SMALL[1:], "data.num_train=200", "train.local_epochs=1"]
    found = share_of_tests.on_ranks(SerialComm(), tmp_path, words, config, pairs=1)
    assert all(min(found[key]) > 0 for key in ("test_s", "rounds_s", "share"))


def test_exchanges_are_measured_in_turn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the bare loop, for the cohort that is asked for."""
    log: list[Any] = []

    def one_round(setup: Any, opened: Any, found: dict[str, Any]) -> Any:
        log.append(setup.config.mpi.exchange)
        return opened

    monkeypatch.setattr(scaling, "_one_round", one_round)
    monkeypatch.setattr(scaling, "_bare_round", lambda buffer, num_clients: log.append((buffer.nbytes, num_clients)))
    words = [*scaling._WORDS.split(), "clients.per_round=7", "model.hidden=[2]"]
    scaling.on_ranks(SerialComm(), tmp_path, words, megabytes=1, pairs=2)
    assert log == 3 * ["gather", "reduce", "auto", (1_000_000, 7)]


def test_exchanges_on_two_ranks() -> None:
    """Seven uploads, the broadcast and the times of the only worker; with `reduce` its sums and reports instead."""
    words = [*scaling._WORDS.split(), "clients.per_round=7", "model.hidden=[2]"]
    found = launched("scaling", words, 2, megabytes=1, pairs=2)
    assert {how: found[how]["wire_messages"] for how in ("gather", "reduce")} == {"gather": 9, "reduce": 4}
    assert found["auto"]["exchange"] in ("gather", "reduce")
    assert all(len(of["wall_s"]) == 2 for of in found.values())
    assert [len(ranks) for ranks in found["auto"]["busy_s"]] == [2, 2]


def test_a_line_of_exchanges_by_hand() -> None:
    """Rounds of 4 and 2 s beside 2 and 0.5 s; rank 0 works 1 and 3 s, the busiest worker 2 and 1 s; four clients."""
    own = {"wall_s": [4.0, 2.0], "busy_s": [[1.0, 2.0, 0.5], [3.0, 0.5, 1.0]], "exchange": "reduce"}
    found = {"auto": {**own, "wire_messages": 8, "wire_bytes": 2_000_000}, "bare": {"wall_s": [2.0, 0.5]}}
    assert scaling.cells("auto", found, 4) == [
        *("auto: reduce", "3.000 s", "2.000 - 4.000 s", "750.0 ms", "2.000 s", "1.500 s"),
        *("8", "2 MB", "1.250 s", "3.00", "2.00 - 4.00"),
    ]
