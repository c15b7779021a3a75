"""What config files say, before anybody asks whether it makes sense: values, and where each of them stands."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from fedmpi.config import words, yaml_text
from fedmpi.config.explain import Problem
from fedmpi.disk.plain import NotPlainError, TooLongError, read_bytes
from fedmpi.errors import ConfigError

MAX_BYTES = 200_000
"""A hundred times a config, for a file and all that it extends. PyYAML reads 80 kB/s, and an answer should take less
than 5 s.
"""
COMMAND_LINE = "command line"
MAX_CHAIN = 8
MAX_BASES = 8
MAX_FILES = 32
"""In all: eight files that extend eight each, eight deep, would be two million."""


@dataclass
class Tree:
    """Values as found, and where each of them stands ("line 3", "command line")."""

    file: str
    values: dict[str, Any]
    origins: dict[yaml_text.Path, str]
    problems: list[Problem] = field(default_factory=list)

    def origin(self, path: yaml_text.Path) -> str:
        """Of the path itself or of the innermost section or list around it."""
        around = (self.origins.get(path[:length]) for length in range(len(path), 0, -1))
        return next((origin for origin in around if origin), "")

    def put_all(self, settings: Sequence[tuple[yaml_text.Path, Any]], origin: Callable[[yaml_text.Path], str]) -> None:
        """Sets values on top of those that are there; a section's name goes first and empties the section. What is
        replaced is gone, with what was said of it.

        Costs O(what is there + what is set), however much a setting replaces.
        """
        names = {path[:-1]: (path, value) for path, value in settings if _is_name(path)}
        replaced = {*names, *(path for path, _ in settings)}
        self.origins = {known: where for known, where in self.origins.items() if not _is_inside(known, replaced)}
        self.problems = [problem for problem in self.problems if not _is_inside(problem.path, replaced)]
        for section in sorted(names, key=len):
            path, value = names[section]
            self._put(section, {"name": value}, origin(path))
        for path, value in settings:
            if not _is_name(path):
                self._put(path, value, origin(path))

    def _put(self, path: yaml_text.Path, value: Any, origin: str) -> None:
        section: dict[Any, Any] = self.values
        for length, key in enumerate(path[:-1], 1):
            if not isinstance(section.get(key), dict):
                section[key] = {}
                self.origins[path[:length]] = origin
            section = section[key]
        section[path[-1]] = value
        self.origins[path] = origin


def _is_inside(path: yaml_text.Path, others: Collection[yaml_text.Path]) -> bool:
    """Is the path one of these, or of something in one of them?"""
    return any(path[:length] in others for length in range(1, len(path) + 1))


@dataclass
class _Allowance:
    """What may still be read for one config."""

    num_files: int = MAX_FILES
    num_bytes: int = MAX_BYTES


def read_tree(path: Path, shown: str) -> Tree:
    """What a file says, on top of what the files that it extends say, the later of these on the earlier. Raises
    ConfigError.
    """
    return _read_tree(path, shown, (), _Allowance())


def _read_tree(path: Path, shown: str, extended_by: tuple[Path, ...], allowance: _Allowance) -> Tree:
    top = _read(path, shown, allowance)
    base = top.values.pop("extends", None)
    if base is None:
        return top
    where = f"{shown}: extends ({top.origins.pop(('extends',), '')})"
    bases = base if isinstance(base, list) and base else [base]
    if len(bases) > MAX_BASES:
        raise ConfigError(where, f"{len(bases)} files; allowed: at most {MAX_BASES}")
    tree = Tree(shown, {}, {}, [])
    for name in bases:
        _put_on_top(tree, _read_base(path, name, where, extended_by, allowance))
    top.origins = {key: value for key, value in top.origins.items() if key[:1] != ("extends",)}
    _put_on_top(tree, top)
    return tree


def _read_base(path: Path, base: Any, where: str, extended_by: tuple[Path, ...], allowance: _Allowance) -> Tree:
    """One of the files that the file at `path` extends, each of its origins naming the file."""
    if not isinstance(base, str) or not base:
        expected = "the path of a YAML file, relative to this one's folder, or a list of such"
        raise ConfigError(where, f"expected {expected}, got {found(base)}")
    base_path = path.parent / base
    try:
        chain, resolved = (*extended_by, path.resolve()), base_path.resolve()
    except (OSError, ValueError) as error:
        raise ConfigError(where, f"{words.found(base)} is no path: {error}") from None
    if resolved in chain:
        raise ConfigError(where, f"{base!r} extends this file in turn; a file may not extend itself")
    if len(chain) > MAX_CHAIN:
        raise ConfigError(where, f"more than {MAX_CHAIN} files extend one another")
    try:
        tree = _read_tree(base_path, str(base_path), chain, allowance)
    except ConfigError as error:
        raise ConfigError(where, *error.text().splitlines()) from None
    tree.origins = {key: value if ":" in value else f"{base_path.name}: {value}" for key, value in tree.origins.items()}
    return tree


def _put_on_top(tree: Tree, top: Tree) -> None:
    problems = tree.problems + top.problems
    tree.put_all([*leaves((), top.values)] if top.values else [], top.origin)
    tree.problems = problems


def _is_name(path: yaml_text.Path) -> bool:
    return len(path) > 1 and path[-1] == "name"


def leaves(path: yaml_text.Path, value: Any) -> Iterator[tuple[yaml_text.Path, Any]]:
    """Every value of nested sections with its path; an empty section is a value."""
    if isinstance(value, dict) and value:
        for key, item in value.items():
            yield from leaves((*path, key), item)
    else:
        yield path, value


def _read(path: Path, shown: str, allowance: _Allowance) -> Tree:
    text = _decode(_bytes(path, shown, allowance), shown)
    try:
        document = yaml_text.parse(text)
    except yaml_text.YamlError as error:
        raise ConfigError(shown, str(error)) from None
    values = {} if document.value is None else document.value
    if not isinstance(values, dict):
        raise ConfigError(shown, f"expected sections (`seed: 1`, `data: ...`), got {found(values)} on the top level")
    origins = {path: f"line {line}" for path, line in document.lines.items()}
    return Tree(shown, values, origins, [Problem(path, text, origins[path]) for path, text in document.problems])


def found(value: Any) -> str:
    kind = words.type_of(value)
    return f"{words.found(value)} ({kind})" if kind else words.found(value)


def _bytes(path: Path, shown: str, allowance: _Allowance) -> bytes:
    allowance.num_files -= 1
    if allowance.num_files < 0:
        raise ConfigError(shown, f"file {MAX_FILES + 1} of those that extend one another; allowed: at most {MAX_FILES}")
    try:
        content = read_bytes(path, allowance.num_bytes)
    except FileNotFoundError:
        raise ConfigError(shown, f"no such file.{_similar_files(path)}") from None
    except NotPlainError:
        raise ConfigError(shown, "not a file; give the path of a YAML file") from None
    except TooLongError:
        in_all = " in all" if allowance.num_bytes < MAX_BYTES else ""
        raise ConfigError(shown, f"larger than {MAX_BYTES:,} bytes{in_all}; is this a config?") from None
    except (OSError, ValueError) as error:
        raise ConfigError(shown, f"cannot be read: {getattr(error, 'strerror', None) or error}") from None
    allowance.num_bytes -= len(content)
    return content


def _similar_files(path: Path) -> str:
    try:
        names = sorted(file.name for file in path.parent.glob("*.yaml"))
    except OSError:
        names = []
    close = get_close_matches(path.name, names, n=1)
    return f" Did you mean {str(path.with_name(close[0]))!r}?" if close else ""


def _decode(content: bytes, shown: str) -> str:
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise ConfigError(shown, f"line {line}: not valid UTF-8 (byte 0x{content[error.start]:02x})") from None
