"""Observers of a run, which may fail. They have three hooks, all optional, called on rank 0 only, in this order.

    run_started(started)   before the first round of a start
    round_done(record)     after each round, when it is saved: the line that `rounds.jsonl` has of it
    run_ended(ended)       after the last round, or where the run stops before it; not where it fails or is killed

The README of this folder says how a user names a class of them (`output.observers`).
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from fedmpi import registry
from fedmpi.config.schema import Config
from fedmpi.errors import ConfigError, UnknownError, UserError, as_one_line, one_line
from fedmpi.report.terminal import warn


@dataclass(frozen=True)
class Started:
    """A start of a run; `config` is the whole config, as in `config.yaml`, and `done` is above 0 if it is resumed."""

    config: Mapping[str, Any]
    run_dir: Path
    done: int


@dataclass(frozen=True)
class Ended:
    """The end of a start: why it is `stopped` before the last round, empty if the run is finished; by tier the last and
    the best accuracy, and the round of the best."""

    done: int
    stopped: str
    last: Mapping[str, float]
    best: Mapping[str, float]
    best_round: Mapping[str, int]


HOOKS = ("run_started", "round_done", "run_ended")
Makers = Mapping[str, Callable[[], object]]
"""Name of an observer -> what makes it."""


def named(config: Config) -> Makers:
    """Returns the user's observers, imported but not made. Raises `ConfigError` for classes that are none."""
    makers = {}
    wrong = []
    for place in config.output.observers:
        try:
            makers[place] = found = registry.import_object(place)
        except UnknownError as error:
            wrong.append(str(error))
            continue
        if not isinstance(found, type) or not any(hasattr(found, hook) for hook in HOOKS):
            wrong.append(f"{place!r} is not a class with one of {', '.join(HOOKS)}")
    if wrong:
        raise ConfigError("output.observers", *wrong)
    return makers


def _misspelled(made: object) -> Iterator[str]:
    """Yields a line for each name that is nearly that of a hook which the observer lacks."""
    lacking = [hook for hook in HOOKS if not hasattr(made, hook)]
    for name in sorted({*dir(made)} - {*HOOKS}):
        for hook in get_close_matches(name, lacking, 1, 0.7):
            yield f"{name} is never called; did you mean {hook}?"


class Observers:
    """Calls the hooks of all. One that raises is reported once and called no more; each hears of its own copy."""

    def __init__(self, makers: Makers) -> None:
        self._made: dict[str, object] = {}
        for name, make in makers.items():
            with self._reported_once(name, "making it"):
                self._made[name] = made = make()
                for line in _misspelled(made):
                    warn(f"{type(made).__name__}.{line}")

    def call(self, hook: str, value: object) -> None:
        """Calls `hook(value)` of every observer that has it."""
        for name, made in [*self._made.items()]:
            call: Callable[[object], object] | None = getattr(made, hook, None)
            if call is not None:
                with self._reported_once(name, hook):
                    call(deepcopy(value))

    @contextmanager
    def _reported_once(self, name: str, what: str) -> Iterator[None]:
        try:
            yield
        except BaseException as error:
            if not isinstance(error, (Exception, SystemExit)):
                raise
            self._made.pop(name, None)
            why = error.text() if isinstance(error, UserError) else f"{what} raised {as_one_line(error)}"
            warn(one_line(f"the observer {name} is called no more: {why}"))
