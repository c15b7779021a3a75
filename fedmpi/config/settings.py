"""Tells settings, which decide a run's results, from places and conveniences, which do not.

The seed decides results, too, but names no setting: runs that differ only by their seeds are repetitions.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fedmpi.config import explain, yaml_text
from fedmpi.config.schema import Config


def is_setting(path: tuple[Any, ...]) -> bool:
    """Returns True if the value at this path of a config decides results, and is not the seed."""
    return path != ("seed",) and path[:2] not in Config.free_keys()


def settings(values: Mapping[str, Any]) -> dict[str, str]:
    """Returns the text of each setting of a config's plain values, by its dotted key."""
    return {explain.dotted(path): yaml_text.flow(value) for path, value in yaml_text.leaves(values) if is_setting(path)}
