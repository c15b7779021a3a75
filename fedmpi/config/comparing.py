"""What two configs are compared by: their values as keys with paths, and what the fields of a section say of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from pydantic import BaseModel


def canonical(value: Any) -> Any:
    """1 and 1.0 are the same setting."""
    if isinstance(value, (list, tuple)):
        return [canonical(item) for item in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value


def leaves(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[tuple[Any, ...], Any]]:
    """Every value of nested sections with its path; an empty section is a value."""
    if isinstance(value, Mapping) and value:
        for key, item in value.items():
            yield from leaves(item, (*path, key))
    else:
        yield path, value


def marked(section: BaseModel, name: str, value: bool, path: tuple[str, ...] = ()) -> Iterator[tuple[Any, Any]]:
    """Every key whose field has this mark (`free`, `later`), and the default of the field."""
    for key, info in type(section).model_fields.items():
        extra, inner = info.json_schema_extra, getattr(section, key)
        if isinstance(extra, dict) and extra.get(name) is value:
            yield (*path, key), info.default
        elif isinstance(inner, BaseModel):
            yield from marked(inner, name, value, (*path, key))


def renamed(ours: Mapping[tuple[str, ...], Any], theirs: Mapping[tuple[str, ...], Any], key: tuple[str, ...]) -> bool:
    """Does the key's section bear another name on the other side? Then that name says it all."""
    names = [(*key[:depth], "name") for depth in range(1, len(key))]
    return any(ours.get(name) != theirs.get(name) for name in names)


def short(value: Any) -> str:
    shown = repr(value)
    return shown if len(shown) <= 60 else f"{shown[:40]}...{shown[-15:]}"
