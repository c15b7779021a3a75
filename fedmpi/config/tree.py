"""What config files say, before it is checked: values, and where each of them stands."""

from __future__ import annotations

import contextlib
import functools
import os
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from copy import deepcopy
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from fedmpi.config import words, yaml_text
from fedmpi.config.address import file_and_cell, suggestion
from fedmpi.config.comparing import leaves
from fedmpi.config.yaml_text import Document, Problem
from fedmpi.disk.plain import NotPlainError, TooLongError, read_bytes
from fedmpi.errors import ConfigError, reason

MAX_BYTES = 200_000
"""A hundred times a config, for a file and all that it extends. PyYAML reads that, at 80 kB/s, in 2.5 s."""
COMMAND_LINE = "command line"
MAX_FILES = 32
"""In all, each use of a file counted: eight files that extend eight each, eight deep, would be two million."""


@dataclass
class Tree:
    """Values as found, and where each of them stands ("line 3", "command line")."""

    file: str
    values: dict[str, Any]
    origins: dict[yaml_text.Path, str]
    problems: list[Problem] = field(default_factory=list)

    def origin(self, path: yaml_text.Path) -> str:
        """The place of the path itself, or of the innermost section or list around it."""
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

    def put_tree(self, top: Tree) -> None:
        """All that another tree says, on top."""
        problems = self.problems + top.problems
        self.put_all([*leaves(top.values)] if top.values else [], top.origin)
        self.problems = problems


def _is_inside(path: yaml_text.Path, others: Collection[yaml_text.Path]) -> bool:
    """Is the path one of these, or of something in one of them?"""
    return any(path[:length] in others for length in range(1, len(path) + 1))


def _is_name(path: yaml_text.Path) -> bool:
    return len(path) > 1 and path[-1] == "name"


@dataclass(frozen=True)
class _Address:
    """A file, the cell of it that is asked for, and both as messages name them."""

    path: Path
    cell: str | None
    shown: str

    def is_same(self, other: _Address) -> bool:
        return os.path.normpath(self.path) == os.path.normpath(other.path) and self.cell == other.cell


def read_tree(address: str | os.PathLike[str], shown: str) -> Tree:
    """What a file or a cell of it says, on top of what it extends: first the bases of the file, then those of the cell,
    then the file's own settings, then the cell's; the later of these on the earlier. Raises ConfigError.
    """
    file, cell = file_and_cell(address)
    return _Reader().tree(_Address(Path(file), cell, shown))


class _Reader:
    """Reads the files of one config. Each is read once for all of its cells, and each use of one counts."""

    def __init__(self) -> None:
        self._files_left, self._bytes_left = MAX_FILES, MAX_BYTES
        self._read: dict[Path, tuple[int, Document]] = {}

    def tree(self, address: _Address, extended_by: tuple[_Address, ...] = ()) -> Tree:
        layers = _layers(address, self._document(address))
        bases = [found for layer in layers for found in _bases(layer)]
        if not bases and len(layers) == 1:
            return layers[0]
        tree = Tree(address.shown, {}, {})
        for base, where in bases:
            tree.put_tree(self._base(base, where, (*extended_by, address)))
        for layer in layers:
            tree.put_tree(layer)
        return tree

    def _base(self, name: Any, where: str, chain: tuple[_Address, ...]) -> Tree:
        """One of what the last of the chain extends, each of its origins naming the file."""
        if not isinstance(name, str) or not name:
            expected = "the path of a YAML file, relative to this one's folder, or a list of such"
            raise ConfigError(where, f"expected {expected}, got {words.found_with_type(name)}")
        file, cell = file_and_cell(name)
        path = chain[-1].path.parent / file
        base = _Address(path, cell, str(path) if cell is None else f"{path}@{cell}")
        if any(map(base.is_same, chain)):
            kind = "file" if cell is None else "cell"
            raise ConfigError(where, f"{name!r} extends this {kind} in turn; a {kind} may not extend itself")
        try:
            tree = self.tree(base, chain)
        except ConfigError as error:
            raise ConfigError(where, *error.text().splitlines()) from None
        of_file = Path(base.shown).name
        tree.origins = {key: at if ":" in at else f"{of_file}: {at}" for key, at in tree.origins.items()}
        return tree

    def _document(self, address: _Address) -> Document:
        self._files_left -= 1
        if self._files_left < 0:
            many = f"file {MAX_FILES + 1} of the files that extend one another"
            raise ConfigError(address.shown, f"{many}; allowed: at most {MAX_FILES}")
        if address.path not in self._read:
            content = _content(address, self._bytes_left)
            try:
                self._read[address.path] = len(content), _parsed(_decode(content, address.shown))
            except yaml_text.YamlError as error:
                raise ConfigError(address.shown, str(error)) from None
        num_bytes, document = self._read[address.path]
        self._bytes_left -= num_bytes
        if self._bytes_left < 0:
            raise _too_long(address, in_all=True)
        return document


# Commands on many configs meet the same texts again and again. No reader writes into a document.
_parsed = functools.lru_cache(maxsize=64)(yaml_text.parse)


