"""A small paper and runs of it as the command would leave them, for the tests of `jobs/reproduce.py`."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from small_runs import small_config

from fedmpi import papers
from fedmpi.config import yaml_text
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


def paper(text: str = PAPER) -> papers.Paper:
    return papers.parse("own", text, "own.yaml")


def named(table: str, text: str = PAPER) -> Named:
    own = paper(text)
    return Named(own, own.tables[table], Path("own.yaml"))


def record(number: int, tiers: Mapping[str, float], **other: Any) -> dict[str, Any]:
    """A round that moves 40 bytes down and 20 up, with a cohort of 2."""
    scores = {net: {"accuracy": accuracy, "loss": 1.0} for net, accuracy in tiers.items()}
    costs = {"protocol_down_bytes": 40, "protocol_up_bytes": 20, "training_macs": 100.0, "cohort": [0, 1]}
    return {"round": number, "tiers": scores, "train_loss": 1.0 / number, **costs, **other}


def write_run(
    request: Request,
    config: str,
    seed: int,
    records: Sequence[Mapping[str, Any]],
    *,
    rounds: int = 3,
    overrides: tuple[str, ...] = (),
    method: str = "fedavg",
) -> Run:
    """The folder of a run with these records, finished if there are as many as rounds."""
    run = request.run_of(papers.Run(config=config, overrides=overrides), seed)
    run.folder.report_dir.mkdir(parents=True)
    config_text = yaml_text.dump(small_config(f"method.name={method}", f"rounds={rounds}").to_dict())
    run.folder.config_path.write_text(config_text)
    run.folder.records_path.write_text("".join(json.dumps(line) + "\n" for line in records))
    if len(records) == rounds:
        (run.folder.report_dir / "summary.json").write_text('{"tiers": []}')
    return run
