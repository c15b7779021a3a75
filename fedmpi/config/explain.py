"""pydantic's errors as one line each: what was found, what is allowed, what may have been meant."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, get_args, get_origin

from pydantic import ValidationError

from fedmpi import registry
from fedmpi.config import words
from fedmpi.config.described import description
from fedmpi.config.fields import Section
from fedmpi.config.schema import NAMED_SECTIONS, Config
from fedmpi.config.words import Kind
from fedmpi.config.yaml_text import Path, Problem, is_number

MAX_PROBLEMS = 50
MAX_PLACES = 4
_EXACT = 2**53
"""Whole numbers below it are what was written; of larger ones a float has only the first digits."""
_WRONG_NAME = ("union_tag_invalid", "union_tag_not_found")

Places = Mapping[str, Mapping[str, Sequence[str]]]
"""For the last word of a key: the keys that end in it, each with the names that have it (none: it is there now)."""


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
    section: type[Section], error: ValidationError, prefix: Path, places: Callable[[], Places]
) -> list[Problem]:
    """One section's errors; `places` are asked for where a key is unknown, for "did you mean".

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


def _line(path: Path, spot: _Spot, error: Mapping[str, Any], places: Callable[[], Places]) -> str:
    kind, value = error["type"], error["input"]
    if not spot.is_known:
        return _unknown(path, spot, places())
    if kind in ("value_error", "assertion_error"):
        return f"{error['ctx']['error']}, got {words.found(value)}".replace("\n", " ")
    if spot.kind.is_named and kind not in _WRONG_NAME:
        return name_missing(words.dotted(path), value, [words.name_of(member) for member in get_args(spot.kind.core)])
    if kind in _WRONG_NAME:
        name, names = value["name"], [words.name_of(member) for member in get_args(spot.kind.core)]
        return f"no such name {words.found(name)}.{words.suggest(name, names)} Known names: {words.listed(names)}"
    allowed = words.allowed(spot.kind, all_limits=kind.startswith("less_than"))
    if kind == "missing":
        about = description(spot.section, str(path[-1])).rstrip(".")
        said = f", {about[:1].lower()}{about[1:]}" if about else ""
        return f"missing; give it by {words.dotted(path)}=...: {allowed}{said}"
    meant = words.suggest(value, words.literals(spot.kind))
    return f"expected {allowed}, got {_shown(path, spot.kind, value)}{meant and f'.{meant}'}"


def name_missing(key: str, value: Any, names: Sequence[str]) -> str:
    """The problem of a section that is no section, where its `name` alone would do."""
    name = next(iter(words.similar(value, names)), names[0])
    section = key.rpartition(".")[2]
    return (
        f"expected a section with a name, got {words.found_with_type(value)}; write {key}.name={name}, or in a file "
        f"{section}: {{name: {name}}}. Known names: {words.listed(names)}"
    )


def _shown(path: Path, kind: Kind, value: Any) -> str:
    """What was found; of the wrong type with its type, and with how to write it."""
    if words.fits(kind, value):
        return words.found(value)
    instead = _instead(words.dotted(path), kind.core, value)
    return words.found_with_type(value, instead and f"; {instead}")


def _instead(key: str, core: Any, value: Any) -> str:
    """How a value of the wrong type would be right; empty where that is not known."""
    text = value.strip() if isinstance(value, str) else ""
    if words.is_section(core):
        names = list(core.model_fields)
        return f"set its keys, as {key}.{names[0]}=...: {words.listed(names)}"
    if text.startswith("="):
        return "remove one ="
    if get_origin(core) in (tuple, list) and (text or isinstance(value, (int, float))):
        in_quotes = text.startswith("[")
        return "remove the quotes" if in_quotes else f"write it in brackets: [{text or words.found(value)}]"
    if core is int and isinstance(value, float) and value.is_integer() and abs(value) < _EXACT:
        return f"write {int(value)}"
    if core in (int, float) and is_number(text):
        return "remove the quotes"
    if core is float and text.strip("+-").lower() == "inf":
        return "infinity is written .inf"
    if core is float and re.fullmatch(r"[-+]?\d+,\d+", text):
        return f"write {text.replace(',', '.')}"
    return ""


def _unknown(path: Path, spot: _Spot, places: Places) -> str:
    key, known = str(spot.path[-1]), list(spot.section.model_fields)
    elsewhere = places.get(key, {})
    if not elsewhere and (alias := words.KEYS_MEANT.get(key)):
        always = [place for place, names in places[alias].items() if not names]
        meant = [words.dotted((*path[:-1], alias))] if alias in known else always
        return f"no such key.{_did_you_mean(map(repr, meant))} Known keys: {words.listed(known)}"
    if owners := elsewhere.get(words.dotted(path)):
        has = f"{words.listed(owners, MAX_PLACES)} {'has' if len(owners) == 1 else 'have'} it"
        alike = _alike(path, owners[0], spot.section) or words.similar(key, known)
        rest = f"{_did_you_mean(map(repr, alike))} Known keys: {words.listed(known)}"
        return f"no such key of {words.name_of(spot.section) if 'name' in known else 'this section'}; {has}.{rest}"
    there = [repr(place) for place, names in elsewhere.items() if not names]
    named = [f"{place!r} ({_named(place, names)})" for place, names in elsewhere.items() if names]
    meant = [*map(repr, words.similar(key, known)), *(there or named)[:MAX_PLACES]]
    return f"no such key.{_did_you_mean(meant)} Known keys: {words.listed(known)}"


def _did_you_mean(shown: Iterable[str]) -> str:
    meant = " or ".join(shown)
    return f" Did you mean {meant}?" if meant else ""


def _alike(path: Path, owner: str, section: type[Section]) -> list[str]:
    """The key that has the capacities of the tiers in `section`, where this one has them in the method `owner`."""
    others = registry.options("method", owner) if path[0] == "method" and len(path) == 2 else None
    own = getattr(section, "capacity", "")
    return [own] if own and getattr(others, "capacity", "") == path[-1] else []


def places_of_keys(options: Mapping[str, type[Section]]) -> Places:
    """Maps the last part of every known key to its full paths: `train.rounds` is `rounds`, `method.kappa` is PriSM's.

    Keys that exist only under another `name` have that name.
    """
    found: dict[str, dict[str, list[str]]] = {"extends": {"extends": []}}
    for section in NAMED_SECTIONS:
        for name, built_in in registry.built_in(section):
            for path, _ in keys(section, built_in):
                names = found.setdefault(path.rpartition(".")[2], {}).setdefault(path, [])
                names += [name] * (name not in names)
    for key in Config.model_fields:
        here: dict[str, list[str]] = {}
        for path, names in keys(key, options[key]) if key in options else [(key, [])]:
            here.setdefault(path, []).extend(names)
        for path, names in here.items():
            found.setdefault(path.rpartition(".")[2], {})[path] = names
    del found["name"]
    return found


def keys(path: str, section: type[Section]) -> Iterator[tuple[str, list[str]]]:
    """Every key below `path`; one that only an inner section of another name has, with that name."""
    for key, info in section.model_fields.items():
        kind = words.kind_of(info)
        yield f"{path}.{key}", []
        if words.is_section(kind.core):
            yield from keys(f"{path}.{key}", kind.core)
        for member in get_args(kind.core) if kind.is_named else ():
            yield from ((inner, [words.name_of(member)]) for inner, _ in keys(f"{path}.{key}", member))


def _named(path: str, names: Sequence[str]) -> str:
    more = ", ..." * (len(names) > MAX_PLACES)
    return f"of {path.rpartition('.')[0]}.name: {', '.join(names[:MAX_PLACES])}{more}"
