"""What an observer of a run is told: three hooks, all optional, called on rank 0 only, in this order.

    run_started(started)   before the first round of a start
    round_done(record)     after each round, when it is saved: the line that `rounds.jsonl` has of it
    run_ended(ended)       after the last round, or where the run stops before it; not where it fails or is killed

Records, TensorBoard's events, the progress line and the best rounds have these hooks. So may any class of a user, named
as `output.observers: [package.module:Class]` and made without arguments: see the README of this folder.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Started:
    """A start of a run; `config` is the whole config, as in `config.yaml`, and `done` is above 0 if it is resumed."""

    config: Mapping[str, Any]
    run_dir: Path
    done: int


@dataclass(frozen=True)
class Ended:
    """The end of a start: why it is `stopped` before the last round, empty if the run is finished; by tier the last and
    the best accuracy, and the round of the best."""

    done: int
    stopped: str
    last: Mapping[str, float]
    best: Mapping[str, float]
    best_round: Mapping[str, int]
