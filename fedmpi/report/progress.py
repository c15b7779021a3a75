"""What is shown while work is under way: the rounds of a run on rank 0, or how far a long step of a command has come.

`plain` is whole lines, safe for log files: one a round, and within a long round now and then one with the clients done.
`live` has, below the lines of the rounds, one that updates itself with the clients of the running round. `auto` is live
on a terminal and plain in files, in pipes and under a launcher (see terminal.py). A run outlives its terminal.
"""

from __future__ import annotations

import contextlib
import errno
import sys
import textwrap
import time
from collections import deque
from collections.abc import Callable, Sequence
from statistics import fmean
from typing import Literal, TextIO

from fedmpi.report.records import Record, accuracies
from fedmpi.report.terminal import DEFAULT_COLUMNS, Screen, columns_of_terminal, warning
from fedmpi.store.units import duration

Mode = Literal["auto", "live", "plain", "off"]
_UPDATE_EVERY_S = 0.2
_PLAIN_EVERY_S = 10.0
_WITHIN_ROUND_S = (5.0, 30.0)
"""Between two plain lines of one round: in its first minute, and later."""
_ROUNDS_FOR_ETA = 20  # follows a schedule that makes rounds longer, rides over a single slow one


class Progress:
    """Shows the rounds of a run.

    >>> with Progress("auto", total_rounds=100) as progress:
    ...     progress.clients(3, 10)
    ...     progress.round_done(record)
    """

    def __init__(self, mode: Mode, total_rounds: int, *, done_rounds: int = 0, stream: TextIO | None = None) -> None:
        stream = stream or sys.stdout
        columns = columns_of_terminal(stream) if mode in ("auto", "live") else 0
        self._screen = Screen(stream, columns or DEFAULT_COLUMNS * (mode == "live"))
        self._columns = min(columns or DEFAULT_COLUMNS, DEFAULT_COLUMNS)
        self._is_off = mode == "off"
        self._shows = not self._is_off
        self._total_rounds, self._done_rounds = total_rounds, done_rounds
        self._recent_s: deque[float] = deque(maxlen=_ROUNDS_FOR_ETA)
        self._tested: list[str] = []
        self._updated_s, self._began_s = 0.0, time.monotonic()

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, *_: object) -> None:
        self._safely(self._screen.close)

    def clients(self, done: int, total: int) -> None:
        """Notes how many clients of the running round are done. Shown at most five times a second: call it freely."""
        now_s = time.monotonic()
        taken_s = now_s - self._began_s
        if self._screen.is_live:
            is_due = now_s - self._updated_s >= _UPDATE_EVERY_S
        else:
            is_due = now_s - max(self._updated_s, self._began_s) >= _WITHIN_ROUND_S[taken_s > 60]
        if is_due:
            self._updated_s = now_s
            rest_s = taken_s * (total - done) / max(done, 1)
            if self._recent_s:  # a round slower than the last ones takes no time from later ones
                usual_s = fmean(self._recent_s)
                rest_s = self.eta_s() - usual_s + max(usual_s - taken_s, rest_s if done else 0.0)
            eta = f"ETA {duration(rest_s)}{'' if self._recent_s else ' (this round)'}"
            number, times = self._round(self._done_rounds + 1), [duration(taken_s), eta]
            line = self._fitting([number, f"clients {done}/{total}", *times], [number, *times])
            self._safely(lambda: self._screen.update(line) if self._screen.is_live else self._screen.print(line))

    def round_done(self, record: Record) -> None:
        """`round 3/50  2.31 s  ETA 1:49  loss 0.412  accuracy 91.2 90.0 88.7 %`; once before, whose these are."""
        self._done_rounds, seconds, loss = record["round"], record["seconds"]["wall"], record["train_loss"]
        self._recent_s.append(seconds)
        self._began_s = time.monotonic()
        found = accuracies(record)
        parts = [self._round(self._done_rounds), f"{seconds:.2f} s", f"ETA {duration(self.eta_s())}"]
        losses = [] if loss is None else [f"loss {loss:.4g}"]
        every, ends = _shown([*found.values()])
        line = self._fitting([*parts, *losses, *every], [*parts, *every], [*parts, *losses, *ends], [*parts, *ends])
        if found and (tested := [*found]) != self._tested:
            self._tested = tested
            self._say_whose(tested, is_every=line.endswith(every[0]))
        self._safely(lambda: self._screen.print(line))

    def _fitting(self, *lines: Sequence[str]) -> str:
        """The first of these that fits on a line, or the last."""
        joined = ["  ".join(parts) for parts in lines]
        return next((line for line in joined if len(line) <= self._columns), joined[-1])

    def _round(self, number: int) -> str:
        return f"round {number:>{len(str(self._total_rounds))}}/{self._total_rounds}"

    def _say_whose(self, tested: Sequence[str], is_every: bool) -> None:
        """Names of tiers are often numbers, so they do not stand between the numbers of a line."""
        how = ", in this order" if is_every else ": the lowest to the highest, because not all fit on a line"
        names = f"accuracy of {', '.join(tested)}" + how * (len(tested) > 1)
        for line in textwrap.wrap(names, self._columns, subsequent_indent="  "):
            self.say(line)

    def eta_s(self) -> float:
        """Seconds to go, by the mean of the last rounds."""
        left_rounds = max(self._total_rounds - self._done_rounds, 0)
        return left_rounds * fmean(self._recent_s or (0.0,))

    def say(self, line: str) -> None:
        """Print a line of its own (above the live one)."""
        self._safely(lambda: self._screen.print(line))

    def warn(self, line: str) -> None:
        """Says it as `say` does, with `warning: ` in front; with `off` on stderr, because a warning must be seen."""
        if self._is_off:
            with contextlib.suppress(OSError, ValueError):
                print(warning(line), file=sys.stderr, flush=True)
        self.say(warning(line))

    def _safely(self, show: Callable[[], None]) -> None:
        if self._shows:
            try:
                show()
            except (OSError, ValueError) as error:  # a closed pipe, a terminal that hung up
                # A full disk may have room again.
                self._shows = getattr(error, "errno", None) in (errno.ENOSPC, errno.EDQUOT)


