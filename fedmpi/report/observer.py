"""What hears of a run: three hooks, all optional, called on rank 0 only, in this order.

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
    """A start of a run."""

    config: Mapping[str, Any]
    """The whole config, as `config.yaml` has it."""
    run_dir: Path
    done: int
    """Rounds that are done; above 0 the run is resumed."""


@dataclass(frozen=True)
class Ended:
    """The end of a start. `last`, `best` and `best_round` have an accuracy, or a round, for each tier."""

    done: int
    stopped: str
    """Why the run stops before its last round; empty if it is finished."""
    last: Mapping[str, float]
    best: Mapping[str, float]
    best_round: Mapping[str, int]
