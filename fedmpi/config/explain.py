"""Turns pydantic's errors into one line each: the key, what was found, what is allowed, what may have been meant.

The words of an allowed value are pydantic's own. Only keys and names, where a suggestion helps most, have ours.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any, TypeGuard, get_args, get_origin

from pydantic import ValidationError
from pydantic.fields import FieldInfo

from fedmpi import registry
from fedmpi.config.fields import Section
from fedmpi.config.schema import NAMED_SECTIONS, Config

Path = tuple[str | int, ...]
"""Keys and list indices, from the top of a config."""
Owners = Mapping[str, Sequence[str]]
"""Every dotted key that a config can have, and the names whose options have it; none for a key that is always there."""

MAX_PROBLEMS = 50
MAX_SHOWN = 60
MAX_NAMES = 30
_ALIASES = {"learning_rate": "lr", "epochs": "local_epochs", "gpu": "cuda", "non-iid": "dirichlet"}
"""What other programs call a thing, where its spelling alone would suggest something else."""


@dataclass(frozen=True)
class Problem:
    """One mistake: the key, what is wrong with it, and where it stands if the key alone does not tell."""

    path: Path
    text: str
    origin: str = ""
    is_unknown: bool = False
    """There is no such key."""


# Values, keys and names in a message.


def found(value: Any) -> str:
    """Shows a value as it would stand in YAML, on one line of about 60 characters."""
    if value is None or isinstance(value, bool):
        return {None: "nothing", True: "true", False: "false"}[value]
    shown = repr(value)
    if len(shown) <= MAX_SHOWN:
        return shown
    return f"{shown[: MAX_SHOWN - 25]}...{shown[-15:]} ({len(shown)} characters)"


def listed(names: Iterable[str], most: int = MAX_NAMES) -> str:
    known = sorted(names)
    more = f", ... ({len(known)} in all)" if len(known) > most else ""
    return ", ".join(known[:most]) + more


def similar(word: Any, known: Iterable[str]) -> list[str]:
    """Returns the most similar known word, if one is similar; capitals do not count."""
    if not isinstance(word, str):
        return []
    by_small = {name.lower(): name for name in known}
    alias = _ALIASES.get(word.lower().replace("noniid", "non-iid"))
    close = [alias] if alias in by_small else get_close_matches(word[:MAX_SHOWN].lower(), by_small, n=1)
    return [by_small[name] for name in close]


def suggest(word: Any, known: Iterable[str]) -> str:
    """Asks "Did you mean 'x'?" for the most similar known word; empty if none is similar."""
    return did_you_mean(similar(word, known))


def did_you_mean(words: Iterable[str]) -> str:
    meant = " or ".join(map(repr, words))
    return f" Did you mean {meant}?" if meant else ""


def dotted(path: Path) -> str:
    """Writes `method.rank_ratio[2]`; a key that is not a plain word is quoted and shortened."""
    shown = ""
    for key in path:
        if isinstance(key, int):
            shown += f"[{key}]"
        else:
            word = key if re.fullmatch(r"[\w-]+", key, re.ASCII) else repr(key)
            shown += ("." if shown else "") + (word if len(word) <= MAX_SHOWN else f"{word[: MAX_SHOWN - 3]}...")
    return shown


def split(key: str) -> Path:
    """Reads `method.rank_ratio[2]` as ("method", "rank_ratio", 2)."""
    parts = re.findall(r"\[\d+\]|[^.\[\]]+", key)
    return tuple(int(part[1:-1]) if part.startswith("[") else part for part in parts)


# The fields of sections.


def is_section(kind: Any) -> TypeGuard[type[Section]]:
    return isinstance(kind, type) and issubclass(kind, Section)


def named_kinds(info: FieldInfo) -> dict[str, type[Section]]:
    """Returns the sections that an inner section can be, by its `name`; none for another field."""
    members = get_args(info.annotation) if info.discriminator is not None else ()
    return {name_of(member): member for member in members}


def name_of(section: type[Section]) -> str:
    return str(section.model_fields["name"].default)


def summary(section: type[Section]) -> str:
    """Returns one line about what the name of a section with these options stands for."""
    return described(section.model_fields["name"]).rstrip(".")


def described(field: FieldInfo) -> str:
    return " ".join((field.description or "").split())


def keys(path: str, section: type[Section], name: str = "") -> Iterator[tuple[str, str]]:
    """Returns every key below `path`, and the name of the inner section that alone has it."""
    for key, info in section.model_fields.items():
        yield f"{path}.{key}", name
        kinds = named_kinds(info)
        for inner_name, inner in kinds.items():
            yield from keys(f"{path}.{key}", inner, inner_name)
        if is_section(info.annotation):
            yield from keys(f"{path}.{key}", info.annotation, name)


def all_keys(chosen: Mapping[str, type[Section]]) -> Owners:
    """Returns every key of the built-in options (which imports them all) and of those that a config has chosen."""
    owners: dict[str, list[str]] = {"extends": []}
    for section, info in Config.model_fields.items():
        owners[section] = []
        built_in = registry.built_in(section) if section in NAMED_SECTIONS else ()
        kinds = [*built_in, ("", chosen.get(section, info.annotation))]
        for name, options in kinds:
            for key, inner_name in keys(section, options) if is_section(options) else ():
                names = owners.setdefault(key, [])
                if owner := inner_name or name:
                    names += [owner] * (owner not in names)
    return owners


def completed(section: type[Section], values: Any) -> Any:
    """Makes {} of empty sections (`train:` and nothing), and gives an inner section without a name its default one."""
    if values is None:
        return {}
    if not isinstance(values, dict):
        return values
    filled = dict(values)
    for key in filled.keys() & section.model_fields.keys():
        info = section.model_fields[key]
        if named_kinds(info) and isinstance(filled[key] or {}, dict):
            filled[key] = {"name": info.default.name, **(filled[key] or {})}
        elif is_section(info.annotation):
            filled[key] = completed(info.annotation, filled[key])
    return filled


# Errors.


@dataclass(frozen=True)
class _Spot:
    """Where an error is: the keys to it, the section around the last key, and that key's field (None: unknown key)."""

    path: Path
    section: type[Section]
    field: FieldInfo | None


