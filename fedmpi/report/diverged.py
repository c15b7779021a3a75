"""Which clients diverged in a run that continues without them (`train.on_divergence`: drop, upload_last_finite)."""

from __future__ import annotations

from collections.abc import Sequence

from fedmpi.errors import counted
from fedmpi.report.records import Record

_DROPPED = "they contributed nothing (train.on_divergence)"
_RESTORED = "their last finite nets were taken (train.on_divergence)"
_MOST_SHOWN = 8


def divergences(records: Sequence[Record]) -> tuple[str, ...]:
    """A line where clients contributed nothing, and one where they were set back to their last finite net: how often
    that was, and of which clients.
    """
    lines = []
    total = sum(len(record.get("cohort") or ()) for record in records)
    for key, then in (("dropped", _DROPPED), ("restored", _RESTORED)):
        if found := [client for record in records for client in record.get(key) or ()]:
            rounds = counted(sum(1 for record in records if record.get(key)), "round")
            how_often = f"{len(found):,} of {counted(total, 'training')}, in {rounds}"
            lines.append(f"diverged: {how_often}, of {_who(found)}: {then}")
    return tuple(lines)


def _who(clients: Sequence[int]) -> str:
    """`client 3`, or `clients 3, 5, 7`, each once."""
    names = [*map(str, sorted(set(clients)))]
    more = f" and {len(names) - _MOST_SHOWN} more" if len(names) > _MOST_SHOWN else ""
    return f"client{'s' * (len(names) > 1)} {', '.join(names[:_MOST_SHOWN])}{more}"
