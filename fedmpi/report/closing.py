"""The end of a run in one table: what each tier costs and reaches, where the time went, where the files are.

The stages of the time split are those of PriSM's Table 3 (sub-model creation, local training,
aggregation, SVD) and the ones that a simulation has besides.
"""

from __future__ import annotations

import json
import sys
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Protocol, TextIO

import numpy as np

from fedmpi.errors import counted
from fedmpi.report import table_text
from fedmpi.report.records import CLIENTS
from fedmpi.report.terminal import DEFAULT_COLUMNS, NO_BREAK, printable, wrapped
from fedmpi.store.files import json_safe, write_text
from fedmpi.store.run_dir import RunDir
from fedmpi.store.units import percent, si, size, took

_HEADS = ("tier", "capacity", "params", "MACs", "down/client", "up/client", "last", "best", "at round")
_SHORT_HEADS = ("tier", "share", "params", "MACs", "down", "up", "last %", "best %", "round")
_CAPTION = "share: of the full net's capacity; down and up: bytes of a client in a round"


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
        """Its name and what is known of it before the first round, by the names of the fields."""
        return {key: value for key, value in asdict(self).items() if not key.startswith(("accuracy", "best"))}

    def cells(self) -> tuple[str, ...]:
        ratio = "-" if self.capacity is None else f"{self.capacity:g}"
        best_round = "-" if self.best_round is None else str(self.best_round)
        costs = (si(self.params), si(self.macs), size(self.down_bytes), size(self.up_bytes))
        return (self.name, ratio, *costs, percent(self.accuracy_last), percent(self.accuracy_best), best_round)


def closing_table(
    rows: Sequence[TierRow],
    split_s: Mapping[str, float],
    run_dir: RunDir,
    clients: ClientScores | None = None,
    conclusions: Sequence[str] = (),
    *,
    stream: TextIO | None = None,
) -> None:
    """Print the table and write `report/summary.json` (exact numbers), `report/summary.md` and, where clients were
    tested with nets of their own, `report/clients.csv`.

    `split_s` has the seconds of each stage, named as in `clock.STAGES`; stages of zero seconds are left
    out of the printed line. `conclusions` are lines that the method adds. Raises RunDirError if the files cannot be
    written.
    """
    stream = stream or sys.stdout
    cells = [row.cells() for row in rows]
    times = time_line(split_s)
    short = [[cell.removesuffix(" %") for cell in line] for line in cells]  # 80 columns: `%` stands in the heads
    try:
        print(file=stream)
        table_text.print_lines(_SHORT_HEADS, short, 1, stream)
        of_clients = [_clients_line(clients.summary())] if clients is not None else []
        lines = [line for text in (_CAPTION, *of_clients) for line in _broken(text)]
        lines += wrapped(*conclusions)
        lines += [*_broken(f"time: {times}"), f"run directory: {run_dir.path}"]
        print(*(printable(line, stream) for line in lines), sep="\n", file=stream, flush=True)
    except (OSError, ValueError):  # nobody reads any more; the files still tell
        pass
    run_dir.make(run_dir.report_dir)
    summary = json_safe({"tiers": [asdict(row) for row in rows], "time_s": dict(split_s)})
    write_text(run_dir.report_dir / "summary.json", json.dumps(summary, indent=2) + "\n")
    table = "\n".join(table_text.markdown_lines(_HEADS, cells, 1))
    notes = "".join(f"{line[0].upper()}{line[1:]}.\n\n" for line in conclusions)
    text = f"# Results\n\n{table}\n\n{notes}Bytes are per client and round. Time: {times}\n"
    write_text(run_dir.report_dir / "summary.md", text)
    if clients is not None:
        pairs = zip(clients.clients.tolist(), clients.accuracy.tolist(), strict=True)
        write_text(run_dir.report_dir / "clients.csv", "client,accuracy\n" + "".join(f"{c},{a!r}\n" for c, a in pairs))


def _broken(text: str) -> list[str]:
    """Lines of at most 80 columns, broken after commas alone: a number stays with its unit."""
    together = text.replace(" ", NO_BREAK).replace(f",{NO_BREAK}", ", ")
    return [line.replace(NO_BREAK, " ") for line in textwrap.wrap(together, DEFAULT_COLUMNS, subsequent_indent="  ")]


def time_line(split_s: Mapping[str, float]) -> str:
    """`1:15 (local training 80.0 % 60.0 s, svd 20.0 % 15.0 s)`, the largest stage first."""
    total_s = sum(split_s.values())
    shares = ", ".join(
        f"{stage.replace('_', ' ')} {100 * seconds / total_s:.1f} % {seconds:.{1 if total_s >= 1 else 2}f} s"
        for stage, seconds in sorted(split_s.items(), key=lambda item: -item[1])
        if seconds > 0
    )
    return f"{took(total_s)} ({shares})" if shares else took(total_s)


def _clients_line(summary: Mapping[str, float]) -> str:
    mean, std, worst = (percent(summary[name]) for name in ("accuracy", "std", "worst_decile"))
    line = f"{CLIENTS}: each one's own net on its own test data: mean {mean}, std {std}, worst decile {worst}"
    untested = int(summary["without_test_data"])
    tested = counted(int(summary["clients"]), "client")
    return line + (f" ({tested}; {untested:,} have no test data)" if untested else "")
