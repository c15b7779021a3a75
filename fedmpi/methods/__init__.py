"""The methods, one file each: what the server publishes and how it aggregates, what a client trains and sends back."""

from collections.abc import Mapping

from fedmpi import registry
from fedmpi.errors import ConfigError, UnknownError, type_in_words, users_code
from fedmpi.methods.protocol import Method
from fedmpi.methods.values import MethodContext, MethodOptions

__all__ = ["Method", "MethodContext", "create"]


def create(context: MethodContext) -> Method:
    """Returns the method that the context's options name. Raises `ConfigError` where a user's own cannot be made."""
    name = context.options.name
    made: type[Method] = registry.load_class("method", name)
    if registry.is_built_in("method", name):
        return made(context)
    with users_code("method.name", f"'{name}' cannot be made", ConfigError):
        method = made(context)
    if not isinstance(method.layers, Mapping):
        found = f"'{name}': `layers` is {type_in_words(method.layers)}"
        raise ConfigError("method.name", f"{found}, expected a mapping from the names of layers to the layers")
    return method


def options_of(name: str, found: object) -> type[MethodOptions]:
    """Returns the options class of a user's method `found`, which a config calls `name`. Raises `UnknownError`."""
    if not isinstance(found, type) or not issubclass(found, Method):
        raise UnknownError(f"{name!r} is not a subclass of fedmpi.methods.protocol.Method")
    options = getattr(found, "Options", None)
    if not isinstance(options, type) or not issubclass(options, MethodOptions):
        base = "fedmpi.methods.values.MethodOptions"
        raise UnknownError(f"`Options` of {name!r} is missing or not a subclass of {base}")
    if options.capacity and options.capacity not in options.model_fields:
        named = f"`capacity` is {options.capacity!r}, which is none of its options"
        raise UnknownError(f"{name!r}: {named} ({', '.join(options.model_fields)})")
    return options
