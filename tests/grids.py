"""A grid of two methods for the tests of `fedmpi grid`, and runs of it as if they were made."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from small_runs import small_config

from fedmpi.config import yaml_text
from fedmpi.main import main
from fedmpi.results import launch
from fedmpi.results.answers import Choices, Results, answer_all
from fedmpi.results.archive import RunRecord
from fedmpi.results.grid_file import Grid, GridRun, read

FILE: dict[str, Any] = {
    "title": "Two rates",
    "config": "base.yaml",
    "settings": {"one": {}},
    "methods": {
        "avg": {"set": {"method": {"name": "fedavg"}}, "grid": [{"train.lr": [0.01, 0.1]}]},
        "hm": {"set": {"method": {"name": "fedhm"}}, "grid": [{"train.lr": [0.1], "method.tau": [2, 5]}]},
    },
    "seeds": [0, 1, 2, 3, 4, 5],
    "tuning": {"seeds": [100], "measure": "largest"},
    "measures": {
        "largest": {"quantity": "accuracy"},
        "smallest": {"quantity": "accuracy", "net": "smallest"},
        "bytes": {"quantity": "bytes"},
    },
    "questions": [
        {
            "ask": "Is hm better?",
            "first": "hm",
            "second": "avg",
            "measure": "largest",
            "provided": [{"measure": "smallest", "margin": 0.02}],
        }
    ],
}

TWO = {"one": {}, "two": {"clients": {"per_round": 3}}}
"""Two settings."""


def write_config(path: Path, *overrides: str) -> Path:
    """A config of 48 examples and four clients, of whom two train in a round."""
    fast = ("data.num_train=48", "data.num_test=16", "clients.count=4", "clients.per_round=2", "clients.tier_blocks=[]")
    path.write_text(yaml_text.dump(small_config(*fast, *overrides).to_dict()))
    return path


def grid_of(folder: Path, **changed: Any) -> Grid:
    write_config(folder / "base.yaml", "rounds=2", "method.name=fedavg")
    path = folder / "rates.yaml"
    plain = {key: value for key, value in {**FILE, **changed}.items() if value is not None}
    path.write_text(yaml_text.dump(json.loads(json.dumps(plain))))  # a value that stands twice would be an alias
    return read(path)


def made(run: GridRun, *accuracies: float, **changed: Any) -> RunRecord:
    """A run whose nets end with these accuracies, the largest first."""
    record = {
        "round": 1,
        "tiers": {str(place): {"accuracy": accuracy, "loss": 1.0} for place, accuracy in enumerate(accuracies)},
        "train_loss": 0.5, "protocol_down_bytes": 30, "protocol_up_bytes": 20, "training_macs": 7.0,
    }  # fmt: skip
    given = {
        "run": run, "config": "x", "data": "d", "made_with": {}, "seconds": {"wall": 4.0, "svd": 1.0},
        "nets": (), "records": [record],
    }  # fmt: skip
    return RunRecord(**{**given, **changed})


def final_runs(first: Sequence[tuple[float, float]], second: Sequence[tuple[float, float]]) -> list[RunRecord]:
    """Of hm and avg in setting one: largest and smallest net of each seed."""
    pairs = (("hm", first), ("avg", second))
    return [
        made(GridRun("final", "one", method, 0, seed), *both)
        for method, scores in pairs
        for seed, both in enumerate(scores)
    ]


BETTER = [(0.9 + seed / 100, 0.8) for seed in range(6)]
WORSE = [(0.85, 0.81)] * 6


def results_of(grid: Grid, runs: Sequence[RunRecord], choices: Choices | None = None) -> Results:
    return Results(grid, choices or {}, runs, answer_all(grid, runs), {})


class Ended:
    """A process that has ended with this exit code."""

    def __init__(self, code: int) -> None:
        self.returncode = code

    def poll(self) -> int:
        return self.returncode

    def wait(self, timeout_s: float = 0) -> int:
        return self.returncode

    def terminate(self) -> None: ...


@pytest.fixture
def runs_in_this_process(monkeypatch: pytest.MonkeyPatch) -> list[Sequence[str]]:
    """Makes runs in this process, which is a tenth of the time; the commands so far."""
    commands: list[Sequence[str]] = []

    def start(command: Sequence[str], output: int, environ: Mapping[str, str]) -> Ended:
        commands.append(command)
        return Ended(main(command[command.index("fedmpi.main") + 1 :]))

    monkeypatch.setattr(launch, "_started", start)
    return commands
