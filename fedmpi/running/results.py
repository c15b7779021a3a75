"""What a round and a run came to, as `rounds.jsonl` and the closing table show it."""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from fedmpi.errors import counted
from fedmpi.federation.cohort import learning_rate
from fedmpi.learning import metrics
from fedmpi.learning.evaluate import TierScore
from fedmpi.methods.aggregate import least_uploads
from fedmpi.methods.values import ClientLoad
from fedmpi.report.closing import TierRow
from fedmpi.report.records import CLIENTS, TIERS, Best
from fedmpi.rounds.state import CONTRIBUTED, DROPPED, ClientReport, RoundResult, Setup

_LARGEST_EXPONENT = 700.0
"""Of a float64: exp of 710 is infinite."""
Times = Mapping[str, Mapping[str, float]]
"""A record's `seconds` by stage, the mean over the ranks, and `busy_s` of each rank, without waiting for others."""


def record_of(setup: Setup, round_number: int, result: RoundResult, times: Times) -> dict[str, Any]:
    """Returns one line of rounds.jsonl."""
    method = setup.method
    config = setup.config
    is_fp16 = config.train.precision == "fp16"
    contributed = [report for report in result.reports if report.status == CONTRIBUTED]
    scores = zip(method.tested(), result.scores or (), strict=result.scores is not None)
    tested = {net.name: _scores(setup, round_number, score) for net, score in scores}
    restored = [report.client for report in contributed if report.restored]
    lost = [task.client for task in result.tasks if not (task.arrives or task.is_late)]
    losses = [report.loss for report in contributed if math.isfinite(report.loss)]
    return {
        "round": round_number,
        "lr": learning_rate(config.train, round_number, config.rounds),
        **({TIERS: tested} if tested else {}),
        **({CLIENTS: result.client_scores.summary()} if result.client_scores is not None else {}),
        **({"method": dict(result.diagnostics)} if result.diagnostics else {}),
        "train_loss": sum(losses) / len(losses) if losses else None,
        "cohort": [task.client for task in result.tasks],
        "draws": list(result.draws),
        "dropped": [report.client for report in result.reports if report.status == DROPPED],
        **({"dropouts": lost} if config.clients.dropout else {}),
        **({"unchanged": why} if (why := unchanged(setup, result)) else {}),
        **({"restored": restored} if restored else {}),
        **({"left_out_steps": sum(report.left_out for report in result.reports)} if is_fp16 else {}),
        "exchange": result.exchange,
        "protocol_down_bytes": sum(report.down_bytes for report in result.reports),
        "protocol_up_bytes": sum(report.up_bytes for report in contributed),
        "training_macs": round(sum(task.cost for task in result.tasks if not task.is_late)),
        **setup.comm.traffic.take_moved(),
        **times,
    }


def unchanged(setup: Setup, result: RoundResult) -> str:
    """Returns why a round leaves the server's state as it is; '' if it changes it."""
    rule = setup.config.method.aggregate
    least = least_uploads(rule)
    contributed = {report.client for report in result.reports if report.status == CONTRIBUTED}
    by_phase = Counter(task.phase for task in result.tasks if task.client in contributed)
    most = max(by_phase.values(), default=0)
    if most >= least:
        return ""
    if most:
        return f"{counted(most, 'upload')} arrived, and {rule.name} needs {least}"
    if not result.tasks:
        return "no client took part"
    is_lost = not all(task.arrives for task in result.tasks)
    return "no upload of its clients arrived" if is_lost else "the training of all its clients diverged"


def _scores(setup: Setup, round_number: int, score: TierScore) -> dict[str, Any]:
    """Returns accuracy (or r2), loss, of sequences perplexity, and `evaluation.metrics` of a net."""
    values: dict[str, Any] = {setup.evaluation.scoring.name: score.accuracy, "loss": score.loss}
    if setup.info.task == "token_classification" and setup.config.train.loss == "auto":
        values["perplexity"] = math.exp(score.loss) if score.loss < _LARGEST_EXPONENT else math.inf
    if score.logits is None:
        return values
    named = metrics.named(setup.config.evaluation.metrics)
    with setup.clock.stage("evaluation", round_number):
        measured = metrics.measure(named, setup.dataset.test_y, score.logits, setup.info.class_names)
    return values | measured | values  # a metric has no name of these


def untrained(round_number: int, reports: Sequence[ClientReport]) -> str:
    """Returns a line where fp16 left out every step of some clients; else empty."""
    found = sum(1 for report in reports if 0 < report.steps == report.left_out)
    left_out = f"round {round_number}: fp16 left out every step of {found} of {counted(len(reports), 'training')}"
    why = "their gradients, times the loss scale, were not finite; take train.precision=fp32"
    return f"{left_out}, so they changed nothing: {why}" if found else ""


def sizes(setup: Setup) -> list[TierRow]:
    """Returns a row of costs for each tier, then for nets that are tested but that no tier trains."""
    method = setup.method
    rows = []
    tiers = {tier.name: (tier.index, tier.capacity) for tier in method.tiers}
    others = {net.name: (net.index, net.capacity) for net in method.tested() if net.name not in tiers}
    for name, (number, capacity) in (tiers | others).items():
        cost = setup.nets[number]
        turn = method.costs(ClientLoad(number)) if name in tiers else None
        moved = (turn.down_bytes, turn.up_bytes) if turn else ()
        rows.append(TierRow(name, capacity, cost.params, cost.macs or None, *moved))
    return rows


def tier_rows(sizes: Sequence[TierRow], best: Best) -> list[TierRow]:
    """Returns the rows of the closing table: `sizes` with results, then all clients."""
    rows = []
    for row in [*sizes, *([TierRow(CLIENTS)] if CLIENTS in best.last else [])]:
        last = best.last.get(row.name)
        highest = best.best.get(row.name)
        rows.append(replace(row, accuracy_last=last, accuracy_best=highest, best_round=best.best_round.get(row.name)))
    return rows
