"""What `output.observers` names: classes of the user's with hooks. To look at them is to import them."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Iterable, Iterator
from difflib import get_close_matches
from types import FunctionType

from fedmpi import registry
from fedmpi.errors import UnknownError

HOOKS = ("run_started", "round_done", "run_ended")


def observer(place: str) -> type:
    """The class `package.module:Class`. Raises `UnknownError` for one that hears of nothing, or cannot be made."""
    made_by = registry.imported(place)
    if not isinstance(made_by, type) or not any(hasattr(made_by, hook) for hook in HOOKS):
        problem = f"{place!r} is not a class with one of {', '.join(HOOKS)}"
        raise UnknownError("; ".join([problem, *misspelled(made_by)]))
    with contextlib.suppress(ValueError):  # of a class that is not Python's
        parameters = inspect.signature(made_by).parameters.values()
        named_ones = [one for one in parameters if one.kind not in (one.VAR_POSITIONAL, one.VAR_KEYWORD)]
        if needed := [one.name for one in named_ones if one.default is one.empty]:
            problem = f"{place!r} is made without arguments, but needs {', '.join(needed)}; give them defaults"
            raise UnknownError(problem)
    for hook in HOOKS:
        if isinstance(call := inspect.getattr_static(made_by, hook, None), FunctionType):
            try:
                inspect.signature(call).bind(made_by, "what it is told")
            except TypeError as error:
                raise UnknownError(f"{place!r}: {hook} is called with one argument beside self: {error}") from None
    return made_by


def problems(places: Iterable[str]) -> Iterator[str]:
    """What is wrong with each of these that is no observer."""
    for place in places:
        try:
            observer(place)
        except UnknownError as error:
            yield str(error)


def misspelled(made_by: object) -> list[str]:
    """A line for each public method whose name is nearly that of a hook which the class lacks."""
    names = [name for name in dir(made_by) if name[0] != "_" and callable(getattr(made_by, name))]
    lacking = [hook for hook in HOOKS if hook not in names]
    near = {name: get_close_matches(name, lacking, 1, 0.7) for name in names if name not in HOOKS}
    return [f"{name} is never called; did you mean {hooks[0]}?" for name, hooks in near.items() if hooks]