def _layers(address: _Address, document: Document) -> list[Tree]:
    """What the file says outside its cells, and what the cell says if one is asked for. Raises ConfigError."""
    values = {} if document.value is None else document.value
    if not isinstance(values, dict):
        expected = "expected sections (`seed: 1`, `data: ...`)"
        raise ConfigError(address.shown, f"{expected}, got {words.found_with_type(values)} on the top level")
    if "cells" in values:
        if problem := _problem_with_cell(address, values["cells"], document.origins):
            raise ConfigError(address.shown, problem)
    elif address.cell is not None:
        raise ConfigError(address.shown, f"the file has no cells; leave @{address.cell} out")
    cells: Any = values.get("cells")
    shared = {key: value for key, value in values.items() if key != "cells"}
    # Of a cell's name the file says whether it is given twice, of what is in it the cell.
    inside = [problem for problem in document.problems if problem.path[0] == "cells" and len(problem.path) > 2]
    outside = [problem for problem in document.problems if problem not in inside]
    layers = [Tree(address.shown, deepcopy(shared), dict(document.origins), outside)]
    if address.cell is not None:
        own = ("cells", address.cell)
        origins = {path[2:]: origin for path, origin in document.origins.items() if path[:2] == own}
        problems = [replace(problem, path=problem.path[2:]) for problem in inside if problem.path[:2] == own]
        layers.append(Tree(address.shown, deepcopy(cells[address.cell]) or {}, origins, problems))
    return layers


def _problem_with_cell(address: _Address, cells: Any, origins: dict[yaml_text.Path, str]) -> str:
    """Why the asked cell cannot be read, with the line; or nothing."""
    where = f"cells ({origins['cells',]}): "
    if not isinstance(cells, dict) or not cells:
        return f"{where}expected named cells, as {{name: {{seed: 1}}}}, got {words.found_with_type(cells)}"
    odd = [name for name in cells if not re.fullmatch(r"[\w-]+", name, re.ASCII)]
    if odd:
        where = f"{words.dotted(('cells', odd[0]))} ({origins['cells', odd[0]]})"
        return f"{where}: the name of a cell has letters, digits, - and _ only"
    if address.cell is None:
        return f"{where}name one of them, as {address.shown}@{next(iter(cells))}. Cells: {words.listed(cells, 6)}"
    if address.cell not in cells:
        suggestion = words.suggest(address.cell, cells)
        return f"{where}no cell {words.found(address.cell)}.{suggestion} Cells: {words.listed(cells, 6)}"
    cell = cells[address.cell]
    if cell is None or isinstance(cell, dict):
        return ""
    where = f"cells.{address.cell} ({origins['cells', address.cell]})"
    return f"{where}: expected sections, as {{seed: 1}}, got {words.found_with_type(cell)}"


def _bases(layer: Tree) -> Iterator[tuple[Any, str]]:
    """What the layer extends, taken out of it: each base and where it is named."""
    where = f"{layer.file}: extends ({layer.origin(('extends',))})"
    base = layer.values.pop("extends", None)
    for name in base if isinstance(base, list) and base else [base]:
        if base is not None:
            yield name, where


def _content(address: _Address, limit: int) -> bytes:
    try:
        return read_bytes(address.path, limit)
    except FileNotFoundError:
        raise ConfigError(address.shown, f"no such file.{_similar_files(address.path, address.shown)}") from None
    except NotPlainError:
        raise ConfigError(address.shown, "not a file; give the path of a YAML file") from None
    except TooLongError:
        raise _too_long(address, in_all=limit < MAX_BYTES) from None
    except (OSError, ValueError) as error:
        raise ConfigError(address.shown, f"cannot be read: {reason(error)}") from None


def _too_long(address: _Address, *, in_all: bool) -> ConfigError:
    return ConfigError(address.shown, f"larger than {MAX_BYTES:,} bytes{' in all' * in_all}; is this a config?")


def _similar_files(path: Path, shown: str) -> str:
    """What may have been meant: a file beside it, a cell of that name (`a.yaml@b` for `a_b.yaml`), a shipped config."""
    known: dict[str, str] = {}
    with contextlib.suppress(OSError):
        for file in sorted(path.parent.glob("*.y*ml")):
            known[file.name] = str(file)
            if path.name.startswith(f"{file.stem}_"):
                known |= {f"{file.stem}_{cell}.yaml": f"{file}@{cell}" for cell in _cells(file)}
    if close := words.similar(path.name, known):
        return f" Did you mean {known[close[0]]!r}?"
    if "\\" in shown:
        return " Folders are parted by / and not by \\."
    suggested = suggestion(shown)
    return f" {suggested[0].upper()}{suggested[1:]}" if suggested else ""


def _cells(file: Path) -> Iterable[str]:
    """The names of its cells; none where it cannot be read."""
    try:
        values = yaml_text.parse(_decode(read_bytes(file, MAX_BYTES), "")).value
    except (OSError, ConfigError, yaml_text.YamlError):
        return ()
    cells = values.get("cells") if isinstance(values, dict) else None
    return cells if isinstance(cells, dict) else ()


def _decode(content: bytes, shown: str) -> str:
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise ConfigError(shown, f"line {line}: not valid UTF-8 (byte 0x{content[error.start]:02x})") from None
