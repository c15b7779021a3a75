"""YAML in and out, with the lines of all values and without the traps of YAML 1.1.

Scalars resolve as in YAML 1.2's core schema (`1e-3` is a number; `no`, `on` and `2026-01-01` are text; whole numbers
are decimal), and duplicate keys, anchors, aliases and tags are errors: `&a b` on a command line is meant as text.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import yaml
from yaml.nodes import MappingNode, Node, ScalarNode

Path = tuple[str | int, ...]
"""Keys and list indices, from the top of a document."""

MAX_SHOWN = 60
"""Characters of a value or a key in a message."""

_FLOAT = r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)"
_SCALARS: dict[str, tuple[str, Callable[[str], Any]]] = {
    "null": (r"~|null|Null|NULL|", lambda text: None),
    "bool": (r"true|True|TRUE|false|False|FALSE", lambda text: text.lower() == "true"),
    "int": (r"[-+]?[0-9]+", int),
    "float": (_FLOAT, lambda text: float(re.sub(r"\.(?=inf|nan)", "", text.lower()))),
}
"""The pattern of each type, and what makes a value of it; all else is text."""


class YamlError(Exception):
    """A text that is not the YAML we read; `line` counts from 1."""

    def __init__(self, line: int, text: str) -> None:
        self.text = text
        super().__init__(f"line {line}: {text}")


@dataclass(frozen=True)
class Tree:
    """Nested values, and the place of every key and item among them ("line 3")."""

    value: Any = None
    origins: Mapping[Path, str] = field(default_factory=dict)

    @classmethod
    def of(cls, value: Any, origin: str = "") -> Tree:
        """Returns a value all of which stands in one place."""
        return cls(value, dict.fromkeys(_paths(value), origin))

    def origin_of(self, path: Path) -> str:
        """Returns the place of what is at `path`, or of the innermost section or list around it."""
        while path and path not in self.origins:
            path = path[:-1]
        return self.origins.get(path, "")

    def with_top(self, top: Tree) -> Tree:
        """Returns these settings with others on top. A name on top empties its section; {} on top is a value."""
        value = _merged(self.value, top.value)
        origins = {**self.origins, **top.origins}
        return Tree(value, {path: origins[path] for path in _paths(value)})


def _paths(value: Any, above: Path = ()) -> Iterator[Path]:
    inner = dict(enumerate(value)) if isinstance(value, list) else value
    if isinstance(inner, Mapping):
        for key, item in inner.items():
            yield (*above, key)
            yield from _paths(item, (*above, key))


def _merged(below: Any, top: Any) -> Any:
    if not isinstance(below, dict) or not isinstance(top, dict) or "name" in top:
        return top
    merged = dict(below)
    for key, item in top.items():
        merged[key] = _merged(merged[key], item) if key in merged and item else item
    return merged


class _Loader(yaml.SafeLoader):
    yaml_implicit_resolvers: dict[str, Any] = {}

    def compose_node(self, parent: Node | None, index: Any) -> Node | None:
        event: Any = self.peek_event()  # type: ignore[no-untyped-call]  # PyYAML's types leave it out
        line = event.start_mark.line + 1
        if isinstance(event, yaml.AliasEvent):
            todo = f'write the value, or quotes around the text: ["*{event.anchor}"]'
            raise YamlError(line, f"aliases (*{event.anchor}) are not read; {todo}")
        if anchor := getattr(event, "anchor", None):
            raise YamlError(line, f"anchors (&{anchor}) are not read; remove it (or quote the text)")
        if getattr(event, "tag", None) not in (None, "!"):
            raise YamlError(line, f"tags ({event.tag}) are not read; remove it")
        return super().compose_node(parent, index)


class _Dumper(yaml.SafeDumper):
    """PyYAML's own resolvers and ours: text that either would take for something else is quoted."""


for _type, (_pattern, _) in _SCALARS.items():
    for _class in (_Loader, _Dumper):
        _class.add_implicit_resolver(f"tag:yaml.org,2002:{_type}", re.compile(f"^(?:{_pattern})$"), None)


