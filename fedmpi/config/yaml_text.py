"""YAML in and out, without the traps of YAML 1.1.

Differences from PyYAML's SafeLoader: scalars resolve as in YAML 1.2's core schema (`1e-3` is a number; `no`, `on` and
`2026-01-01` are text; whole numbers are decimal), duplicate keys are errors, and aliases, tags and deep nesting are
refused, so that no small file can become a large value. Every value remembers its line.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import yaml
from yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode

Path = tuple[str | int, ...]
"""Keys and list indices, from the top of a document."""

MAX_DEPTH = 10

_SCALARS: tuple[tuple[str, str, str], ...] = (
    ("tag:yaml.org,2002:null", r"~|null|Null|NULL|", "~nN\0"),
    ("tag:yaml.org,2002:bool", r"true|True|TRUE|false|False|FALSE", "tTfF"),
    ("tag:yaml.org,2002:int", r"[-+]?[0-9]+", "-+0123456789"),
    (
        "tag:yaml.org,2002:float",
        r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)",
        "-+.0123456789",
    ),
)


_READERS: dict[str, Callable[[str], Any]] = {
    "null": lambda text: None,
    "bool": lambda text: text.lower() == "true",
    "int": int,
    "float": lambda text: float(re.sub(r"\.(?=inf|nan)", "", text.lower())),
}
"""Functions that make a value of a scalar's text, by its tag; of all others it is the text."""


class YamlError(Exception):
    """A text that is not the YAML we read; `line` counts from 1."""

    def __init__(self, line: int, text: str) -> None:
        self.line = line
        self.text = text
        super().__init__(f"line {line}: {text}")


@dataclass
class Document:
    """A parsed text: its value, and where each path in it stands ("line 3")."""

    value: Any = None
    origins: dict[Path, str] = field(default_factory=dict)


class _Loader(yaml.SafeLoader):
    yaml_implicit_resolvers: dict[str, Any] = {}
    depth = 0

    def compose_node(self, parent: Node | None, index: Any) -> Node | None:
        event: Any = self.peek_event()  # type: ignore[no-untyped-call]  # PyYAML's types leave it out
        line = event.start_mark.line + 1
        if isinstance(event, yaml.AliasEvent):
            raise YamlError(line, f"aliases (*{event.anchor}) are not read; write the value out (or quote the text)")
        if getattr(event, "tag", None) not in (None, "!"):
            raise YamlError(line, f"tags ({event.tag}) are not read; remove it")
        if self.depth > MAX_DEPTH:
            raise YamlError(line, f"nested deeper than {MAX_DEPTH} levels")
        self.depth += 1
        try:
            return super().compose_node(parent, index)
        finally:
            self.depth -= 1


class _Dumper(yaml.SafeDumper):
    """PyYAML's own resolvers and ours: text that either would take for something else is quoted."""

    yaml_implicit_resolvers = {key: list(value) for key, value in yaml.SafeDumper.yaml_implicit_resolvers.items()}


for _tag, _pattern, _first in _SCALARS:
    for _class in (_Loader, _Dumper):
        _firsts = ["" if character == "\0" else character for character in _first]
        _class.add_implicit_resolver(_tag, re.compile(f"^(?:{_pattern})$"), _firsts)


def parse(text: str) -> Document:
    """Raises YamlError for a text that is no YAML, or gives a key twice."""
    document = Document()
    try:
        node = _Loader(text).get_single_node()
        if node is not None:
            document.value = _value(node, (), document.origins)
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        raise YamlError(line, f"not valid YAML: {error.reason} (0x{error.character:02x})") from None
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        raise YamlError(mark.line + 1 if mark else 1, f"not valid YAML: {error.problem or error.context}") from None
    except (ValueError, LookupError, ArithmeticError) as error:  # for "\UFFFFFFFF", or a number of 5,000 digits
        raise YamlError(1, f"not valid YAML: {error}") from None
    return document


def dump(plain: Mapping[str, Any]) -> str:
    """Writes a text that `parse` reads back to the same value."""
    return str(yaml.dump(dict(plain), Dumper=_Dumper, sort_keys=False, default_flow_style=None, width=110))


def flow(value: Any) -> str:
    """Writes one value on one line, as it can stand in an override."""
    return str(yaml.dump([value], Dumper=_Dumper, default_flow_style=True, width=10**6)).strip()[1:-1]


def leaves(value: Any, path: Path = ()) -> Iterator[tuple[Any, Any]]:
    """Returns every value of nested sections with its path; an empty section is a value."""
    if isinstance(value, Mapping) and value:
        for key, item in value.items():
            yield from leaves(item, (*path, key))
    else:
        yield path, value


def _value(node: Node, path: Path, origins: dict[Path, str]) -> Any:
    origins.setdefault(path, f"line {node.start_mark.line + 1}")
    if isinstance(node, MappingNode):
        return _mapping(node, path, origins)
    if isinstance(node, SequenceNode):
        return [_value(item, (*path, index), origins) for index, item in enumerate(node.value)]
    read = _READERS.get(node.tag.rpartition(":")[2], str)
    return read(node.value)


def _mapping(node: MappingNode, path: Path, origins: dict[Path, str]) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for key_node, value_node in node.value:
        line = key_node.start_mark.line + 1
        if not isinstance(key_node, ScalarNode):
            raise YamlError(line, "a key must be plain text, not a list or a section")
        key = str(key_node.value)
        if key in values:
            raise YamlError(line, f"the key {key[:60]!r} is given twice, first on {origins[(*path, key)]}; remove one")
        origins[(*path, key)] = f"line {line}"
        values[key] = _value(value_node, (*path, key), origins)
    return values