def _shown(shares: Sequence[float]) -> tuple[list[str], list[str]]:
    """Every accuracy, and the lowest to the highest; both empty where there is none."""
    if not shares:
        return [], []
    every = f"accuracy {' '.join(f'{100 * share:.1f}' for share in shares)} %"
    return [every], [f"accuracy {100 * min(shares):.1f} to {100 * max(shares):.1f} %"]


class Telling:
    """How far a long step of a command has come: a line that updates itself on a terminal, else a line now and then.

    Called as `telling(done, total)`, as often as the caller likes; `total` is 0 if unknown.

    >>> with Telling("decoding") as telling:
    ...     telling(3, 10)
    """

    def __init__(self, what: str, amount: Callable[[float], str] = "{:,}".format, stream: TextIO | None = None) -> None:
        self._what, self._amount = what, amount
        self._screen = Screen(stream or sys.stdout, columns_of_terminal(stream or sys.stdout))
        self._began_s, self._began_with, self._said_s = 0.0, 0, 0.0

    def __enter__(self) -> Telling:
        return self

    def __exit__(self, *_: object) -> None:
        self._screen.close()

    def __call__(self, done: int, total: int) -> None:
        now_s = time.monotonic()
        if not self._began_s or done < self._began_with:
            self._began_s, self._began_with, self._said_s = now_s, done, now_s
        elif now_s - self._said_s >= (_UPDATE_EVERY_S if self._screen.is_live else _PLAIN_EVERY_S):
            self._said_s = now_s
            show = self._screen.update if self._screen.is_live else self._screen.print
            show(self.line(done, total, now_s - self._began_s))

    def line(self, done: int, total: int, seconds: float) -> str:
        """`file.zip  45.00 MB of 170.50 MB  26 %  5.10 MB/s  0:25 to go`."""
        rate = (done - self._began_with) / seconds if seconds > 0 else 0.0
        parts = [f"{self._what}  {self._amount(done)}"]
        if total:
            parts[0] += f" of {self._amount(total)}"
            parts.append(f"{100 * done // total} %")
        if rate > 0:
            parts.append(f"{self._amount(round(rate))}/s")
            parts += [f"{duration((total - done) / rate)} to go"] if total else []
        return "  ".join(parts)
