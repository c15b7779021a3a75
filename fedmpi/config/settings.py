"""Tells settings, which decide a run's results, from places and conveniences, which do not: the one list of them.

The schema marks the fields that a resumed run may change (`fields.free`). The seed decides results, too, but names no
setting: runs that differ by their seeds alone are repetitions.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

from fedmpi.config import explain, yaml_text
from fedmpi.config.fields import DATA_PLACES, Section
from fedmpi.config.schema import Config


@functools.cache
def _not_settings() -> frozenset[tuple[str, ...]]:
    keys = {("seed",), *(("data", place) for place in DATA_PLACES)}
    for name, field in Config.model_fields.items():
        if isinstance(field.annotation, type) and issubclass(field.annotation, Section):
            for key, option in field.annotation.model_fields.items():
                extra = option.json_schema_extra
                if isinstance(extra, dict) and extra.get("changes_results") is False:
                    keys.add((name, key))
    return frozenset(keys)


def is_setting(path: tuple[Any, ...]) -> bool:
    """Says whether the value at this path of a config decides results, and is not the seed."""
    return path[:2] not in _not_settings() and path[:1] not in _not_settings()


def settings(values: Mapping[str, Any]) -> dict[str, str]:
    """Returns the text of each setting of a config's plain values, by its dotted key."""
    return {explain.dotted(path): yaml_text.flow(value) for path, value in yaml_text.leaves(values) if is_setting(path)}
