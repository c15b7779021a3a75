"""pydantic's errors as one line each: what was found, what is allowed, what may have been meant."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, get_args, get_origin

from pydantic import ValidationError

from fedmpi.config import words
from fedmpi.config.places import MAX_PLACES, Places
from fedmpi.config.schema import Section
from fedmpi.config.words import Kind
from fedmpi.config.yaml_text import Path, is_number

MAX_PROBLEMS = 50
_WRONG_NAME = ("union_tag_invalid", "union_tag_not_found")


@dataclass(frozen=True)
class Problem:
    """One problem: the key and what is wrong with it, where it stands if the key does not tell, is there such a key."""

    path: Path
    text: str
    origin: str = ""
    is_unknown: bool = False


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


def problems(
    section: type[Section], values: Any, error: ValidationError, prefix: Path, places: Places
) -> list[Problem]:
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
        is_shown = len(found) < MAX_PROBLEMS
        text = _line(spot, one, _value_at(values, spot.path), places) if is_shown else ""
        found.append(Problem((*prefix, *spot.path), text, is_unknown=not spot.is_known))
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


def _value_at(values: Any, path: Path) -> Any:
    for key in path:
        inside = isinstance(values, dict) and key in values
        inside = inside or (isinstance(values, list) and isinstance(key, int) and key < len(values))
        if not inside:
            return None
        values = values[key]
    return values


def _line(spot: _Spot, error: Mapping[str, Any], value: Any, places: Places) -> str:
    kind = error["type"]
    if not spot.is_known:
        return _unknown(spot, places)
    if kind in ("value_error", "assertion_error"):
        return f"{error['ctx']['error']}, got {words.found(value)}".replace("\n", " ")
    if kind in _WRONG_NAME:
        return _wrong_name(spot.kind, value)
    allowed = words.allowed(spot.kind, all_limits=kind.startswith("less_than"))
    if kind == "missing":
        return f"missing; expected {allowed}"
    return f"expected {allowed}, got {_shown(spot.kind, value)}{_similar(spot.kind, value)}"


def _shown(kind: Kind, value: Any) -> str:
    word = "" if words.fits(kind, value) else words.type_of(value)
    if word == "text" and kind.core in (int, float) and is_number(value):
        word = "text; leave the quotes away"
    return f"{words.found(value)} ({word})" if word else words.found(value)


def _similar(kind: Kind, value: Any) -> str:
    suggestion = words.suggest(value, words.literals(kind))
    return f".{suggestion}" if suggestion else ""


def _wrong_name(kind: Kind, value: Any) -> str:
    names = [words.name_of(member) for member in get_args(kind.core)]
    return f"no such name {words.found(value)}.{words.suggest(value, names)} Known names: {words.listed(names)}"


def _unknown(spot: _Spot, places: Places) -> str:
    key, known = spot.path[-1], list(spot.section.model_fields)
    elsewhere = list(places.get(str(key), ()))[:MAX_PLACES]
    meant = " or ".join([*map(repr, words.similar(key, known)), *elsewhere])
    return f"no such key.{f' Did you mean {meant}?' if meant else ''} Known keys: {words.listed(known)}"
