"""Whether a worker's memory grows with the cohort: its peak for 10 and for 100 clients a round, and a bare loop's."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from fedmpi.studies.bench.on_ranks import launched, of_all, peak_bytes, prepared, rounds_of
from fedmpi.studies.bench.overhead import BareLoop

WORDS = ("clients.count=100", "data.num_train=6400", "train.local_epochs=1")
"""On top of a case: the same data and the same batch of 64 whatever the cohort."""


def print_growth(title: str, words: Sequence[str], ranks: int) -> None:
    """Measures each in processes of its own."""
    bare = launched("growth", [*words, "clients.per_round=4"], is_bare=True)["peak_bytes"]
    peaks = {}
    for cohort in (10, 100):
        own = [*words, f"clients.per_round={cohort}"]
        peaks[cohort] = launched("growth", own, ranks, is_bare=False)["peak_bytes"]
    ratios = f"{peaks[10] / bare:.2f} at 10 clients a round, {peaks[100] / bare:.2f} at 100"
    print(f"{title}: worker's peak / bare loop's = {ratios} (bare {bare / 1e6:.0f} MB)", flush=True)


def on_ranks(comm: Any, folder: Path, words: Sequence[str], is_bare: bool) -> dict[str, float]:
    """The peak of a bare loop, or of the worker that has the largest."""
    if is_bare:
        BareLoop(replace(prepared(comm, folder, words), trainers=())).run(1)  # the loop's own net and optimizer only
        return {"peak_bytes": peak_bytes()}
    next(rounds_of(prepared(comm, folder, words)))
    peaks = of_all(comm, [peak_bytes()])[:, 0]
    return {"peak_bytes": float(peaks[1:].max() if len(peaks) > 1 else peaks.max())}
