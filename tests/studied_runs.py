"""For the tests of `fedmpi.studies`: a small paper, runs as the command would leave them, and programs of `jobs/` that
run in this process."""

import json
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from small_runs import small_config

from fedmpi import papers
from fedmpi.config import yaml_text
from fedmpi.main import main
from fedmpi.studies import launch as running
from fedmpi.studies.reproduction import Named, Request
from fedmpi.studies.runs import Run

PAPER = """
source: nobody, nowhere
tables:
  table1:
    title: Accuracy
    quantity: accuracy
    unit: "%"
    of: best
    blocks:
      IID:
        FedAvg: {run: one, cells: {11M: [1, 90.0]}}
        FedHM: {run: two, cells: {11M: {net: 1, paper: 91.25, slip: it is another}, 4M: [0.5, lost]}}
      Non-IID:
        FedHM: {run: two, cells: {11M: [1, 80.5, partition.name=iid]}}
  table2:
    title: Cost
    quantity: relative_cost
    baseline: FedAvg
    blocks:
      IID:
        FedAvg: {run: one, cells: {all: {net: 1}}}
        FedHM: {run: two, cells: {all: {net: 1, paper: 0.5}}}
  figure1:
    title: Accuracy by round
    quantity: accuracy
    unit: "%"
    kind: curves
    axes: {x: round, y: accuracy, x_label: Communication round, y_label: Top-1 (%)}
    blocks:
      IID:
        FedAvg: {run: one, net: 1}
        FedHM: {run: two, net: 0.5}
      Non-IID:
        FedAvg: {run: one, net: 1}
"""


def named(table: str, text: str = PAPER) -> Named:
    own = papers.parse("own", text, "own.yaml")
    return Named(own, own.tables[table], Path("own.yaml"))


def record(number: int, tiers: Mapping[str, float], **other: Any) -> dict[str, Any]:
    """A round that moves 40 bytes down and 20 up, with a cohort of 2."""
    tested = {"tiers": {net: {"accuracy": share, "loss": 1.0} for net, share in tiers.items()}} if tiers else {}
    costs = {"protocol_down_bytes": 40, "protocol_up_bytes": 20, "training_macs": 100.0, "cohort": [0, 1]}
    return {"round": number, **tested, "train_loss": 1.0 / number, **costs, **other}


def learning(*accuracies: float | None, net: str = "1", **other: Any) -> list[dict[str, Any]]:
    """A round for each accuracy of this net; None for one without a test."""
    shares = ({} if share is None else {net: share} for share in accuracies)
    return [record(number, scores, **other) for number, scores in enumerate(shares, 1)]


def write_run(
    request: Request,
    config: str,
    seed: int,
    records: Sequence[Mapping[str, Any]],
    *,
    overrides: tuple[str, ...] = (),
    **more: Any,
) -> Run:
    """The folder of a run that a table needs; see `write`."""
    return write(request.run_of(papers.Run(config=config, overrides=overrides), seed), records, **more)


def write(run: Run, records: Sequence[Mapping[str, Any]], *, rounds: int = 3, nets: Sequence[str] = ()) -> Run:
    """The folder of a run of FedAvg with these records, finished if the last one is of the last round."""
    run.folder.report_dir.mkdir(parents=True)
    run.folder.config_path.write_text(yaml_text.dump(small_config("method.name=fedavg", f"rounds={rounds}").to_dict()))
    run.folder.records_path.write_text("".join(json.dumps(line) + "\n" for line in records))
    if records[-1]["round"] == rounds:
        tiers = [{"name": name, "params": 7, "macs": 9} for name in nets]
        (run.folder.report_dir / "summary.json").write_text(json.dumps({"tiers": tiers}))
    return run


def write_config(path: Path, *overrides: str) -> Path:
    """A config of 48 examples and four clients, of whom two train in a round."""
    fast = ("data.num_train=48", "data.num_test=16", "clients.count=4", "clients.per_round=2", "clients.tier_blocks=[]")
    path.write_text(yaml_text.dump(small_config(*fast, *overrides).to_dict()))
    return path


def own_paper(folder: Path) -> str:
    """A paper's file whose runs are FedAvg and FedHM on tiny data, 4 rounds."""
    text = PAPER
    for name, method in (("one", "fedavg"), ("two", "fedhm")):
        write_config(folder / f"{name}.yaml", f"method.name={method}", "rounds=4", "train.schedule.milestones=[2]")
        text = text.replace(f"run: {name}", f"run: {folder}/{name}.yaml")
    (folder / "own.yaml").write_text(text)
    return str(folder / "own.yaml")


Called = Callable[..., tuple[int, str, str]]
"""What a program answers to its words: exit code, stdout, stderr."""
Ran = list[Sequence[str]]
"""The commands that were run."""


def calling(main: Callable[[Sequence[str]], int], *always: str) -> Any:
    """The fixture `called` of a program, with the words that it is always given last."""

    @pytest.fixture
    def called(capsys: pytest.CaptureFixture[str]) -> Called:
        return lambda *words: (main([*map(str, words), *always]), *capsys.readouterr())

    return called


@pytest.fixture
def asked_for(tmp_path: Path) -> Request:
    """Runs as the paper has them, in the test's folder."""
    return Request(tmp_path)


@pytest.fixture
def run_here(monkeypatch: pytest.MonkeyPatch) -> Ran:
    """Runs the command here, which is a tenth of the time."""
    commands: Ran = []

    def launch(command: Sequence[str], log: Path, environment: Mapping[str, str], look: object) -> int:
        assert command[:3] == [sys.executable, "-m", "fedmpi.main"]
        commands.append(command)
        return main(command[3:])

    monkeypatch.setattr(running, "launch", launch)
    return commands
