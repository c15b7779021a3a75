"""What a round and a run have brought, as `rounds.jsonl` and the closing table show it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from fedmpi import costs
from fedmpi.federation.cohort import learning_rate
from fedmpi.methods.values import Turn
from fedmpi.report.best import Best
from fedmpi.report.closing import TierRow
from fedmpi.report.records import CLIENTS, DRAWS_ON
from fedmpi.rounds.exchange import CONTRIBUTED
from fedmpi.rounds.state import RoundResult, ServerState, Setup
from fedmpi.store.stored import to_text


@dataclass(frozen=True)
class RoundTimes:
    """The seconds of a round: `mean_s` by stage, over the ranks; `busy_s` of each rank, without waiting for others."""

    mean_s: Mapping[str, float]
    busy_s: Mapping[int, float]


def record_of(
    setup: Setup, round_number: int, state: ServerState, result: RoundResult, times: RoundTimes
) -> dict[str, Any]:
    """One line of rounds.jsonl."""
    method, config, draws_on = setup.method, setup.config, setup.method.traits.draws_on
    contributed = [report for report in result.reports if report.status == CONTRIBUTED]
    scores = zip(method.tested(), result.scores or (), strict=result.scores is not None)
    restored = [report.client for report in contributed if report.restored]
    losses = [report.loss for report in contributed if math.isfinite(report.loss)]
    return {
        "round": round_number,
        "lr": learning_rate(config.train, round_number, config.rounds),
        "tiers": {net.name: asdict(score) for net, score in scores},
        **({CLIENTS: result.client_scores.summary()} if result.client_scores is not None else {}),
        **({DRAWS_ON: {name: to_text(state.params[name]) for name in draws_on}} if draws_on else {}),
        **({"method": dict(result.diagnostics)} if result.diagnostics else {}),
        "train_loss": sum(losses) / len(losses) if losses else None,
        "cohort": [task.client for task in result.tasks],
        "dropped": [report.client for report in result.reports if report.status != CONTRIBUTED],
        **({"restored": restored} if restored else {}),
        "exchange": result.exchange,
        "protocol_down_bytes": sum(report.down_bytes for report in result.reports),
        "protocol_up_bytes": sum(report.up_bytes for report in contributed),
        "training_macs": sum(task.cost for task in result.tasks),
        "wire_bytes": setup.comm.traffic.take_bytes(),
        "seconds": dict(times.mean_s),
        "busy_s": {str(rank): seconds for rank, seconds in times.busy_s.items()},
    }


def tier_rows(setup: Setup, best: Best) -> list[TierRow]:
    """The rows of the closing table: the tiers, then nets that are tested but that no tier trains, then all clients."""
    method, rows = setup.method, []
    tiers = {tier.name: (tier.index, tier.rank_ratio) for tier in method.tiers}
    others = {net.name: (net.net, net.rank_ratio) for net in method.tested() if net.name not in tiers}
    shape = setup.config.data.info().example_shape
    for name, (number, rank_ratio) in (tiers | others).items():
        cost = costs.measure(method.net(number, empty=True), shape)
        row = TierRow(name, rank_ratio, cost.params, cost.macs)
        if name in tiers:
            turn = method.costs(Turn(number))
            row = replace(row, down_bytes=turn.down_bytes, up_bytes=turn.up_bytes)
        rows.append(row)
    rows += [TierRow(CLIENTS)] if CLIENTS in best.last else []
    return [
        replace(
            row,
            accuracy_last=best.last.get(row.name),
            accuracy_best=best.best.get(row.name),
            best_round=best.best_round.get(row.name),
        )
        for row in rows
    ]
