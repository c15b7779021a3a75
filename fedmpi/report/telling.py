"""How far a long step of a command has come: a line that updates on a terminal, else a plain line now and then."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, TextIO

from fedmpi.report.progress import printable
from fedmpi.report.terminal import columns_of_terminal
from fedmpi.store.units import duration

if TYPE_CHECKING:
    from rich.live import Live

_UPDATE_EVERY_S = 0.2
_PLAIN_EVERY_S = 10.0


class Telling:
    """`telling(done, total)` as often as the caller likes; `total` 0 if unknown.

    >>> with Telling("decoding") as telling:
    ...     telling(3, 10)
    """

    def __init__(self, what: str, amount: Callable[[float], str] = "{:,}".format, stream: TextIO | None = None) -> None:
        self._what, self._amount, self._stream = what, amount, stream or sys.stdout
        self._columns = columns_of_terminal(self._stream)
        self._live: Live | None = None
        self._began_s, self._began_with, self._said_s = 0.0, 0, 0.0

    def __enter__(self) -> Telling:
        return self

    def __exit__(self, *_: object) -> None:
        if self._live is not None:
            self._live.stop()

    def __call__(self, done: int, total: int) -> None:
        now_s = time.monotonic()
        if not self._began_s or done < self._began_with:
            self._began_s, self._began_with, self._said_s = now_s, done, now_s
        elif now_s - self._said_s >= (_UPDATE_EVERY_S if self._columns else _PLAIN_EVERY_S):
            self._said_s = now_s
            self._say(self.line(done, total, now_s - self._began_s))

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

    def _say(self, line: str) -> None:
        text = printable(line, self._stream)
        if not self._columns:
            print(text, file=self._stream, flush=True)
            return
        from fedmpi.report.console import live_line, one_line  # rich loads only where a terminal wants it

        if self._live is None:
            self._live = live_line(self._stream, self._columns)
            self._live.start()
        self._live.update(one_line(text), refresh=True)
