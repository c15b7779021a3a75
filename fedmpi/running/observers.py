"""Observers that may fail: TensorBoard's events, and the classes that `output.observers` names."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass
from difflib import get_close_matches

from fedmpi import registry
from fedmpi.config.schema import Config
from fedmpi.errors import ConfigError, UnknownError, UserError, as_one_line, one_line

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
            made_by = registry.imported(place)
        except UnknownError as error:
            raise ConfigError("output.observers", str(error)) from None
        if not isinstance(made_by, type) or not any(hasattr(made_by, hook) for hook in HOOKS):
            problem = "; ".join([f"{place!r} is not a class with one of {', '.join(HOOKS)}", *misspelled(made_by)])
            raise ConfigError("output.observers", problem)
        with contextlib.suppress(ValueError):  # of a class that is not Python's
            parameters = inspect.signature(made_by).parameters.values()
            named_ones = [one for one in parameters if one.kind not in (one.VAR_POSITIONAL, one.VAR_KEYWORD)]
            if needed := [one.name for one in named_ones if one.default is one.empty]:
                problem = f"{place!r} is made without arguments, but needs {', '.join(needed)}; give them defaults"
                raise ConfigError("output.observers", problem)
        found.append(Observed(made_by, f"the observer {place} is called no more"))
    return found


def misspelled(made_by: object) -> list[str]:
    """A line for each public method whose name is nearly that of a hook which the class lacks."""
    names = [name for name in dir(made_by) if name[0] != "_" and callable(getattr(made_by, name))]
    lacking = [hook for hook in HOOKS if hook not in names]
    near = {name: get_close_matches(name, lacking, 1, 0.7) for name in names if name not in HOOKS}
    return [f"{name} is never called; did you mean {hooks[0]}?" for name, hooks in near.items() if hooks]


class Observers:
    """Calls the hooks of all. One that raises is reported once and called no more; each hears of its own copy."""

    def __init__(self, observed: Sequence[Observed], warn: Callable[[str], None]) -> None:
        self._warn = warn
        self._made: list[tuple[Observed, object]] = []
        for one in observed:
            with self._spared(one, "making it"):
                self._made.append((one, made := one.make()))
                for line in misspelled(made):
                    warn(f"{type(made).__name__}.{line}")

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
            why = error.text() if isinstance(error, UserError) else f"{what} raised {as_one_line(error)}"
            self._warn(one_line(f"{one.without}: {why}"))
