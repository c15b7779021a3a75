"""Values that a field of the config's schema allows, the far ones rather than the likely ones."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from typing import Any, Literal, get_args, get_origin

from fedmpi import registry
from fedmpi.config import words, yaml_text
from fedmpi.config.fields import Section
from fedmpi.config.schema import NAMED_SECTIONS, Config
from fedmpi.config.words import Kind

MOST_ITEMS = 6


def overrides(whole: dict[str, Any], chance: random.Random) -> list[str]:
    """One to four `section.key=value`, legal each by itself, for the config `whole`: other names, far values."""
    names = {section: whole.get(section, {}).get("name") for section in NAMED_SECTIONS}
    said = []
    for section in chance.sample(NAMED_SECTIONS, chance.choice((0, 0, 1, 1, 2))):
        table = [name + "resnet18" * name.endswith(":") for name in registry.BUILT_IN[section]]
        names[section] = chance.choice(table)
        said.append(f"{section}.name={names[section]}")
    fields = list(_fields(names))
    for key, kind in chance.sample(fields, chance.choice((1, 1, 1, 2, 3))):
        said.append(f"{key}={yaml_text.flow(value_of(kind, chance))}")
    return said


def _fields(names: dict[str, str | None]) -> Iterator[tuple[str, Kind]]:
    """Every key of a config whose named sections have these names, with what it may be."""
    for section, info in Config.model_fields.items():
        options, name = info.annotation, names.get(section)
        if section in NAMED_SECTIONS:
            options = registry.options(section, name) if name else Section
        if words.is_section(options):
            fields = options.model_fields.items()
            yield from ((f"{section}.{key}", words.kind_of(field)) for key, field in fields if key != "name")
        else:
            yield section, words.kind_of(info)


def value_of(kind: Kind, chance: random.Random) -> Any:
    """A value that the field takes as far as its type and limits say."""
    core = kind.core
    if words.is_union(core):
        member = chance.choice(get_args(core))
        return _of_named(member, chance) if kind.is_named else value_of(words.kind_of(member), chance)
    if get_origin(core) is Literal:
        return chance.choice(get_args(core))
    if core is bool:
        return chance.random() < 0.5
    if core in (int, float):
        return _number(core, kind.limits, chance)
    if core is str:
        return chance.choice(("", "x", "/nowhere", "~nobody-here/x", "\u00e9 a", "x" * 4_000, "."))
    if get_origin(core) in (tuple, list):
        return _list(kind, chance)
    if get_origin(core) is dict:
        inner = words.kind_of(get_args(core)[1])
        keys = ("*", "fc", "conv*", "x.y", "[", "")
        return {chance.choice(keys): value_of(inner, chance) for _ in range(chance.randint(0, 3))}
    return None


def _of_named(member: type[Section], chance: random.Random) -> dict[str, Any]:
    fields = {key: words.kind_of(info) for key, info in member.model_fields.items() if key != "name"}
    return {"name": words.name_of(member), **{key: value_of(kind, chance) for key, kind in fields.items()}}


def _list(kind: Kind, chance: random.Random) -> list[Any]:
    items = [item for item in get_args(kind.core) if item is not Ellipsis]
    if len(items) > 1:
        return [value_of(words.kind_of(item), chance) for item in items]
    least, most = kind.limits.get("min_length", 0), min(kind.limits.get("max_length", 40), 40)
    few = [chance.randint(least, min(most, MOST_ITEMS)) for _ in range(2)]
    count = chance.choice((least, most, *few))
    return sorted((value_of(words.kind_of(items[0]), chance) for _ in range(count)), reverse=chance.random() < 0.9)


def _number(core: type, limits: dict[str, Any], chance: random.Random) -> int | float:
    """At a limit, beside it, or of any order of magnitude between them."""
    low = limits.get("ge", limits.get("gt", -1e15))
    high = limits.get("le", limits.get("lt", 1e15))
    if core is int:
        above, below, order = low + 1, high - 1, 10 ** chance.uniform(0, 9)
    else:
        above, below = low + chance.choice((5e-324, 1e-300, 1e-30, 1e-9)), math.nextafter(high, low)
        order = 10 ** chance.uniform(-9, 9)
    between = low + (high - low) * chance.random()
    value = min(max(core(chance.choice((low, above, high, below, between, low + order, low + order))), low), high)
    return math.nextafter(value, high) if core is float and value == limits.get("gt") else value
