"""The end of a run in one table: what each tier costs and reaches, where the time went, where the files are."""

import contextlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from fedmpi.errors import counted
from fedmpi.report import table_text
from fedmpi.report.records import CLIENTS, Best, Record, incidents, score_name
from fedmpi.report.terminal import wrapped
from fedmpi.store.files import json_safe, write_text
from fedmpi.store.run_dir import RunDir
from fedmpi.store.units import joules, percent, short_duration, si, size

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


def closing_lines(records: Sequence[Record]) -> list[str]:
    """Returns what stands below the table: its caption, accuracy of the clients' own nets, who diverged, what devices
    took, what the method concludes, why the run ended early (`stop`), and the time.
    """
    last = records[-1] if records else {}
    lines = [_CAPTION]
    if own := next((record[CLIENTS] for record in reversed(records) if CLIENTS in record), None):
        lines.append(_clients_line(own))
    lines += incidents(records)
    if "simulated_total_s" in last:
        took = f"{short_duration(last['simulated_total_s'])}, {joules(last['simulated_total_j'])}"
        lines.append(f"on the clients' devices the run took {took}")
    lines += last.get("method", {}).get("conclusions", ())
    if "ended" in last:
        lines.append(f"ended early: {last['ended']}")
    return [*lines, f"time: {_time_line(Best.of(records).split_s())}"]


def print_table(rows: Sequence[TierRow], lines: Sequence[str], run_dir: RunDir) -> None:
    """Prints the table, the lines and where the files are."""
    with contextlib.suppress(OSError, ValueError):  # nobody reads any more; the files still tell
        print()
        table_text.print_lines(_HEADS, [row.cells() for row in rows], 1)
        print(*wrapped(*lines), f"run directory: {run_dir.path}", sep="\n", flush=True)


def write_summary(run_dir: RunDir, rows: Sequence[TierRow], **more: Any) -> None:
    """Writes `report/summary.json` (exact numbers, with `more`). Raises RunDirError."""
    run_dir.make(run_dir.report_dir)
    summary = json_safe({"tiers": [asdict(row) for row in rows], **more})
    write_text(run_dir.report_dir / "summary.json", json.dumps(summary, indent=2) + "\n")


def _time_line(split_s: Mapping[str, float]) -> str:
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
