"""What is legal in a config but may not be meant: said before a run and in its plan."""

import math
from collections import Counter
from collections.abc import Iterable, Sequence

from torch import nn

from fedmpi.config.schema import Config
from fedmpi.config.yaml_text import flow
from fedmpi.errors import ConfigError, counted
from fedmpi.federation.assignment import Task
from fedmpi.federation.tiers import Tier
from fedmpi.learning.bn import num_statistics
from fedmpi.methods.aggregate import least_uploads
from fedmpi.methods.protocol import Method
from fedmpi.models import create
from fedmpi.rounds.state import Design

_WHY_EQUAL = "method.name makes it no smaller at these capacities; take another model, other capacities or one tier"
_UNEVEN = 3


def remarks(design: Design, num_workers: int) -> tuple[str, ...]:
    """Returns remarks, one line each."""
    config = design.config
    info = design.info
    method = design.method
    sizes = design.participation.sizes
    said = [*create.conversions(config.model, info), *equal_tiers(method), *method.warnings()]
    if sizes is not None and sizes.max() > _UNEVEN * sizes.min() and config.clients.sampling != "by_size":
        few, many = (method.client_weight(Task(0, 0, 1, "", size, 0.0)) for size in (1, 2))
        who = f"{config.method.name} weighs them alike"
        if hasattr(config.method, "weighting"):
            who = "method.weighting=uniform weighs them alike; samples weighs by examples, n_k / n"
        if method.sums() and few == many:
            said.append(f"clients have {sizes.min()} to {sizes.max()} training examples, and {who}")
    said += [f"data: {note}" for note in info.notes]
    if num_workers > (per_round := config.clients.per_round):
        said.append(f"{num_workers} workers, but clients.per_round is {per_round}: some have nothing to do")
    said += design.fleet.warnings() if design.fleet else ()
    return tuple(said)


def thin_rounds(config: Config, rounds: Iterable[Sequence[Task]]) -> tuple[str, ...]:
    """Returns a line that says how many of the run's rounds change nothing, whatever a deadline does, and why the first
    of them does not. Raises `ConfigError` where no round changes anything."""
    rule = config.method.aggregate
    least = least_uploads(rule)
    thin = []
    for number, tasks in enumerate(rounds, 1):
        by_phase = Counter(task.phase for task in tasks if task.arrives or task.is_late)
        arrived = max(by_phase.values(), default=0)
        if arrived < least:
            thin.append((number, len(tasks), arrived))
    if not thin:
        return ()
    first, present, arrived = thin[0]
    why = "no client takes part (clients.availability, clients.sampling or devices.too_small keep all away)"
    if present:
        clients = config.clients
        why = f"no upload arrives (clients.dropout={clients.dropout:g}, clients.per_round={clients.per_round})"
    if arrived:
        why = f"fewer than the {least} uploads arrive that {getattr(rule, 'name', rule)} needs (method.aggregate)"
    if len(thin) < config.rounds:
        return (f"in {len(thin)} of {config.rounds} rounds (the first: {first}) {why}: nothing changes then",)
    problem = f"in each of {counted(config.rounds, 'round')} {why}; a run would change nothing"
    raise ConfigError("clients", f"{problem}; have {counted(least, 'upload')} or more arrive in one of them")


def defaults(config: Config, method: Method) -> str:
    """Returns a line that names the settings that decide results and that the user has not chosen; '' for none."""
    matters = {
        "method.weighting": hasattr(config.method, "weighting"),
        "train.masked_loss": True,
        "evaluation.bn": num_statistics(method.net(0, empty=True)) > 0,
        "train.momentum": config.train.optimizer == "sgd",
    }
    values = []
    for key in matters:
        section, name = key.split(".")
        if matters[key] and not config.is_chosen(section, name):
            values.append(f"{key}={flow(getattr(config.sections[section], name))}")
    return f"chosen for you: {', '.join(values)}" if values else ""


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
            said.append(f"tiers {names}: one net of {sum(map(math.prod, shapes)):,} parameters; {_WHY_EQUAL}")
    return tuple(said)


def _shapes(net: nn.Module) -> tuple[tuple[int, ...], ...]:
    return tuple(tuple(parameter.shape) for parameter in net.parameters())
