"""The form of a paper's file: YAML whose scalars are all text, and checks that say in words what is malformed."""

from __future__ import annotations

import math
from collections.abc import Collection
from typing import Any

import yaml


class TextLoader(yaml.BaseLoader):
    """All scalars as text; no key twice."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        known = set()
        for key, _ in node.value:
            line = f"line {key.start_mark.line + 1}"
            if not isinstance(key, yaml.ScalarNode):
                raise yaml.YAMLError(f"{line}: a key must be text")
            if key.value in known:
                raise yaml.YAMLError(f"{line}: {key.value} given twice")
            known.add(key.value)
        return super().construct_mapping(node, deep)


def named(parts: Any, where: str, key: str, form: str) -> dict[str, dict[str, Any]]:
    """Each with its name as one of its values. Raises ValueError if it is no mapping of mappings."""
    found = {}
    for name, part in mapping(parts, where, f"name: {{{form}}}").items():
        content = mapping(part, f"{where}.{name}", form)
        refuse(key in content, f"{where}.{name}: unknown key '{key}'; its name stands before it")
        found[name] = {key: name, **content}
    return found


def is_number(value: Any) -> bool:
    try:
        return math.isfinite(float(value))
    except (TypeError, ValueError):
        return False


def mapping(value: Any, where: str, form: str) -> dict[str, Any]:
    """Raises ValueError if it is none, or empty."""
    found = f"{value!r:.80}" if value else "nothing"
    refuse(not isinstance(value, dict) or not value, f"{where}: expected a mapping ({form}), got {found}")
    content: dict[str, Any] = value
    return content


def check_keys(given: dict[str, Any], where: str, allowed: Collection[str]) -> None:
    unknown = [key for key in given if key not in allowed]
    text = f"unknown key {', '.join(map(repr, unknown))}; allowed: {', '.join(sorted(allowed))}"
    refuse(bool(unknown), f"{where}: {text}" if where else text)


def refuse(is_wrong: bool, text: str) -> None:
    if is_wrong:
        raise ValueError(text)
