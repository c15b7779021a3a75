"""The end of a run in one table: what each tier costs and reaches, where the time went, where the files are.

The stages of the time split are those of PriSM's Table 3 (sub-model creation, local training,
aggregation, SVD) and the ones that a simulation has besides.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Protocol, TextIO

import numpy as np

from fedmpi.report.progress import printable
from fedmpi.report.records import CLIENTS
from fedmpi.report.terminal import columns_of_terminal
from fedmpi.store.files import json_safe, write_text
from fedmpi.store.run_dir import RunDir
from fedmpi.store.units import duration, si, size

_HEADS = ("tier", "capacity", "params", "MACs", "down/client", "up/client", "last", "best", "at round")
_WIDEST_COLUMNS = 120


class ClientScores(Protocol):
    """Accuracy of each client's own net, as `learning.ClientScores`."""

    @property
    def clients(self) -> np.ndarray: ...

    @property
    def accuracy(self) -> np.ndarray: ...

    def summary(self) -> dict[str, float]: ...


@dataclass(frozen=True)
class TierRow:
    """One tier of the closing table; accuracies are shares in [0, 1], None where nothing was evaluated."""

    name: str
    rank_ratio: float | None = None
    params: int | None = None
    macs: int | None = None
    """Per example, forward."""
    down_bytes: int | None = None
    """Per client and round, from the server to the client; None where no client has this net."""
    up_bytes: int | None = None
    accuracy_last: float | None = None
    accuracy_best: float | None = None
    best_round: int | None = None

    def cells(self) -> tuple[str, ...]:
        ratio = "-" if self.rank_ratio is None else f"{self.rank_ratio:g}"
        best_round = "-" if self.best_round is None else str(self.best_round)
        costs = [_or_dash(si, self.params), _or_dash(si, self.macs)]
        costs += [_or_dash(size, self.down_bytes), _or_dash(size, self.up_bytes)]
        return (self.name, ratio, *costs, _percent(self.accuracy_last), _percent(self.accuracy_best), best_round)


def closing_table(
    rows: Sequence[TierRow],
    split_s: Mapping[str, float],
    run_dir: RunDir,
    clients: ClientScores | None = None,
    *,
    stream: TextIO | None = None,
) -> None:
    """Print the table and write `report/summary.json` (exact numbers), `report/summary.md` and, where clients were
    tested with nets of their own, `report/clients.csv`.

    `split_s` has the seconds of each stage, named as in `clock.STAGES`; stages of zero seconds are left
    out of the printed line. Raises RunDirError if the files cannot be written.
    """
    stream = stream or sys.stdout
    try:
        _print_table(rows, stream)
        lines = [_clients_line(clients.summary())] if clients is not None else []
        lines += [f"time: {time_line(split_s)}", f"run directory: {run_dir.path}"]
        print(*(printable(line, stream) for line in lines), sep="\n", file=stream, flush=True)
    except (OSError, ValueError):  # nobody reads any more; the files still tell
        pass
    run_dir.make(run_dir.report_dir)
    write_text(run_dir.report_dir / "summary.json", summary_json(rows, split_s))
    write_text(run_dir.report_dir / "summary.md", summary_markdown(rows, split_s))
    if clients is not None:
        pairs = zip(clients.clients.tolist(), clients.accuracy.tolist(), strict=True)
        write_text(run_dir.report_dir / "clients.csv", "client,accuracy\n" + "".join(f"{c},{a!r}\n" for c, a in pairs))


def summary_json(rows: Sequence[TierRow], split_s: Mapping[str, float]) -> str:
    summary = {"tiers": [asdict(row) for row in rows], "time_s": dict(split_s)}
    return json.dumps(json_safe(summary), indent=2) + "\n"


def summary_markdown(rows: Sequence[TierRow], split_s: Mapping[str, float]) -> str:
    lines = [_HEADS, ("---", *("---:" for _ in _HEADS[1:])), *(row.cells() for row in rows)]
    table = "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)
    return f"# Results\n\n{table}\n\nBytes are per client and round. Time: {time_line(split_s)}\n"


def time_line(split_s: Mapping[str, float]) -> str:
    """`1:15 (local training 80.0 % 60.0 s, svd 20.0 % 15.0 s)`, the largest stage first."""
    total_s = sum(split_s.values())
    if total_s <= 0:
        return duration(total_s)
    ordered = sorted(split_s.items(), key=lambda item: -item[1])
    shares = (
        f"{stage.replace('_', ' ')} {100 * seconds / total_s:.1f} % {seconds:.1f} s"
        for stage, seconds in ordered
        if seconds > 0
    )
    return f"{duration(total_s)} ({', '.join(shares)})"


def _clients_line(summary: Mapping[str, float]) -> str:
    mean, std, worst = (f"{100 * summary[name]:.2f} %" for name in ("accuracy", "std", "worst_decile"))
    line = f"{CLIENTS}: each one's own net on its own test data: mean {mean}, std {std}, worst decile {worst}"
    untested = int(summary["without_test_data"])
    return line + (f" ({int(summary['clients']):,} clients; {untested:,} have no test data)" if untested else "")


def _or_dash(show: Callable[[int], str], value: int | None) -> str:
    return "-" if value is None else show(value)


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{100 * share:.2f} %"


def _print_table(rows: Sequence[TierRow], stream: TextIO) -> None:
    from rich import box
    from rich.table import Table

    from fedmpi.report.console import PlainConsole

    is_unicode = (getattr(stream, "encoding", None) or "").lower().replace("-", "") == "utf8"
    table = Table(box=box.SIMPLE_HEAD if is_unicode else box.ASCII, caption="bytes are per client and round")
    for head in _HEADS:
        table.add_column(head, justify="left" if head == "tier" else "right", no_wrap=True)
    for row in rows:
        table.add_row(*(printable(cell, stream) for cell in row.cells()))
    columns = columns_of_terminal(stream)
    width = max(columns, _WIDEST_COLUMNS)  # a line that wraps in a narrow window beats a cut number
    PlainConsole(stream, columns=width, is_terminal=columns > 0).print(table)
