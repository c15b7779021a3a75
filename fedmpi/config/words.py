"""What a field allows and what was found, in words; for error lines and for the reference."""

from __future__ import annotations

import re
import types
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any, Literal, Union, get_args, get_origin

from pydantic.fields import FieldInfo

from fedmpi.config.fields import Section

MAX_SHOWN = 60
MAX_NAMES = 30
_UNSAID = 2**31 - 1
# What others call it, where spelling alone finds something else.
_MEANT = {"gpu": "cuda", "non-iid": "dirichlet", "noniid": "dirichlet", "non_iid": "dirichlet"}
KEYS_MEANT = {"learning_rate": "lr", "learningrate": "lr", "epochs": "local_epochs", "batchsize": "batch_size"}
"""What others call a key, by the last part of what fedmpi calls it."""
_SIGNS = {"gt": ">", "ge": ">=", "lt": "<", "le": "<="}
_LIMITS = (*_SIGNS, "min_length", "max_length", "pattern", "allow_inf_nan")


@dataclass(frozen=True)
class Kind:
    """A field's type without its wrapping: the bare annotation, its limits, and whether `name` selects the section."""

    core: Any
    limits: dict[str, Any]
    is_named: bool = False


def kind_of(annotation: Any) -> Kind:
    """The kind of a pydantic field, or of any annotation in it."""
    info = annotation if isinstance(annotation, FieldInfo) else FieldInfo.from_annotation(annotation)
    given = {name: getattr(part, name) for part in info.metadata for name in _LIMITS if hasattr(part, name)}
    limits = {name: limit for name, limit in given.items() if limit is not None}
    return Kind(info.annotation, limits, info.discriminator is not None)


def is_section(core: Any) -> bool:
    return isinstance(core, type) and issubclass(core, Section)


def is_union(core: Any) -> bool:
    return get_origin(core) in (Union, types.UnionType)


def allowed(annotation: Any, *, all_limits: bool = False) -> str:
    """The values a field takes, as "a number > 0"; `all_limits` also says the far ones (2^31 - 1)."""
    kind = annotation if isinstance(annotation, Kind) else kind_of(annotation)
    core, limits = kind.core, kind.limits
    if is_union(core):
        return _alternatives(kind, all_limits)
    if get_origin(core) is Literal:
        return one_of(get_args(core))
    if core in _NUMBERS:
        return f"a {_NUMBERS[core]}{_bounds(kind, all_limits)}"
    if core is str:
        return "text" + (f" that matches {limits['pattern']}" if "pattern" in limits else "")
    if get_origin(core) in (tuple, list):
        return _list(kind, all_limits)
    if get_origin(core) is dict:
        return f"{{name: value, ...}}, each value {allowed(get_args(core)[1], all_limits=all_limits)}"
    return _PLAIN.get(core, "a section" if is_section(core) else "a value")


_NUMBERS = {int: "whole number", float: "number"}
_TYPES = {str: "text", bool: "true/false", int: "a whole number", float: "a number", list: "a list", dict: "a section"}
_PLAIN = {bool: "true or false", type(None): "null"}


def one_of(values: Iterable[Any]) -> str:
    shown = [repr(value) for value in values]
    return shown[0] if len(shown) == 1 else f"one of {', '.join(shown)}"


def _alternatives(kind: Kind, all_limits: bool) -> str:
    members = get_args(kind.core)
    if kind.is_named:
        return f"a section whose name is {one_of(name_of(member) for member in members)}"
    return " or ".join(allowed(member, all_limits=all_limits) for member in members)


def name_of(section: type[Section]) -> str:
    return str(section.model_fields["name"].default)


def _bounds(kind: Kind, all_limits: bool) -> str:
    limits = kind.limits
    said = [
        f"{sign} {limits[key]:.12g}" if isinstance(limits[key], float) else f"{sign} {limits[key]}"
        for key, sign in _SIGNS.items()
        if key in limits and (all_limits or abs(limits[key]) < _UNSAID)
    ]
    endless = kind.core is float and limits.get("allow_inf_nan") is not False and not {"lt", "le"} & set(limits)
    return (" " if said else "") + " and ".join(said) + (" (.inf too)" if endless else "")


