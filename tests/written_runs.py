"""Run directories for the tests of pages and figures, their records written by hand."""

import json
from pathlib import Path

import numpy as np

from fedmpi.data.partition import Partition

CONFIG = """seed: {seed}
rounds: {rounds}
data: {{name: digits}}
partition: {{name: iid}}
model: {{name: mlp, hidden: 8}}
method: {{name: {method}}}
clients: {{count: 4, per_round: 2}}
train: {{local_epochs: 1, batch_size: 8, lr: {lr}}}
"""


def a_run(path: Path, accuracies, *, seed=0, method="fedhm", lr=0.1, rounds=None, losses=()) -> Path:
    """A run directory with a record for each (tier -> accuracy); `clients` is that of the clients' own nets."""
    path.mkdir()
    rounds = len(accuracies) if rounds is None else rounds
    (path / "config.yaml").write_text(CONFIG.format(seed=seed, rounds=rounds, method=method, lr=lr))
    lines = []
    for number, tiers in enumerate(accuracies, 1):
        tested = {name: {"accuracy": share, "loss": 1 - share} for name, share in tiers.items() if name != "clients"}
        lines.append(
            {
                "round": number,
                **({"tiers": tested} if tested else {}),
                **({"clients": {"accuracy": tiers["clients"]}} if "clients" in tiers else {}),
                "train_loss": 0.5,
                "protocol_down_bytes": 100,
                "protocol_up_bytes": 50,
                "training_macs": 1000.0,
                "seconds": {"local_training": 2.0, "idle": 1.0, "wall": 3.5},
                "busy_s": {"0": 1.0, "1": 2.0},
                "losses": list(losses) if number == 1 else [],
            }
        )
    (path / "rounds.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    if len(lines) == rounds:  # of a finished run that is enough: what reads more of it says so
        (path / "checkpoints").mkdir()
        (path / "checkpoints" / f"round-{rounds:06d}.h5").touch()
        (path / "report").mkdir()
        (path / "report" / "summary.json").write_text("{}")
    (path / "partition.h5").write_bytes(bytes(Partition(np.arange(6), np.array([0, 1, 3, 6, 6])).packed("ff")))
    return path


def with_records(path: Path, *changes) -> Path:
    """The run with each record changed by its entry of `changes`, or all by the only one."""
    lines = [json.loads(line) for line in (path / "rounds.jsonl").read_text().splitlines()]
    each = changes if len(changes) > 1 else changes * len(lines)
    new = [json.dumps({**line, **change}) + "\n" for line, change in zip(lines, each, strict=True)]
    (path / "rounds.jsonl").write_text("".join(new))
    return path
