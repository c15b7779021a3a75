"""Observers that may fail: TensorBoard's events, and the classes that `output.observers` names."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass

from fedmpi.config.hooks import misspelled, observer, problems
from fedmpi.config.schema import Config
from fedmpi.errors import ConfigError, UserError, as_one_line, one_line
from fedmpi.report.terminal import warn


@dataclass(frozen=True)
class Observed:
    """One observer: how it is made, and what its failure means, in words."""

    make: Callable[[], object]
    without: str


def named(config: Config) -> list[Observed]:
    """Returns the user's observers, imported but not made. Raises `ConfigError` for classes that are none."""
    places = config.output.observers
    if wrong := [*problems(places)]:
        raise ConfigError("output.observers", *wrong)
    return [Observed(observer(place), f"the observer {place} is called no more") for place in places]


class Observers:
    """Calls the hooks of all. One that raises is reported once and called no more; each hears of its own copy."""

    def __init__(self, observed: Sequence[Observed]) -> None:
        self._made: list[tuple[Observed, object]] = []
        for one in observed:
            with self._reported_once(one, "making it"):
                self._made.append((one, made := one.make()))
                for line in misspelled(made):
                    warn(f"{type(made).__name__}.{line}")

    def call(self, hook: str, value: object) -> None:
        """Calls `hook(value)` of every observer that has it."""
        for one, made in self._made[:]:
            call: Callable[[object], object] | None = getattr(made, hook, None)
            if call is not None:
                with self._reported_once(one, hook):
                    call(deepcopy(value))

    @contextmanager
    def _reported_once(self, one: Observed, what: str) -> Iterator[None]:
        try:
            yield
        except BaseException as error:
            if not isinstance(error, (Exception, SystemExit)):
                raise
            self._made = [pair for pair in self._made if pair[0] is not one]
            why = error.text() if isinstance(error, UserError) else f"{what} raised {as_one_line(error)}"
            warn(one_line(f"{one.without}: {why}"))