def problems(
    section: type[Section], error: ValidationError, prefix: Path, owners: Callable[[], Owners]
) -> list[Problem]:
    """Explains one section's errors; `owners` is called where a key is unknown, for "did you mean".

    Only the first MAX_PROBLEMS are explained, as more are not shown: to find what was meant takes a millisecond.
    """
    by_path: dict[Path, tuple[_Spot, list[Any]]] = {}
    for one in error.errors(include_url=False):
        spot = _locate(section, one)
        by_path.setdefault(spot.path, (spot, []))[1].append(one)
    # A list whose items are wrong is also reported as too short.
    inner = {path[:length] for path in by_path for length in range(len(path))}
    explained: list[Problem] = []
    for path, (spot, errors) in by_path.items():
        if path in inner:
            continue
        full = (*prefix, *path)
        if len(explained) >= MAX_PROBLEMS:
            text = ""
        elif not path:
            text = _no_section(dotted(full), errors[0]["input"], section)
        elif spot.field is None:
            text = _unknown(full, spot.section, owners())
        else:
            text = _line(dotted(full), spot.field, errors)
        explained.append(Problem(full, text, is_unknown=bool(path) and spot.field is None))
    return explained


def _locate(section: type[Section], error: Mapping[str, Any]) -> _Spot:
    """Follows pydantic's location, which also has the names of inner sections and of the branches of unions."""
    here: type[Section] | None = section
    field: FieldInfo | None = None
    kinds: dict[str, type[Section]] = {}
    is_dict = False
    path: list[str | int] = []
    for step in error["loc"]:
        if step in kinds:
            here = kinds[step]
            kinds = {}
        elif here is not None:
            section = here
            path.append(step)
            field = section.model_fields.get(step)
            kinds = named_kinds(field) if field else {}
            here = field.annotation if field and is_section(field.annotation) else None
            is_dict = field is not None and get_origin(field.annotation) is dict
        elif isinstance(step, int) or (is_dict and step != "[key]"):
            path.append(step)
            is_dict = False
            item = get_args(field.annotation if field else None)[-1:]
            here = item[0] if item and is_section(item[0]) else None
    if error["type"] == "missing" and isinstance(path[-1], int):
        path.pop()  # an item that is not there: the list is too short
    if error["type"] == "union_tag_invalid":
        path.append("name")
    return _Spot(tuple(path), section, field)


def _line(key: str, field: FieldInfo, errors: Sequence[Mapping[str, Any]]) -> str:
    error = errors[0]
    kind, value, kinds = error["type"], error["input"], named_kinds(field)
    if kind == "missing" and isinstance(error["loc"][-1], int):
        return f"Input should be a longer list, got {found(value)}"
    if kind == "missing":
        about = described(field).rstrip(".")
        return f"missing; give it by {key}=VALUE: {about[:1].lower()}{about[1:]}"
    if kind == "union_tag_invalid":
        name = value["name"]
        return f"no such name {found(name)}.{suggest(name, kinds)} Known names: {listed(kinds)}"
    if kinds:
        return name_missing(key, value, list(kinds))
    if kind == "value_error":
        return " ".join(f"{error['ctx']['error']}, got {found(value)}".split())
    if is_section(field.annotation):
        return _no_section(key, value, field.annotation)
    allowed = [re.sub("[Tt]uple", "list", one["msg"]) for one in errors]
    said = " or ".join([allowed[0], *(text.removeprefix("Input should be ") for text in allowed[1:])])
    meant = suggest(value, re.findall(r"'([^']+)'", said))
    return f"{said}, got {found(value)}{meant and '.'}{meant}"


def _no_section(key: str, value: Any, section: type[Section]) -> str:
    keys = list(section.model_fields)
    return f"expected a section, got {found(value)}; set its keys, as {key}.{keys[0]}=VALUE: {listed(keys)}"


def name_missing(key: str, value: Any, names: Sequence[str]) -> str:
    """Explains that something else than a section was given where a section with a `name` belongs."""
    name = (similar(value, names) or names)[0]
    return f"expected a section with a name, got {found(value)}; write {key}.name={name}. Known names: {listed(names)}"


def _unknown(path: Path, section: type[Section], owners: Owners) -> str:
    key, known = dotted(path), list(section.model_fields)
    names = owners.get(key, ())
    has = f" of {name_of(section)}; {listed(names, 4)} {'has' if len(names) == 1 else 'have'} it" if names else ""
    close = [dotted((*path[:-1], word)) for word in similar(path[-1], known)]
    elsewhere = [one for one in keys_meant(str(path[-1]), owners) if one != key][:3]
    meant = dict.fromkeys(close if names else [*close, *elsewhere])
    return f"no such key{has}.{did_you_mean(meant)} Known keys: {listed(known)}"


def keys_meant(word: str, owners: Owners | None = None) -> list[str]:
    """Returns the keys of a config that end in a word: `train.lr` for `lr`. Those that are always there go first."""
    known = all_keys({}) if owners is None else owners
    name = word.replace("-", "_")
    last = _ALIASES.get(name, name)
    meant = [key for key in known if key in (name, last) or key.rpartition(".")[2] == last != "name"]
    return [name] if name in known else sorted(meant, key=lambda key: bool(known[key]))
