"""What is legal in a config but may not be meant: said before a run and in its plan."""

from __future__ import annotations

import math

from torch import nn

from fedmpi.config.schema import VALIDATION_SHARE, Config
from fedmpi.data.dataset import DataInfo
from fedmpi.errors import WHOLE_NUMBERS
from fedmpi.federation.tiers import Tier
from fedmpi.methods.protocol import Method
from fedmpi.models import create

_WHY_EQUAL = (
    "method.name makes this net no smaller at these capacities; take another model, other capacities or one tier"
)


def remarks(config: Config, info: DataInfo, method: Method, num_workers: int, per_round: int) -> tuple[str, ...]:
    """Returns remarks, one line each; `per_round` clients take part in a round."""
    said = [*create.conversions(config.model, info), *equal_tiers(method), *method.warnings()]
    if info.kind == "tokens" and config.data.reads_to_know:
        said.append(f"data: {WHOLE_NUMBERS}")
    if num_workers > per_round:
        said.append(f"{num_workers} workers, but clients.per_round is {per_round}: some have nothing to do")
    if config.evaluation.on == "validation":
        share = f"{100 * VALIDATION_SHARE:g} % of the clients' training examples"
        said.append(f"evaluation.on=validation: nets are tested on {share}, not on the test data; nobody trains on it")
    return tuple(said)


def equal_tiers(method: Method) -> tuple[str, ...]:
    """Returns a line for each net that several tiers share, or that is the whole model below a capacity of 1."""
    if all(tier.capacity == 1 for tier in method.tiers):
        return ()
    whole = _shapes(method.context.make(empty=True))
    found: dict[tuple[tuple[int, ...], ...], list[Tier]] = {}
    for tier in method.tiers:
        found.setdefault(_shapes(method.net(tier.index, empty=True)), []).append(tier)
    said = []
    for shapes, tiers in found.items():
        if len(tiers) > 1 or (shapes == whole and tiers[0].capacity < 1):
            names = ", ".join(tier.name for tier in tiers)
            size = sum(map(math.prod, shapes))
            net = "the whole net" if shapes == whole else "one and the same net"
            have = f"tiers {names} have" if len(tiers) > 1 else f"tier {names} has"
            said.append(f"{have} {net} of {size:,} parameters: {_WHY_EQUAL}")
    return tuple(said)


def _shapes(net: nn.Module) -> tuple[tuple[int, ...], ...]:
    return tuple(tuple(parameter.shape) for parameter in net.parameters())