def parse(text: str, file: str = "") -> Tree:
    """Reads a text; each place in the tree begins with `file`. Raises YamlError."""
    origins: dict[Path, str] = {}
    try:
        node = _Loader(text).get_single_node()
        return Tree(None if node is None else _value(node, file, (), origins), origins)
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        raise YamlError(line, f"not valid YAML: {error.reason} (0x{error.character:02x})") from None
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        raise YamlError(mark.line + 1 if mark else 1, f"not valid YAML: {error.problem or error.context}") from None
    # For "\UFFFFFFFF", a number of 5,000 digits, or a thousand brackets.
    except (ValueError, LookupError, ArithmeticError, RecursionError) as error:
        raise YamlError(1, f"not valid YAML: {error}") from None


def _value(node: Node, file: str, path: Path, origins: dict[Path, str]) -> Any:
    """Returns the value of a node; adds the places of all keys and items in it to `origins`."""
    if isinstance(node, ScalarNode):
        known = _SCALARS.get(node.tag.rpartition(":")[2])
        return known[1](node.value) if known else node.value
    values: dict[str | int, Any] = {}
    for key, line, item in _parts(node):
        if key in values:
            first = origins[(*path, key)]
            raise YamlError(line, f"the key {str(key)[:60]!r} is given twice, first on {first}; remove one")
        origins[(*path, key)] = f"{file}line {line}"
        values[key] = _value(item, file, (*path, key), origins)
    return values if isinstance(node, MappingNode) else [*values.values()]


def _parts(node: Node) -> Iterator[tuple[str | int, int, Node]]:
    """Yields the key or number, the line and the value of each part of a section or a list."""
    if isinstance(node, MappingNode):
        for key, item in node.value:
            line = key.start_mark.line + 1
            if not isinstance(key, ScalarNode):
                raise YamlError(line, "a key must be plain text, not a list or a section")
            yield str(key.value), line, item
    else:
        for number, item in enumerate(node.value):
            yield number, item.start_mark.line + 1, item


def parse_word(text: str) -> Any:
    """Returns the value of a word of a command line. Raises YamlError, also for a comment or a mark of a document."""
    value = parse(text).value
    is_cut = repr(value).count("#") < text.count("#")  # a comment is dropped with its #
    if is_cut or re.match(r"\s*(---|\.\.\.)(\s|$)", text):
        raise YamlError(1, f"YAML reads only a part of it ({found(value)}); put the value in quotes: '\"...\"'")
    return value


def dump(plain: Mapping[str, Any]) -> str:
    """Writes a text that `parse` reads back to the same value."""
    return str(yaml.dump(dict(plain), Dumper=_Dumper, sort_keys=False, default_flow_style=None, width=110))


def flow(value: Any) -> str:
    """Writes one value on one line, as it can stand in an override."""
    return str(yaml.dump([value], Dumper=_Dumper, default_flow_style=True, width=10**6)).strip()[1:-1]


def found(value: Any) -> str:
    """Returns a value as YAML would have it, on one line of about 60 characters."""
    if value is None or isinstance(value, bool):
        return {None: "nothing", True: "true", False: "false"}[value]
    shown = repr(value)
    if len(shown) <= MAX_SHOWN:
        return shown
    return f"{shown[: MAX_SHOWN - 25]}...{shown[-15:]} ({len(shown)} characters)"


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


def leaves(value: Any, path: Path = ()) -> Iterator[tuple[Any, Any]]:
    """Yields every value of nested sections with its path; an empty section is a value."""
    if isinstance(value, Mapping) and value:
        for key, item in value.items():
            yield from leaves(item, (*path, key))
    else:
        yield path, value


def nested(settings: Iterable[tuple[Path, Any]]) -> dict[str, Any]:
    """Returns sections with these values at their paths; the last one at a path counts."""
    values: dict[Any, Any] = {}
    for path, value in settings:
        section = values
        for key in path[:-1]:
            if not isinstance(section.get(key), dict):
                section[key] = {}
            section = section[key]
        section[path[-1]] = value
    return values
