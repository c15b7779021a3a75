"""Data sets and partitions that a user brings, named in full or by an installed package."""

from __future__ import annotations

from fedmpi.config.schema import Section
from fedmpi.data.partition_options import PartitionOptions
from fedmpi.registry import UnknownError


def options_of_data(name: str, found: object) -> type[Section]:
    """The options class of the data set `found`, which a config calls `name`. Raises `UnknownError`."""
    if isinstance(found, type) and issubclass(found, Section) and hasattr(found, "read"):
        return found
    raise UnknownError(f"{name!r} is no class of options with a function `read`")


def options_of_partition(name: str, found: object) -> type[PartitionOptions]:
    """The options class of the partition `found`, which a config calls `name`. Raises `UnknownError`."""
    if isinstance(found, type) and issubclass(found, PartitionOptions) and hasattr(found, "divide"):
        return found
    raise UnknownError(f"{name!r} is no subclass of PartitionOptions with a function `divide`")
