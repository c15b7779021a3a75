"""Shows the rounds of a run that is under way: a line for each, and every ten seconds of a long round one with
the clients that are done. A run outlives its terminal.
"""

import errno
import time
from collections import deque
from statistics import fmean

from fedmpi.report.records import Record, accuracies, score_name, scores_of
from fedmpi.report.terminal import COLUMNS, wrapped
from fedmpi.store.units import duration

_EVERY_S = 10.0
_ROUNDS_FOR_ETA = 20  # follows a schedule that makes rounds longer, rides over a single slow one


class Progress:
    """Prints lines about the rounds, or nothing if it is not shown."""

    def __init__(self, total_rounds: int, *, done_rounds: int = 0, is_shown: bool = True) -> None:
        self._is_shown = is_shown
        self._total_rounds = total_rounds
        self._done_rounds = done_rounds
        self._recent_s: deque[float] = deque(maxlen=_ROUNDS_FOR_ETA)
        self._tested: list[str] = []
        self._began_s = time.monotonic()
        self._updated_s = self._began_s

    def clients(self, done: int, total: int) -> None:
        """Shows how many clients of the running round are done, every ten seconds: call it freely."""
        now_s = time.monotonic()
        if now_s - self._updated_s < _EVERY_S:
            return
        self._updated_s = now_s
        taken_s = now_s - self._began_s
        usual_s = fmean(self._recent_s) if self._recent_s else taken_s * total / max(done, 1)
        rest_s = max(usual_s - taken_s, 0.0) + usual_s * (self._total_rounds - self._done_rounds - 1)
        number = self._round(self._done_rounds + 1)
        self.say(f"{number}  clients {done}/{total}  {duration(taken_s)}  ETA {duration(rest_s)}")

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
            if len("  ".join([*parts, loss])) <= COLUMNS:
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
        """Prints a line of its own."""
        if self._is_shown:
            try:
                print(line, flush=True)
            except (OSError, ValueError) as error:  # a closed pipe, a terminal that hung up
                # A full disk may have room again.
                self._is_shown = getattr(error, "errno", None) in (errno.ENOSPC, errno.EDQUOT)
