"""Where a key that stands at the wrong place belongs: `train.rounds` is `rounds`, and `method.kappa` PriSM's."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import get_args

from fedmpi import registry
from fedmpi.config import words
from fedmpi.config.schema import NAMED_SECTIONS, Config, Section

Places = Mapping[str, Sequence[str]]
"""For the last word of a key: the keys that end in it, in words."""

NOWHERE: Places = {}
MAX_PLACES = 4


def places(options: Mapping[str, type[Section]]) -> Places:
    """Maps the last part of every known key to its full path.

    Keys that exist only under another `name` are listed with that name.
    """
    found: dict[str, list[str]] = {"extends": ["'extends'"]}
    for key in Config.model_fields:
        for path in _keys(key, options[key]) if key in options else [key]:
            found.setdefault(path.rpartition(".")[2], []).append(repr(path))
    others: dict[str, dict[str, list[str]]] = {}
    for section in NAMED_SECTIONS:
        for name, built_in in registry.built_in(section):
            for path in _keys(section, built_in):
                others.setdefault(path.rpartition(".")[2], {}).setdefault(path, []).append(name)
    del found["name"]
    hints = {key: [f"{path!r} ({_named(path, names)})" for path, names in by.items()] for key, by in others.items()}
    return hints | found


def _keys(path: str, section: type[Section]) -> Iterator[str]:
    for key, info in section.model_fields.items():
        kind = words.kind_of(info)
        inner = get_args(kind.core) if kind.is_named else [kind.core] if words.is_section(kind.core) else []
        yield f"{path}.{key}"
        for member in inner:
            yield from _keys(f"{path}.{key}", member)


def _named(path: str, names: Sequence[str]) -> str:
    more = ", ..." * (len(names) > MAX_PLACES)
    return f"of {path.partition('.')[0]}.name: {', '.join(names[:MAX_PLACES])}{more}"
