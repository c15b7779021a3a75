"""What config files say, before it is checked: values, and where each of them stands."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from fedmpi.config import words, yaml_text
from fedmpi.config.address import file_and_cell
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
"""In all, a file counted each time that it is extended: eight files that extend eight each, eight deep, would be two
million.
"""


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


@dataclass(frozen=True)
class _Address:
    """A file, the cell of it that is asked for, and both as messages name them."""

    path: Path
    cell: str | None
    shown: str

    def key(self) -> tuple[Path, str | None]:
        """Raises OSError or ValueError for what is no path."""
        return self.path.resolve(), self.cell


@dataclass
class _Allowance:
    """What may still be read for one config, and the files read so far: a file is parsed once for all of its cells."""

    num_files: int = MAX_FILES
    num_bytes: int = MAX_BYTES
    parsed: dict[Path, tuple[int, yaml_text.Document]] = field(default_factory=dict)


def read_tree(address: str | os.PathLike[str], shown: str) -> Tree:
    """What a file or a cell of it says, on top of what it extends: first the bases of the file, then those of the cell,
    then the file's own settings, then the cell's; the later of these on the earlier. Raises ConfigError.
    """
    file, cell = file_and_cell(address)
    return _read_tree(_Address(Path(file), cell, shown), (), _Allowance())


def _read_tree(address: _Address, extended_by: tuple[_Address, ...], allowance: _Allowance) -> Tree:
    layers = _layers(address, _read(address, allowance))
    bases = [(name, where) for layer in layers for name, where in _bases(layer)]
    if not bases and len(layers) == 1:
        return layers[0]
    tree = Tree(address.shown, {}, {}, [])
    for name, where in bases:
        _put_on_top(tree, _read_base(address, name, where, extended_by, allowance))
    for layer in layers:
        _put_on_top(tree, layer)
    return tree


def _layers(address: _Address, document: yaml_text.Document) -> list[Tree]:
    """What the file says outside its cells, and what the cell says if one is asked for. Raises ConfigError."""
    values = {} if document.value is None else document.value
    if not isinstance(values, dict):
        expected = "expected sections (`seed: 1`, `data: ...`)"
        raise ConfigError(address.shown, f"{expected}, got {found(values)} on the top level")
    if "cells" in values:
        problem = _problem_with_cell(address, values["cells"], document.lines)
        if problem:
            raise ConfigError(address.shown, problem)
    elif address.cell is not None:
        raise ConfigError(address.shown, f"the file has no cells; leave @{address.cell} out")
    shared = {key: value for key, value in values.items() if key != "cells"}
    lines = {path: line for path, line in document.lines.items() if _is_shared(path)}
    problems = [(path, text) for path, text in document.problems if _is_shared(path)]
    layers = [_layer(address, shared, lines, problems)]
    if address.cell is not None:
        own = ("cells", address.cell)
        lines = {path[2:]: line for path, line in document.lines.items() if path[:2] == own}
        problems = [(path[2:], text) for path, text in document.problems if path[:2] == own and len(path) > 2]
        layers.append(_layer(address, values["cells"][address.cell] or {}, lines, problems))
    return layers


def _is_shared(path: yaml_text.Path) -> bool:
    """Does it stand outside the cells, or is it the name of one?"""
    return path[:1] != ("cells",) or len(path) <= 2


def _layer(
    address: _Address,
    values: dict[str, Any],
    lines: Mapping[yaml_text.Path, int],
    problems: Iterable[tuple[yaml_text.Path, str]],
) -> Tree:
    """A tree of its own, with nothing in it of the document that other cells use, too."""
    origins = {path: f"line {line}" for path, line in lines.items()}
    told = [Problem(path, text, origins.get(path, "")) for path, text in problems]
    return Tree(address.shown, deepcopy(values), origins, told)


def _problem_with_cell(address: _Address, cells: Any, lines: Mapping[yaml_text.Path, int]) -> str:
    """Why the asked cell cannot be read, with the line; or nothing."""
    where = f"cells (line {lines['cells',]}): "
    if not isinstance(cells, dict) or not cells:
        return f"{where}expected named cells, as {{name: {{seed: 1}}}}, got {found(cells)}"
    odd = [name for name in cells if not re.fullmatch(r"[\w-]+", name, re.ASCII)]
    if odd:
        where = f"{words.dotted(('cells', odd[0]))} (line {lines['cells', odd[0]]})"
        return f"{where}: the name of a cell has letters, digits, - and _ only"
    if address.cell is None:
        return f"{where}name one of them, as {address.shown}@{next(iter(cells))}. Cells: {words.listed(cells, 6)}"
    if address.cell not in cells:
        suggestion = words.suggest(address.cell, cells)
        return f"{where}no cell {words.found(address.cell)}.{suggestion} Cells: {words.listed(cells, 6)}"
    cell = cells[address.cell]
    if cell is None or isinstance(cell, dict):
        return ""
    where = f"cells.{address.cell} (line {lines['cells', address.cell]})"
    return f"{where}: expected sections, as {{seed: 1}}, got {found(cell)}"


def _bases(layer: Tree) -> list[tuple[Any, str]]:
    """What the layer extends, taken out of it: each base and where it is named. Raises ConfigError."""
    base = layer.values.pop("extends", None)
    where = f"{layer.file}: extends ({layer.origins.get(('extends',), '')})"
    layer.origins = {key: value for key, value in layer.origins.items() if key[:1] != ("extends",)}
    if base is None:
        return []
    bases = base if isinstance(base, list) and base else [base]
    if len(bases) > MAX_BASES:
        raise ConfigError(where, f"{len(bases)} files; allowed: at most {MAX_BASES}")
    return [(name, where) for name in bases]


def _read_base(
    address: _Address, name: Any, where: str, extended_by: tuple[_Address, ...], allowance: _Allowance
) -> Tree:
    """One of what `address` extends, each of its origins naming the file."""
    if not isinstance(name, str) or not name:
        expected = "the path of a YAML file, relative to this one's folder, or a list of such"
        raise ConfigError(where, f"expected {expected}, got {found(name)}")
    file, cell = file_and_cell(name)
    path, chain = address.path.parent / file, (*extended_by, address)
    base = _Address(path, cell, str(path) if cell is None else f"{path}@{cell}")
    try:
        is_extended = base.key() in [other.key() for other in chain]
    except (OSError, ValueError) as error:
        raise ConfigError(where, f"{words.found(name)} is no path: {error}") from None
    if is_extended:
        kind = "file" if cell is None else "cell"
        raise ConfigError(where, f"{name!r} extends this {kind} in turn; a {kind} may not extend itself")
    if len(chain) > MAX_CHAIN:
        raise ConfigError(where, f"more than {MAX_CHAIN} files extend one another")
    try:
        tree = _read_tree(base, chain, allowance)
    except ConfigError as error:
        raise ConfigError(where, *error.text().splitlines()) from None
    of_file = Path(base.shown).name
    tree.origins = {key: at if ":" in at else f"{of_file}: {at}" for key, at in tree.origins.items()}
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


def _read(address: _Address, allowance: _Allowance) -> yaml_text.Document:
    """Each use of a file counts, also of one that is parsed already."""
    path, shown = address.path, address.shown
    allowance.num_files -= 1
    if allowance.num_files < 0:
        raise ConfigError(shown, f"file {MAX_FILES + 1} of those that extend one another; allowed: at most {MAX_FILES}")
    if path not in allowance.parsed:
        content = _bytes(path, shown, allowance.num_bytes)
        try:
            allowance.parsed[path] = len(content), yaml_text.parse(_decode(content, shown))
        except yaml_text.YamlError as error:
            raise ConfigError(shown, str(error)) from None
    num_bytes, document = allowance.parsed[path]
    allowance.num_bytes -= num_bytes
    if allowance.num_bytes < 0:
        raise _too_long(shown, in_all=True)
    return document


def found(value: Any) -> str:
    kind = words.type_of(value)
    return f"{words.found(value)} ({kind})" if kind else words.found(value)


def _bytes(path: Path, shown: str, limit: int) -> bytes:
    try:
        return read_bytes(path, limit)
    except FileNotFoundError:
        raise ConfigError(shown, f"no such file.{_similar_files(path)}") from None
    except NotPlainError:
        raise ConfigError(shown, "not a file; give the path of a YAML file") from None
    except TooLongError:
        raise _too_long(shown, in_all=limit < MAX_BYTES) from None
    except (OSError, ValueError) as error:
        raise ConfigError(shown, f"cannot be read: {getattr(error, 'strerror', None) or error}") from None


def _too_long(shown: str, *, in_all: bool) -> ConfigError:
    return ConfigError(shown, f"larger than {MAX_BYTES:,} bytes{' in all' * in_all}; is this a config?")


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
