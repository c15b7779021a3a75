"""Shows the rounds of a run that is under way, on rank 0.

`plain` is whole lines, safe for log files: one a round, and within a long round now and then one with the clients done.
`live` has, below the lines of the rounds, one that updates itself with the clients of the running round. `auto` is live
on a terminal and plain in files, in pipes and under a launcher (see terminal.py). A run outlives its terminal.
"""

from __future__ import annotations

import errno
import sys
import time
from collections import deque
from statistics import fmean
from typing import Literal, TextIO

from fedmpi.report.records import Record, accuracies, score_name, scores_of
from fedmpi.report.terminal import DEFAULT_COLUMNS, ERASED, columns_of_terminal, wrapped
from fedmpi.store.units import duration

Mode = Literal["auto", "live", "plain", "off"]
_LIVE_EVERY_S = 0.2
_PLAIN_EVERY_S = 10.0
_ROUNDS_FOR_ETA = 20  # follows a schedule that makes rounds longer, rides over a single slow one


class Progress:
    """Shows the rounds of a run.

    >>> with Progress("auto", total_rounds=100) as progress:
    ...     progress.clients(3, 10)
    ...     progress.round_done(record)
    """

    def __init__(self, mode: Mode, total_rounds: int, *, done_rounds: int = 0, stream: TextIO | None = None) -> None:
        self._stream = stream or sys.stdout
        self._columns = columns_of_terminal(self._stream) if mode in ("auto", "live") else 0
        if mode == "live":
            self._columns = self._columns or DEFAULT_COLUMNS
        self._has_live_line = False
        self._shows = mode != "off"
        self._total_rounds = total_rounds
        self._done_rounds = done_rounds
        self._recent_s: deque[float] = deque(maxlen=_ROUNDS_FOR_ETA)
        self._tested: list[str] = []
        self._began_s = time.monotonic()
        self._updated_s = self._began_s

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, *_: object) -> None:
        self.erase()

    def erase(self) -> None:
        """Erases the live line."""
        self._write()

    def clients(self, done: int, total: int) -> None:
        """Shows how many clients of the running round are done, at most five times a second: call it freely."""
        now_s = time.monotonic()
        if now_s - self._updated_s < (_LIVE_EVERY_S if self._columns else _PLAIN_EVERY_S):
            return
        self._updated_s = now_s
        taken_s = now_s - self._began_s
        usual_s = fmean(self._recent_s) if self._recent_s else taken_s * total / max(done, 1)
        rest_s = max(usual_s - taken_s, 0.0) + usual_s * (self._total_rounds - self._done_rounds - 1)
        number = self._round(self._done_rounds + 1)
        line = f"{number}  clients {done}/{total}  {duration(taken_s)}  ETA {duration(rest_s)}"
        if self._columns:
            self._write(live_line=line[: self._columns - 1])
        else:
            self.say(line)

    def round_done(self, record: Record) -> None:
        """Shows `round 3/50  2.31 s  ETA 1:49  loss 0.412  accuracy 91.2 90.0 88.7 %`; before, whose these are."""
        seconds = record["seconds"]["wall"]
        self._done_rounds = record["round"]
        self._recent_s.append(seconds)
        self._began_s = time.monotonic()
        self._updated_s = self._began_s
        eta_s = max(self._total_rounds - self._done_rounds, 0) * fmean(self._recent_s)
        parts = [self._round(self._done_rounds), f"{seconds:.2f} s", f"ETA {duration(eta_s)}"]
        tested = accuracies(record)
        if tested:
            score = score_name(scores_of(record, next(iter(tested))))
            parts.append(f"{score} {' '.join(f'{100 * share:.1f}' for share in tested.values())} %")
        if record["train_loss"] is not None:
            loss = f"loss {record['train_loss']:.4g}"
            if len("  ".join([*parts, loss])) <= DEFAULT_COLUMNS:
                parts.insert(3, loss)
        if tested and [*tested] != self._tested:
            # Names of tiers are often numbers, so they do not stand between the numbers of a line.
            self._tested = [*tested]
            order = ", in this order" if len(tested) > 1 else ""
            self.say("\n".join(wrapped(f"{score} of {', '.join(tested)}{order}")))
        self.say("\n".join(wrapped("  ".join(parts))))

    def _round(self, number: int) -> str:
        return f"round {number:>{len(str(self._total_rounds))}}/{self._total_rounds}"

    def say(self, line: str) -> None:
        """Prints a line of its own (above the live one)."""
        self._write(f"{line}\n")

    def _write(self, lines: str = "", live_line: str = "") -> None:
        """Writes whole lines in place of the live one, then a new live one."""
        erased = ERASED if self._has_live_line or live_line else ""
        self._has_live_line = bool(live_line)
        if self._shows:
            try:
                print(f"{erased}{lines}{live_line}", end="", file=self._stream, flush=True)
            except (OSError, ValueError) as error:  # a closed pipe, a terminal that hung up
                # A full disk may have room again.
                self._shows = getattr(error, "errno", None) in (errno.ENOSPC, errno.EDQUOT)
