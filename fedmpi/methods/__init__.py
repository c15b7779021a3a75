"""The methods, one file each: what the server publishes and how it aggregates, what a client trains and sends back."""

from __future__ import annotations

from fedmpi import registry
from fedmpi.methods.protocol import Method
from fedmpi.methods.values import MethodContext, MethodOptions

__all__ = ["Method", "MethodContext", "create"]


def create(context: MethodContext) -> Method:
    """The method that the context's options name."""
    method: Method = registry.made("method", context.options.name)(context)
    return method


def options_of(name: str, found: object) -> type[MethodOptions]:
    """The options class of a user's method `found`, which a config calls `name`. Raises `UnknownError`."""
    if not isinstance(found, type) or not issubclass(found, Method):
        raise registry.UnknownError(f"{name!r} is no subclass of fedmpi.methods.protocol.Method")
    return found.Options
