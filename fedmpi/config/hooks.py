"""What `output.observers` names: classes of the user's with hooks, which are imported to look at them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from difflib import get_close_matches

from fedmpi import registry
from fedmpi.errors import UnknownError

HOOKS = ("run_started", "round_done", "run_ended")


def observer(place: str) -> type:
    """Returns the class `package.module:Class`. Raises `UnknownError` for one without a hook."""
    found = registry.import_object(place)
    if not isinstance(found, type) or not any(hasattr(found, hook) for hook in HOOKS):
        problem = f"{place!r} is not a class with one of {', '.join(HOOKS)}"
        raise UnknownError("; ".join([problem, *misspelled(found)]))
    return found


def problems(places: Iterable[str]) -> Iterator[str]:
    """Yields what is wrong with each of these that is no observer."""
    for place in places:
        try:
            observer(place)
        except UnknownError as error:
            yield str(error)


def misspelled(found: object) -> Iterator[str]:
    """Yields a line for each public method whose name is nearly that of a hook which the class lacks."""
    names = [name for name in dir(found) if name[0] != "_" and callable(getattr(found, name))]
    lacking = [hook for hook in HOOKS if hook not in names]
    for name in names:
        close = [] if name in HOOKS else get_close_matches(name, lacking, 1, 0.7)
        if close:
            yield f"{name} is never called; did you mean {close[0]}?"
