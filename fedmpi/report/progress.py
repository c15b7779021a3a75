"""What rank 0 shows while a run goes on.

`plain` is one line a round and safe for log files; `live` is one line that updates itself, with
the clients of the round as they finish; `auto` is live on a terminal and plain in files, in pipes and under a launcher
(see terminal.py).
A terminal that goes away does not end the run.
"""

from __future__ import annotations

import contextlib
import errno
import sys
import time
from collections import deque
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Literal, TextIO

from fedmpi.report.records import Record, accuracies
from fedmpi.report.terminal import DEFAULT_COLUMNS, columns_of_terminal
from fedmpi.store.units import duration

if TYPE_CHECKING:
    from rich.live import Live

Mode = Literal["auto", "live", "plain", "off"]
_UPDATE_EVERY_S = 0.2
_ROUNDS_FOR_ETA = 20  # follows a schedule that makes rounds longer, rides over a single slow one


class Progress:
    """Shows the rounds of a run.

    >>> with Progress("auto", total_rounds=100) as progress:
    ...     progress.clients(3, 10)
    ...     progress.round_done(record)
    """

    def __init__(self, mode: Mode, total_rounds: int, *, done_rounds: int = 0, stream: TextIO | None = None) -> None:
        self._stream = stream or sys.stdout
        columns = columns_of_terminal(self._stream) if mode in ("auto", "live") else 0
        self._is_off = mode == "off"
        self._shows = not self._is_off
        is_live = mode == "live" or (mode == "auto" and columns > 0)
        self._live = _live_line(self._stream, columns or DEFAULT_COLUMNS) if is_live else None
        self._total_rounds, self._done_rounds = total_rounds, done_rounds
        self._recent_s: deque[float] = deque(maxlen=_ROUNDS_FOR_ETA)
        self._last_round = ""
        self._updated_s = 0.0

    def __enter__(self) -> Progress:
        if self._live is not None:
            self._safely(self._live.start)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live is not None:
            self._safely(self._live.stop)

    def clients(self, done: int, total: int) -> None:
        """So many clients of the running round are done. Live only, and at most five times a second: call it freely."""
        now_s = time.monotonic()
        if self._live is not None and now_s - self._updated_s >= _UPDATE_EVERY_S:
            self._updated_s = now_s
            self._update(f"round {self._done_rounds + 1}/{self._total_rounds}  clients {done}/{total}")

    def round_done(self, record: Record) -> None:
        seconds, loss, number = record["seconds"]["wall"], record["train_loss"], record["round"]
        self._done_rounds = number
        self._recent_s.append(seconds)
        self._last_round = round_line(number, self._total_rounds, loss, accuracies(record), seconds, self.eta_s())
        if self._live is not None:
            self._update("")
        else:
            self.say(self._last_round)

    def eta_s(self) -> float:
        """Seconds to go, by the mean of the last rounds."""
        left_rounds = max(self._total_rounds - self._done_rounds, 0)
        return left_rounds * sum(self._recent_s) / max(len(self._recent_s), 1)

    def say(self, line: str) -> None:
        """Print a line of its own (above the live one)."""
        if self._live is not None:
            console, text = self._live.console, printable(line, self._stream)
            self._safely(lambda: console.print(text, soft_wrap=True))
        else:
            self._safely(lambda: print(printable(line, self._stream), file=self._stream, flush=True))

    def warn(self, line: str) -> None:
        """As `say`, with `warning: ` in front; with `off` on stderr, because a warning must be seen."""
        if self._is_off:
            with contextlib.suppress(OSError, ValueError):
                print(f"warning: {line}", file=sys.stderr, flush=True)
        self.say(f"warning: {line}")

    def _update(self, running: str) -> None:
        if self._live is not None:
            from fedmpi.report.console import one_line

            line = "  |  ".join(part for part in (running, self._last_round) if part)
            live, shown = self._live, one_line(printable(line, self._stream))
            self._safely(lambda: live.update(shown, refresh=True))

    def _safely(self, show: Callable[[], None]) -> None:
        if self._shows:
            try:
                show()
            except (OSError, ValueError) as error:  # a closed pipe, a terminal that hung up
                # A full disk may have room again.
                self._shows = getattr(error, "errno", None) in (errno.ENOSPC, errno.EDQUOT)


def round_line(
    round_number: int,
    total_rounds: int,
    loss: float | None,
    accuracy: Mapping[str, float],
    seconds: float,
    eta_s: float,
) -> str:
    """`round 3/50  accuracy full 91.2 % half 90.0 %  loss 0.412  2.31 s  ETA 1:49`."""
    parts = [f"round {round_number:>{len(str(total_rounds))}}/{total_rounds}"]
    if accuracy:
        parts.append("accuracy " + " ".join(f"{tier} {100 * share:.1f} %" for tier, share in accuracy.items()))
    if loss is not None:
        parts.append(f"loss {loss:.4g}")
    return "  ".join([*parts, f"{seconds:.2f} s", f"ETA {duration(eta_s)}"])


def printable(text: str, stream: TextIO) -> str:
    """`text` without what the stream's encoding has no sign for."""
    encoding = getattr(stream, "encoding", None) or "ascii"
    return text.encode(encoding, errors="replace").decode(encoding)


def _live_line(stream: TextIO, columns: int) -> Live:
    from fedmpi.report.console import live_line  # rich loads only where a terminal wants it

    return live_line(stream, columns)
