"""Observers that may fail: TensorBoard's events, and the classes that `output.observers` names."""

from __future__ import annotations

import inspect
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass

from fedmpi import registry
from fedmpi.config.schema import Config
from fedmpi.errors import ConfigError, UserError, one_line

HOOKS = ("run_started", "round_done", "run_ended")


@dataclass(frozen=True)
class Observed:
    """One observer: how it is made, and what its failure means, in words."""

    make: Callable[[], object]
    without: str


def named(config: Config) -> list[Observed]:
    """The user's observers, imported but not made. Raises `ConfigError` for a class that is none."""
    found = []
    for place in config.output.observers:
        try:
            made_by = registry.brought(place)
        except registry.UnknownError as error:
            raise ConfigError("output.observers", str(error)) from None
        if not isinstance(made_by, type) or not any(hasattr(made_by, hook) for hook in HOOKS):
            raise ConfigError("output.observers", f"{place!r} is no class with one of {', '.join(HOOKS)}")
        if needed := _needed(made_by):
            problem = f"{place!r} is made without arguments, but needs {', '.join(needed)}; give them defaults"
            raise ConfigError("output.observers", problem)
        found.append(Observed(made_by, f"the observer {place} is called no more"))
    return found


def _needed(made_by: type) -> list[str]:
    """The arguments that making it takes and that have no default."""
    try:
        parameters = inspect.signature(made_by).parameters.values()
    except ValueError:  # of a class that is not Python's
        return []
    named_ones = [one for one in parameters if one.kind not in (one.VAR_POSITIONAL, one.VAR_KEYWORD)]
    return [one.name for one in named_ones if one.default is one.empty]


class Observers:
    """Calls the hooks of all. One that raises is reported once and called no more; each hears of its own copy."""

    def __init__(self, observed: Sequence[Observed], warn: Callable[[str], None]) -> None:
        self._warn = warn
        self._made: list[tuple[Observed, object]] = []
        for one in observed:
            with self._spared(one, "making it"):
                self._made.append((one, one.make()))

    def call(self, hook: str, value: object) -> None:
        """`hook(value)` of every observer that has it."""
        for one, observer in self._made[:]:
            call: Callable[[object], object] | None = getattr(observer, hook, None)
            if call is not None:
                with self._spared(one, hook):
                    call(deepcopy(value))

    @contextmanager
    def _spared(self, one: Observed, what: str) -> Iterator[None]:
        try:
            yield
        except BaseException as error:
            if not isinstance(error, (Exception, SystemExit)):
                raise
            self._made = [pair for pair in self._made if pair[0] is not one]
            place = traceback.extract_tb(error.__traceback__)[-1]
            why = f"{what} raised {type(error).__name__}: {error} ({place.filename}:{place.lineno})"
            why = error.text() if isinstance(error, UserError) else why
            self._warn(one_line(f"{one.without}: {why}"))
