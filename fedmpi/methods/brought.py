"""A method that a user brings: a subclass of `Method`, named in full or by an installed package."""

from __future__ import annotations

from fedmpi.methods.protocol import Method
from fedmpi.methods.values import MethodOptions
from fedmpi.registry import UnknownError


def options_of(name: str, found: object) -> type[MethodOptions]:
    """The options class of the method `found`, which a config calls `name`. Raises `UnknownError`."""
    if not isinstance(found, type) or not issubclass(found, Method):
        raise UnknownError(f"{name!r} is no subclass of fedmpi.methods.protocol.Method")
    return found.Options
