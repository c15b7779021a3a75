"""Turns pydantic's errors into one line each: pydantic's own words, what was found, and what may have been meant."""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from difflib import get_close_matches
from typing import Any, NamedTuple, TypeGuard, get_args

from pydantic import ValidationError
from pydantic.fields import FieldInfo

from fedmpi import registry
from fedmpi.config.fields import Section
from fedmpi.config.schema import NAMED_SECTIONS, Config
from fedmpi.config.yaml_text import MAX_SHOWN, Path, dotted, flow, found

_ALIASES = {
    "learning_rate": "lr",
    "epochs": "local_epochs",
    "gpu": "cuda",
    **dict.fromkeys(("n", "num", "number", "total", "num_clients", "n_clients"), "count"),
    **dict.fromkeys(("sample", "sampled", "fraction", "participation", "cohort", "per_rounds"), "per_round"),
    **dict.fromkeys(("bs", "batch"), "batch_size"),
    "wd": "weight_decay",
    "num_rounds": "rounds",
    "federation": "clients",
}
"""Other programs' words, whose spelling would suggest something else."""


class Problem(NamedTuple):
    """One mistake: the key, what is wrong, and the place where the key does not tell it."""

    path: Path
    text: str
    origin: str = ""


def similar(word: Any, known: Iterable[str]) -> list[str]:
    """Returns the most similar known word, if one is similar; capitals do not count."""
    if not isinstance(word, str):
        return []
    by_small = {name.lower(): name for name in known}
    alias = _ALIASES.get(word.lower())
    close = [alias] if alias in by_small else get_close_matches(word[:MAX_SHOWN].lower(), by_small, n=1)
    return [by_small[name] for name in close]


def suggest(word: Any, known: Iterable[str]) -> str:
    """Returns " Did you mean 'x'?" for the most similar known word, and "" if none is similar."""
    return did_you_mean(similar(word, known))


def did_you_mean(words: Sequence[str]) -> str:
    return f" Did you mean {' or '.join(map(repr, words))}?" if words else ""


def is_section(kind: Any) -> TypeGuard[type[Section]]:
    return isinstance(kind, type) and issubclass(kind, Section)


def named_kinds(info: FieldInfo) -> dict[str, type[Section]]:
    """Returns the sections that an inner section can be, by its `name`; none for another field."""
    named = [kind for kind in _sections_in(info.annotation) if "name" in kind.model_fields]
    return {str(get_args(kind.model_fields["name"].annotation)[0]): kind for kind in named}


def _sections_in(kind: Any) -> Iterator[type[Section]]:
    for member in get_args(kind):
        yield from [member] if is_section(member) else _sections_in(member)


def summary(section: type[Section]) -> str:
    """Returns one line about what the name of a section with these options stands for."""
    return " ".join((section.model_fields["name"].description or "").split()).rstrip(".")


def keys(section: type[Section], above: str = "") -> Iterator[str]:
    """Yields every key of a section and of those within it, dotted; each begins with `above`, as `train.`."""
    for key, info in section.model_fields.items():
        yield f"{above}{key}"
        for inner in [*named_kinds(info).values(), info.annotation]:
            if is_section(inner):
                yield from keys(inner, f"{above}{key}.")


def keys_meant(word: str) -> list[str]:
    """Returns the keys that end in a word, `train.lr` for `lr`, those of every config first. Imports all options."""
    known = ["extends", *keys(Config)]
    for section in NAMED_SECTIONS:
        for _, options in registry.built_in(section):
            known += keys(options, f"{section}.")
    name = word.replace("-", "_")
    last = _ALIASES.get(name, name)
    if name in known:
        return [name]
    return [*dict.fromkeys(key for key in known if key == last or key.rpartition(".")[2] == last != "name")]


def problems(section: type[Section], error: ValidationError, values: Any) -> list[Problem]:
    """Explains the errors of these values of a section."""
    by_path: dict[Path, list[Any]] = {}
    for one in error.errors(include_url=False):
        by_path.setdefault(_path_to(one, values), []).append(one)
    # A list whose items are wrong is also reported as too short.
    inner = {path[:length] for path in by_path for length in range(len(path))}
    outer = {path: errors for path, errors in by_path.items() if path not in inner}
    return [Problem(path, _line(section, values, path, errors)) for path, errors in outer.items()]


