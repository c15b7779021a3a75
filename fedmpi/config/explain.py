"""pydantic's errors as one line each: what was found, what is allowed, what may have been meant."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, get_args, get_origin

from pydantic import ValidationError

from fedmpi import registry
from fedmpi.config import words
from fedmpi.config.schema import NAMED_SECTIONS, Config, Section
from fedmpi.config.words import Kind
from fedmpi.config.yaml_text import Path, Problem, is_number

MAX_PROBLEMS = 50
MAX_PLACES = 4
_WRONG_NAME = ("union_tag_invalid", "union_tag_not_found")

Places = Mapping[str, Sequence[str]]
"""For the last word of a key: the keys that end in it, in words."""


@dataclass(frozen=True)
class _Spot:
    """Where an error is: its keys, the field there, and the section around it."""

    path: Path
    kind: Kind
    section: type[Section]
    is_known: bool = True


def completed(section: type[Section], values: Any) -> Any:
    """Empty sections (`train:` and nothing) become {}, and an inner section without a name gets its default one."""
    if values is None:
        values = {}
    if not isinstance(values, dict):
        return values
    filled = dict(values)
    for key, info in section.model_fields.items():
        kind = words.kind_of(info)
        if key not in filled:
            continue
        if kind.is_named and isinstance(filled[key] or {}, dict):
            filled[key] = {"name": words.name_of(type(info.default)), **(filled[key] or {})}
        elif words.is_section(kind.core):
            filled[key] = completed(kind.core, filled[key])
    return filled


def problems(section: type[Section], error: ValidationError, prefix: Path, places: Places) -> list[Problem]:
    """One section's errors; `places` are for "did you mean".

    Only the first MAX_PROBLEMS are explained, as more are not shown: looking for what was meant takes a millisecond.
    """
    spots: dict[Path, tuple[_Spot, Any]] = {}
    for one in error.errors(include_url=False):
        spot = _locate(section, one["loc"] + (("name",) if one["type"] in _WRONG_NAME else ()))
        spots.setdefault(spot.path, (spot, one))
    # A list whose items are wrong is also reported as too short.
    inner = {path[:length] for path in spots for length in range(len(path))}
    found: list[Problem] = []
    for spot, one in (spots[path] for path in spots if path not in inner):
        path = (*prefix, *spot.path)
        text = _line(path, spot, one, places) if len(found) < MAX_PROBLEMS else ""
        found.append(Problem(path, text, is_unknown=not spot.is_known))
    return found


def _locate(section: type[Section], loc: Sequence[str | int]) -> _Spot:
    """Follows pydantic's location through the annotations; stops at a union, whose branches are no keys."""
    kind, path = Kind(section, {}), []
    for step in loc:
        core = kind.core
        if words.is_section(core):
            section = core
            path.append(step)
            if step not in core.model_fields:
                return _Spot(tuple(path), kind, section, is_known=False)
            kind = words.kind_of(core.model_fields[step])
        elif kind.is_named and step == "name":
            return _Spot((*path, "name"), kind, section)
        elif kind.is_named:
            kind = Kind(next(member for member in get_args(core) if words.name_of(member) == step), {})
        elif get_origin(core) in (tuple, list, dict) and step != "[key]":
            path.append(step)
            kind = words.kind_of(_item(core, step))
        else:
            break
    return _Spot(tuple(path), kind, section)


def _item(core: Any, step: str | int) -> Any:
    args = [item for item in get_args(core) if item is not Ellipsis]
    if get_origin(core) is dict:
        return args[1]
    return args[step] if isinstance(step, int) and step < len(args) else args[0]


def _line(path: Path, spot: _Spot, error: Mapping[str, Any], places: Places) -> str:
    kind, value = error["type"], error["input"]
    if not spot.is_known:
        return _unknown(spot, places)
    if kind in ("value_error", "assertion_error"):
        return f"{error['ctx']['error']}, got {words.found(value)}".replace("\n", " ")
    if kind in _WRONG_NAME:
        name, names = value["name"], [words.name_of(member) for member in get_args(spot.kind.core)]
        return f"no such name {words.found(name)}.{words.suggest(name, names)} Known names: {words.listed(names)}"
    allowed = words.allowed(spot.kind, all_limits=kind.startswith("less_than"))
    if kind == "missing":
        about = (spot.section.model_fields[str(path[-1])].description or "").rstrip(".")
        return f"missing; give it by {words.dotted(path)}=...: {allowed}, {about[:1].lower()}{about[1:]}"
    meant = words.suggest(value, words.literals(spot.kind))
    return f"expected {allowed}, got {_shown(spot.kind, value)}{meant and f'.{meant}'}"


def _shown(kind: Kind, value: Any) -> str:
    if words.fits(kind, value):
        return words.found(value)
    is_quoted = isinstance(value, str) and kind.core in (int, float) and is_number(value)
    return words.found_with_type(value, "; leave the quotes away" * is_quoted)


def _unknown(spot: _Spot, places: Places) -> str:
    key, known = spot.path[-1], list(spot.section.model_fields)
    elsewhere = list(places.get(str(key), ()))[:MAX_PLACES]
    meant = " or ".join([*map(repr, words.similar(key, known)), *elsewhere])
    return f"no such key.{f' Did you mean {meant}?' if meant else ''} Known keys: {words.listed(known)}"


def places_of_keys(options: Mapping[str, type[Section]]) -> Places:
    """Maps the last part of every known key to its full path: `train.rounds` is `rounds`, `method.kappa` is PriSM's.

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
