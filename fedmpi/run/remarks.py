"""What is legal in a config but may not be meant: said before a run and in its plan."""

from __future__ import annotations

from collections.abc import Iterator

from fedmpi.config.schema import Config
from fedmpi.data.options import DataInfo
from fedmpi.methods.protocol import Method
from fedmpi.models import create


def remarks(config: Config, info: DataInfo, method: Method, num_workers: int, per_round: int) -> tuple[str, ...]:
    """One line each; `per_round` clients take part in a round."""
    of_nets = *create.conversions(config.model, info), *method.equal_tiers()
    return *of_nets, *method.warnings(), *_idle(num_workers, per_round)


def _idle(num_workers: int, per_round: int) -> Iterator[str]:
    if num_workers > per_round:
        yield f"{num_workers} workers, but clients.per_round is {per_round}: some have nothing to do"