def _path_to(error: Mapping[str, Any], values: Any) -> Path:
    """Returns pydantic's location without its names of the branches of unions, which are no part of the values."""
    path: list[str | int] = []
    for step in error["loc"]:
        is_key = isinstance(values, dict) and step in values
        if is_key or (isinstance(values, (list, tuple)) and isinstance(step, int) and step < len(values)):
            path.append(step)
            values = values[step]
    if error["type"] == "missing":
        path.append(error["loc"][-1])
    if error["type"] in ("union_tag_invalid", "unknown_name"):
        path.append("name")
    return tuple(path)


def _line(section: type[Section], values: Any, path: Path, errors: list[Any]) -> str:
    kind = errors[0]["type"]
    text = errors[0]["msg"].replace("tuple", "list")
    value = errors[0]["input"]
    key = dotted(path)
    if kind == "extra_forbidden":
        return _no_such_key(section, values, path, value)
    if kind == "unknown_name":
        return _unknown_name(str(path[0]), value["name"], text)
    if kind == "missing":
        return text if isinstance(path[-1], int) else f"{text}; give it by {key}=VALUE"
    if kind in ("model_type", "model_attributes_type"):
        fields = _section_at(section, values, path).model_fields
        names = similar(value, known_names(key)) or known_names(key) or ["VALUE"]
        example = f"{'name' if 'name' in fields else next(iter(fields))}={names[0]}"
        return f"expected a section, got {found(value)}; set its keys one by one, as {key}.{example}"
    if kind == "string_type" and isinstance(value, (int, float)):
        return f"{text}, got {found(value)}; as text it needs quotes: {key}='\"{flow(value)}\"'"
    if kind in ("list_type", "tuple_type") and isinstance(value, (str, int, float)):
        items = value if isinstance(value, str) and re.fullmatch(r"[\w.:,-]+", value) else flow(value)
        return f"{text}, got {found(value)}; write {key}=[{items}]"
    word = value["name"] if kind == "union_tag_invalid" else value
    others = [error["msg"].replace("tuple", "list").removeprefix("Input should be ") for error in errors[1:]]
    said = " ".join(" or ".join([text, *others]).split())
    meant = suggest(word, [name for name in re.findall(r"'([^']+)'", said) if name != word])
    return f"{said}, got {found(word)}{meant and '.'}{meant}"


def _no_such_key(section: type[Section], values: Any, path: Path, value: Any) -> str:
    known = list(_section_at(section, values, path[:-1]).model_fields)
    meant = [dotted((*path[:-1], word)) for word in similar(path[-1], known)]
    if issubclass(section, Config):
        inner = value if isinstance(value, dict) else {}
        meant = [one for word in inner for one in keys_meant(str(word))[:3]] or meant
        others = keys_meant(str(path[-1]))
        if not meant and dotted(path) not in others:  # another name's options may have it
            near = [other for other in others if other.startswith(f"{path[0]}.")]
            meant = (near if len(path) > 2 else near or others)[:3]
    return f"no such key.{did_you_mean(meant)} Known keys: {', '.join(sorted(known))}"


def known_names(section: str) -> list[str]:
    """Returns what the name of a section can be; none for a section whose name selects nothing."""
    return [f"{name}..." if name.endswith(":") else name for name in registry.BUILT_IN.get(section, ())]


def _unknown_name(section: str, name: Any, why: str) -> str:
    if registry.is_known(section, name):  # it cannot be imported
        return why
    if advice := registry.by_path(name):
        return f"no {section} {found(name)}{advice}"
    known = known_names(section)
    meant = f"{suggest(name, known)} Known names: {', '.join(known)}, or your own package.module:Class"
    return f"no {section} {found(name)}.{meant}"


def _section_at(section: type[Section], values: Any, path: Path) -> type[Section]:
    for key in path:
        values = values[key]
        name = values.get("name") if isinstance(values, dict) else None
        if section is Config and key in NAMED_SECTIONS:
            section = registry.options(str(key), name)
        elif info := section.model_fields.get(str(key)):
            kinds = named_kinds(info)
            inner = [kinds.get(str(name)), *kinds.values(), info.annotation, *get_args(info.annotation)]
            section = next(filter(is_section, inner), section)
    return section
