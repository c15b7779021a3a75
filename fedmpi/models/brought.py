"""A model that a user brings: a class of options with `net`, named in full or by an installed package."""

from __future__ import annotations

from fedmpi.config.schema import Section
from fedmpi.registry import UnknownError


def options_of(name: str, found: object) -> type[Section]:
    """The options class of the model `found`, which a config calls `name`. Raises `UnknownError`."""
    if isinstance(found, type) and issubclass(found, Section) and hasattr(found, "net"):
        return found
    raise UnknownError(f"{name!r} is no class of options with a function `net`")
