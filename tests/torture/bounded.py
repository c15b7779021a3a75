"""Cases that are tried in a process beside this one, each within bounds of time and memory.

A case that ends its process is an outcome like any other; the next one is tried in a new process.
"""

from __future__ import annotations

import faulthandler
import json
import os
import resource
import signal
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import NoReturn

from fedmpi.errors import UserError

WALL_S = 600
"""For a case that waits instead of computing; the machine may have other things to do."""
ADDRESS_SPACE_BYTES = 2**30
"""A child may map so much more than it begins with, and not one byte beyond."""

Attempt = Callable[[], tuple[str, str]]
"""Returns a verdict, in a word, and a detail."""
Draw = Callable[[int], tuple[str, Attempt]]
"""The kind of a case, and the case itself, by its number; the same each time."""


@dataclass(frozen=True)
class Outcome:
    """What became of a case: its verdict, or `traceback`, `crash`, `hang`, `memory`; and what it took, of one core."""

    number: int
    kind: str
    verdict: str
    detail: str = ""
    seconds: float = 0.0
    megabytes: float = 0.0


def outcomes(numbers: Sequence[int], draw: Draw, *, most_s: float, most_bytes: int) -> Iterator[Outcome]:
    """Of each case, in turn. A hang's traceback goes to stderr.

    The child is made by fork: torch must not have started threads here, which the child would not have.
    """
    left = list(numbers)
    while left:
        heard, say = os.pipe()
        child = os.fork()
        if child == 0:
            _try_all(left, draw, most_s, most_bytes, say)
        os.close(say)
        with open(heard, encoding="utf-8") as lines:
            for line in lines:
                del left[0]
                yield Outcome(**json.loads(line))
        _, status = os.waitpid(child, 0)
        if left:
            number, ended_by = left.pop(0), os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0
            yield Outcome(number, draw(number)[0], "hang" if ended_by in _TIME_IS_UP else "crash")


_TIME_IS_UP = (signal.SIGPROF, signal.SIGALRM)


def _try_all(numbers: Sequence[int], draw: Draw, most_s: float, most_bytes: int, say: int) -> NoReturn:
    """The child: a line of JSON a case. Ends the process, whatever happens."""
    try:
        _limit_memory()
        for number in _TIME_IS_UP:
            faulthandler.register(number, chain=True)
        for number in numbers:
            kind, attempt = draw(number)
            before, started = reset_peak(), time.process_time()
            signal.setitimer(signal.ITIMER_PROF, most_s)
            signal.alarm(WALL_S)
            try:
                verdict, detail = attempt()
            except BaseException:  # noqa: BLE001 - whatever it is, it is what we are looking for
                verdict, detail = "traceback", traceback.format_exc(limit=-6)
            signal.setitimer(signal.ITIMER_PROF, 0)
            signal.alarm(0)
            seconds, taken = time.process_time() - started, peak() - before
            verdict = "memory" if taken > most_bytes else verdict
            outcome = Outcome(number, kind, verdict, detail, seconds, taken / 1e6)
            os.write(say, f"{json.dumps(asdict(outcome))}\n".encode())
    finally:
        os._exit(0)


def _limit_memory() -> None:
    mapped = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (mapped + ADDRESS_SPACE_BYTES,) * 2)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def reset_peak() -> int:
    """Sets the process's peak back to what it holds now, in bytes, and gives that."""
    Path("/proc/self/clear_refs").write_text("5")
    return peak()


def peak() -> int:
    status = Path("/proc/self/status").read_text()
    return 1024 * int(status.partition("VmHWM:")[2].split()[0])


def answer(read: Callable[[], str]) -> tuple[str, str]:
    """What reading gives, or `refused` where it raises an error of one printable line."""
    try:
        return read(), ""
    except UserError as error:
        is_line = all(map(str.isprintable, error.problems))
        return ("refused", "") if is_line else ("traceback", repr(error.problems))