def _list(kind: Kind, all_limits: bool) -> str:
    items = [item for item in get_args(kind.core) if item is not Ellipsis]
    said = allowed(items[0], all_limits=all_limits)
    core = kind_of(items[0]).core
    if core in _NUMBERS:
        said = said.removeprefix("a ").replace("number", "numbers", 1)
    elif core is not str:
        said = f"items, each {said}"
    if len(items) > 1:
        return f"a list of {len(items)} {said}"
    least, most = kind.limits.get("min_length"), kind.limits.get("max_length")
    count = f"{least or 0} to {most} " if most else f"{least} or more " if least else ""
    return f"a list of {count}{said}"


def found(value: Any) -> str:
    """A value as it would stand in YAML, shortened to about 60 characters, on one line."""
    if value is None or isinstance(value, bool):
        return {None: "nothing", True: "true", False: "false"}[value]
    shown = repr(value)
    return shown if len(shown) <= MAX_SHOWN else f"{shown[: MAX_SHOWN - 25]}...{shown[-15:]} ({_size(value, shown)})"


def _size(value: Any, shown: str) -> str:
    if isinstance(value, int):
        return f"{len(shown)} digits"
    if isinstance(value, (list, tuple, dict)):
        return f"{len(value)} items"
    return f"{len(value if isinstance(value, str) else shown)} characters"


def found_with_type(value: Any, advice: str = "") -> str:
    """`found`, and the type in words where there is one: `'1' (text)`, with `advice` behind it."""
    kind = _TYPES.get(type(value))
    return f"{found(value)} ({kind}{advice})" if kind else found(value)


def fits(kind: Kind, value: Any) -> bool:
    """Is the value of the right type, so that only its size or spelling is wrong?"""
    core = kind.core
    if is_union(core):
        return any(fits(kind_of(member), value) for member in get_args(core))
    if get_origin(core) is Literal:
        return type(value) in {type(choice) for choice in get_args(core)}
    if core is float:
        return type(value) in (int, float)
    if core in (int, bool, str, type(None)):
        return type(value) is core
    return isinstance(value, list if get_origin(core) in (tuple, list) else dict)


def literals(kind: Kind) -> Iterator[str]:
    """Every text that the field takes literally."""
    if is_union(kind.core):
        for member in get_args(kind.core):
            yield from literals(kind_of(member))
    elif get_origin(kind.core) is Literal:
        yield from (choice for choice in get_args(kind.core) if isinstance(choice, str))


def suggest(word: Any, known: Iterable[str]) -> str:
    """The question "Did you mean 'x'?" for the most similar known word, or nothing."""
    return "".join(f" Did you mean {best!r}?" for best in similar(word, known))


def similar(word: Any, known: Iterable[str]) -> list[str]:
    """The most similar known word, if one is similar; capitals do not count."""
    if not isinstance(word, str):
        return []
    names = list(known)
    meant = _MEANT.get(word.lower())
    by_small = {name.lower(): name for name in names}
    close = [meant] if meant in names else get_close_matches(word[:MAX_SHOWN].lower(), by_small, n=1)
    return [by_small[name] for name in close]


def listed(names: Iterable[str], most: int = MAX_NAMES) -> str:
    known = sorted(names)
    more = f", ... ({len(known)} in all)" if len(known) > most else ""
    return ", ".join(known[:most]) + more


def split(key: str) -> tuple[str | int, ...]:
    """`method.rank_ratio[2]` as ("method", "rank_ratio", 2)."""
    return tuple(int(part[1:-1]) if part.startswith("[") else part for part in re.findall(r"\[\d+\]|[^.\[\]]+", key))


def dotted(path: Iterable[str | int]) -> str:
    """`method.rank_ratio[2]`; a key that is not a plain word is quoted and shortened."""
    shown = ""
    for key in path:
        if isinstance(key, int):
            shown += f"[{key}]"
        else:
            word = key if key.isascii() and key.replace("_", "a").replace("-", "a").isalnum() else repr(key)
            shown += ("." if shown else "") + (word if len(word) <= MAX_SHOWN else f"{word[: MAX_SHOWN - 3]}...")
    return shown
