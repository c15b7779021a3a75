"""The end of a run in one table: what each tier costs and reaches, where the time went, where the files are.

The stages of the time split are those of PriSM's Table 3 (sub-model creation, local training, aggregation, SVD) and the
ones that a simulation has besides.
"""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, TextIO

from fedmpi.errors import counted
from fedmpi.report import table_text
from fedmpi.report.records import CLIENTS, score_name
from fedmpi.report.terminal import wrapped
from fedmpi.store.files import json_safe, write_text
from fedmpi.store.run_dir import RunDir
from fedmpi.store.units import percent, short_duration, si, size

_HEADS = ("tier", "share", "params", "MACs", "down", "up", "last %", "best %", "round")
_CAPTION = "share: of the full net's capacity, or a rank; down and up: bytes of a client in a round"


@dataclass(frozen=True)
class TierRow:
    """One tier of the closing table; accuracies are shares in [0, 1], None where nothing was evaluated."""

    name: str
    capacity: float | None = None
    params: int | None = None
    macs: int | None = None
    """Per example, forward."""
    down_bytes: int | None = None
    """Per client and round, from the server to the client; None where no client has this net."""
    up_bytes: int | None = None
    accuracy_last: float | None = None
    accuracy_best: float | None = None
    best_round: int | None = None

    def costs(self) -> dict[str, Any]:
        """Returns its name and what is known of it before the first round, by the names of the fields."""
        return {key: value for key, value in asdict(self).items() if not key.startswith(("accuracy", "best"))}

    def cells(self) -> tuple[str, ...]:
        """Returns the cells under `_HEADS`."""
        return (
            self.name,
            "-" if self.capacity is None else f"{self.capacity:g}",
            si(self.params),
            si(self.macs),
            size(self.down_bytes),
            size(self.up_bytes),
            percent(self.accuracy_last).removesuffix(" %"),
            percent(self.accuracy_best).removesuffix(" %"),
            "-" if self.best_round is None else str(self.best_round),
        )


def closing_table(
    rows: Sequence[TierRow],
    split_s: Mapping[str, float],
    run_dir: RunDir,
    clients: Mapping[str, float] | None = None,
    conclusions: Sequence[str] = (),
    *,
    ended: str = "",
    state_digest: str = "",
    stream: TextIO | None = None,
) -> None:
    """Prints the table and writes `report/summary.json` (exact numbers) and `report/summary.md`.

    `split_s` has the seconds of each stage, named as in `clock.STAGES`, `clients` what a record has of the clients' own
    nets. `conclusions` are lines that the method adds. `ended` says why the run ended before its last round (`stop`).
    `state_digest` is that of the last checkpoint.
    Raises RunDirError if the files cannot be written.
    """
    stream = stream or sys.stdout
    cells = [row.cells() for row in rows]
    time = f"time: {time_line(split_s)}"
    early = [f"ended early: {ended}"] if ended else []
    lines = [_CAPTION, *([_clients_line(clients)] if clients else []), *conclusions, *early, time]
    with contextlib.suppress(OSError, ValueError):  # nobody reads any more; the files still tell
        print(file=stream)
        table_text.print_lines(_HEADS, cells, 1, stream)
        print(*wrapped(*lines), f"run directory: {run_dir.path}", sep="\n", file=stream, flush=True)
    run_dir.make(run_dir.report_dir)
    content = {"tiers": [asdict(row) for row in rows], "time_s": dict(split_s), "state_digest": state_digest}
    summary = json_safe(content | ({"ended": ended} if ended else {}))
    write_text(run_dir.report_dir / "summary.json", json.dumps(summary, indent=2) + "\n")
    table = "\n".join(table_text.markdown_lines(_HEADS, cells, 1))
    notes = [f"{line[0].upper()}{line[1:]}." for line in lines]
    write_text(run_dir.report_dir / "summary.md", "\n\n".join(["# Results", table, *notes]) + "\n")


def time_line(split_s: Mapping[str, float]) -> str:
    """Returns `1:15 (local training 80.0 % 60.0 s, svd 20.0 % 15.0 s)`, the largest stage first, without zeros."""
    total_s = sum(split_s.values())
    digits = 1 if total_s >= 1 else 2
    shares = [
        f"{stage.replace('_', ' ')} {100 * seconds / total_s:.1f} % {seconds:.{digits}f} s"
        for stage, seconds in sorted(split_s.items(), key=lambda item: -item[1])
        if seconds > 0
    ]
    return f"{short_duration(total_s)} ({', '.join(shares)})" if shares else short_duration(total_s)


def _clients_line(summary: Mapping[str, float]) -> str:
    mean, std, worst = (percent(summary[name]) for name in (score_name(summary), "std", "worst_decile"))
    line = f"{CLIENTS}: each one's own net on its own test data: mean {mean}, std {std}, worst decile {worst}"
    untested = int(summary["without_test_data"])
    tested = counted(int(summary["clients"]), "client")
    return f"{line} ({tested}; {untested:,} have no test data)" if untested else line
