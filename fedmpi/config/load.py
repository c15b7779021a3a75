"""From a YAML file and `section.key=value` overrides to a validated `Config`, or to every problem at once.

A config stands on what it `extends` (other configs, relative to the file's folder), or alone: what is left out takes
the defaults of the schema and of the options classes. `configs/fedhm_digits.yaml` is used where no file is given. An
override of a section's `name`, by the command line or by a file that extends, resets that section to the new name's
own defaults; the section's other overrides then apply on top, wherever they stand.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache, lru_cache, partial
from pathlib import Path
from types import FunctionType
from typing import Any

from pydantic import ValidationError

from fedmpi import registry
from fedmpi.config import explain, hooks, yaml_text
from fedmpi.config.address import CONFIGS, file_and_cell, is_address, located, similar_config
from fedmpi.config.explain import MAX_PROBLEMS, Problem, dotted, found
from fedmpi.config.fields import Section
from fedmpi.config.schema import NAMED_SECTIONS, Config, Output
from fedmpi.config.yaml_text import Document, YamlError, leaves
from fedmpi.disk.plain import NotPlainError, TooLongError, read_bytes
from fedmpi.errors import ConfigError, counted, reason

Override = str | tuple[str, Any]
"""A word of a command line, `train.lr=0.1`, or from Python a dotted key and its value, `("train.lr", 0.1)`."""

COMMAND_LINE = "command line"
ARGUMENTS = "arguments"
"""How messages name what a Python program gives on top of a file."""
DEFAULT_FILE = CONFIGS / "fedhm_digits.yaml"
"""The config that is used where no file is given."""
DEFAULT_NAME = f"default config {DEFAULT_FILE.name}"
"""How messages name it."""
MAX_BYTES = 200_000
"""A hundred times a config, for a file and all that it extends. PyYAML reads that, at 80 kB/s, in 2.5 s."""
MAX_FILES = 32
"""In all, each use of a file counted: eight files that extend eight each, eight deep, would be two million."""
OBSERVERS: yaml_text.Path = ("output", "observers")
_FORM = "a config is a YAML file or a name as fedhm_digits, a setting is section.key=value, in quotes if it has blanks"


# The words of a command line.


def parted(given: Sequence[str]) -> tuple[list[str], list[str]]:
    """Returns the addresses of the configs that a command line names, and the overrides. Raises `ConfigError` for a
    word that can be neither."""
    configs, overrides = without_overrides(given)
    addresses = [located(word) for word in configs]
    for word, address in zip(configs, addresses, strict=True):
        if not is_address(word) and not os.path.exists(file_and_cell(address)[0]):
            raise ConfigError(COMMAND_LINE, f"{found(word)} means nothing here: {advice(word) or _FORM}")
    return addresses, overrides


def one_config(given: Sequence[str]) -> tuple[str | None, list[str]]:
    """Returns the same for a command of one config, or none. Raises `ConfigError`."""
    configs, overrides = parted(given)
    if len(configs) > 1:
        raise ConfigError(COMMAND_LINE, f"one config, or none, is allowed, got {', '.join(configs)}")
    return (configs[0] if configs else None), overrides


def without_overrides(given: Sequence[str]) -> tuple[list[str], list[str]]:
    """Returns the other words, and the overrides: words with a =, but for paths, which may have one after a /."""
    overrides = [word for word in given if "=" in word and "/" not in word.partition("=")[0]]
    return [word for word in given if word not in overrides], overrides


def advice(word: str) -> str:
    """Says what to write instead of a word, an option included; empty where nothing is similar."""
    key, _, value = word.lstrip("-").partition("=" if "=" in word else ":")
    if meant := explain.keys_meant(key):
        settings = [f"{one}={value or 'VALUE'}" for one in meant[:3]]
        return f"write {' or '.join(settings)}"
    for section in NAMED_SECTIONS:
        if registry.is_built_in(section, word.lower()):
            return f"write {section}.name={word.lower()}"
    config = similar_config(word)
    return f"did you mean {config!r}?" if config else ""


# Files.


class Tree:
    """Holds what files and overrides say, before it is checked: values, and where each of them stands ("line 3")."""

    def __init__(self, where: str, document: Document | None = None) -> None:
        self.where = where
        value = document.value if document is not None else None
        self.leaves: dict[yaml_text.Path, Any] = dict(leaves(value)) if value else {}
        self.origins: dict[yaml_text.Path, str] = dict(document.origins) if document is not None else {}

    @property
    def values(self) -> dict[str, Any]:
        """Returns the values as nested sections."""
        nested: dict[str, Any] = {}
        for path, value in self.leaves.items():
            section: dict[Any, Any] = nested
            for key in path[:-1]:
                if not isinstance(section.get(key), dict):
                    section[key] = {}
                section = section[key]
            section[path[-1]] = value
        return nested

    def origin(self, path: yaml_text.Path) -> str:
        """Returns the place of the path itself, or of the innermost section or list around it."""
        around = (self.origins.get(path[:length]) for length in range(len(path), 0, -1))
        return next((origin for origin in around if origin), "")

    def put(self, top: Tree) -> None:
        """Puts another tree's settings on top. A section's new name empties the section.

        Costs O(settings here + settings there), however many of them are replaced.
        """
        emptied = {path[:-1] for path in top.leaves if len(path) > 1 and path[-1] == "name"}
        replaced = emptied | top.leaves.keys()
        sections = {section for path in top.leaves for section in _around(path)}
        replaced |= sections & self.leaves.keys()
        self.leaves = {path: value for path, value in self.leaves.items() if not _is_inside(path, replaced)}
        known = {path: where for path, where in self.origins.items() if not _is_inside(path, replaced)}
        new = {section: top.origin(section) or top.origin(path) for path in top.leaves for section in _around(path)}
        self.leaves |= top.leaves
        self.origins = new | known | top.origins


def _around(path: yaml_text.Path) -> list[yaml_text.Path]:
    return [path[:length] for length in range(1, len(path))]


def _is_inside(path: yaml_text.Path, others: Iterable[yaml_text.Path]) -> bool:
    return any(path[:length] in others for length in range(1, len(path) + 1))


def read_tree(address: str | os.PathLike[str], shown: str) -> Tree:
    """Reads a file on top of what it extends, the later of these on the earlier. Raises ConfigError."""
    return _Reader().tree(os.fspath(address), shown, ())


class _Reader:
    """Reads the files of one config; each use of a file counts."""

    def __init__(self) -> None:
        self._files_left = MAX_FILES
        self._bytes_left = MAX_BYTES

    def tree(self, address: str, shown: str, extended_by: tuple[str, ...]) -> Tree:
        document = self._document(Path(address), shown)
        if not isinstance(document.value or {}, dict):
            text = f"expected sections (`seed: 1`, `data: ...`), got {found(document.value)} on the top level"
            raise ConfigError(shown, text)
        own = Tree(shown, document)
        origin = f"{shown}: extends ({own.origin(('extends',))})"
        bases = own.leaves.pop(("extends",), None)
        tree = Tree(shown)
        for base in bases if isinstance(bases, list) and bases else [bases]:
            if base is not None:
                tree.put(self._base(base, origin, (*extended_by, os.path.normpath(address))))
        tree.put(own)
        return tree

    def _base(self, name: Any, where: str, chain: tuple[str, ...]) -> Tree:
        """Reads one of the files that the last of the chain extends; each of its origins names the file."""
        if not isinstance(name, str) or not name:
            raise ConfigError(where, f"expected the path of a YAML file, or a list of paths, got {found(name)}")
        address = str(Path(chain[-1]).parent / name)
        if os.path.normpath(address) in chain:
            raise ConfigError(where, f"{name!r} extends this file in turn; a file may not extend itself")
        try:
            tree = self.tree(address, address, chain)
        except ConfigError as error:
            raise ConfigError(where, *error.text().splitlines()) from None
        tree.origins = {key: at if ":" in at else f"{Path(address).name}: {at}" for key, at in tree.origins.items()}
        return tree

    def _document(self, path: Path, shown: str) -> Document:
        self._files_left -= 1
        if self._files_left < 0:
            raise ConfigError(shown, f"more than {MAX_FILES} files extend one another")
        content = _content(path, shown, self._bytes_left)
        self._bytes_left -= len(content)
        try:
            return _parsed(content.decode("utf-8-sig"))
        except UnicodeDecodeError as error:
            line = content.count(b"\n", 0, error.start) + 1
            raise ConfigError(shown, f"line {line}: not valid UTF-8 (byte 0x{content[error.start]:02x})") from None
        except YamlError as error:
            raise ConfigError(shown, str(error)) from None


# Commands on many configs meet the same texts again and again. No reader writes into a document.
_parsed = lru_cache(maxsize=64)(yaml_text.parse)


def _content(path: Path, shown: str, most_bytes: int) -> bytes:
    try:
        return read_bytes(path, most_bytes)
    except FileNotFoundError:
        config = similar_config(str(path))
        raise ConfigError(shown, f"no such file.{explain.did_you_mean([config] if config else [])}") from None
    except NotPlainError:
        raise ConfigError(shown, "not a file; give the path of a YAML file") from None
    except TooLongError:
        raise ConfigError(shown, f"larger than {MAX_BYTES:,} bytes, with all that it extends") from None
    except (OSError, ValueError) as error:
        raise ConfigError(shown, f"cannot be read: {reason(error)}") from None


# From a tree to a config.


def load(
    path: str | os.PathLike[str] | None,
    overrides: Sequence[Override],
    *,
    below: Sequence[Override] = (),
    of_run: bool = False,
    trains: bool = False,
    observed: bool = False,
) -> Config:
    """Returns the validated config. Raises ConfigError with one line for each problem, all at once.

    `path` None is the default config. The overrides `below` are a layer under the others, as a grid file is one: a name
    in the others resets what it sets. Reads the file and those it extends; imports only what its names mean. Of a
    file that a run directory holds (`of_run`), not the user, nothing is imported that is named in full there alone; a
    command that `trains` needs the names of its observers again, too. Mistakes in observers are among the problems if
    the run is `observed` by this process, which imports them.
    """
    tree = read_tree(DEFAULT_FILE if path is None else path, DEFAULT_NAME if path is None else str(path))
    top, problems = _override_tree(overrides)
    if below:
        middle, more = _override_tree(below)
        tree.put(middle)
        problems += more
    if of_run:
        _refuse_import(tree, top, trains)
    tree.put(top)
    config, invalid = _validate(tree, observed)
    problems += invalid
    if config is not None and not problems:
        problems = [Problem(explain.split(key), text) for key, text in _between_sections(config)]
    if config is None or problems:
        raise _report(tree, problems)
    config._where = tree.where
    return config


def _override_tree(overrides: Sequence[Override]) -> tuple[Tree, list[Problem]]:
    """Returns the overrides as a tree, and what is wrong with them. Raises ConfigError for more than can be read."""
    length = sum(len(override) for override in overrides if isinstance(override, str))
    if length > MAX_BYTES:
        raise ConfigError(COMMAND_LINE, f"overrides of {length:,} characters; allowed: {MAX_BYTES:,} in all")
    tree = Tree("")
    problems: list[Problem] = []
    for override in overrides:
        origin = COMMAND_LINE if isinstance(override, str) else ARGUMENTS
        try:
            settings = dict(_settings(override) if isinstance(override, str) else _given(*override))
        except ValueError as error:
            shown = found(override if isinstance(override, str) else override[0])
            problems.append(Problem((), f"override {shown}: {error}", origin))
            continue
        tree.leaves |= settings
        tree.origins |= dict.fromkeys(settings, origin)
    return tree, problems


def _settings(override: str) -> Iterator[tuple[yaml_text.Path, Any]]:
    """Returns what one override sets: a section as value sets each of its keys. Raises ValueError."""
    key, equals, text = override.partition("=")
    parts = _parts(key)
    if not equals or not parts:
        raise ValueError("expected section.key=value without blanks, as train.lr=0.1")
    try:
        return leaves(yaml_text.parse(text).value, parts)
    except YamlError as error:
        raise ValueError(error.text) from None


def _given(key: object, value: object, above: tuple[str, ...] = ()) -> Iterator[tuple[yaml_text.Path, Any]]:
    """Returns what a Python key and value set: of a mapping, each of its keys. Raises ValueError."""
    parts = _parts(key, above) if isinstance(key, str) else ()
    if not parts:
        raise ValueError(f"expected keys as 'train.lr', got {found(key)}")
    if isinstance(value, Mapping) and value:
        for inner, item in value.items():
            yield from _given(inner, item, parts)
    else:
        yield parts, _plain(value)


def _plain(value: Any) -> Any:
    """Returns the value as YAML would have given it: lists for tuples and arrays, text for paths, `module:Name` for a
    class or function. Raises ValueError for anything that no YAML can say.
    """
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if isinstance(value, (type, FunctionType)):
        return f"{value.__module__}:{value.__qualname__}"
    if hasattr(value, "tolist"):  # a number or an array of numpy or torch
        value = value.tolist()
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if value is None or isinstance(value, (bool, int, float, str, Mapping)):
        return value
    raise ValueError(f"expected text, numbers, lists or mappings of them, got {type(value).__name__}")


def _parts(key: str, above: tuple[str, ...] = ()) -> tuple[str, ...]:
    """Returns the words of a dotted key; none if one of them is empty. Raises ValueError for a key of too many."""
    own = tuple(part.strip() for part in key.split("."))
    if len(above) + len(own) > yaml_text.MAX_DEPTH:
        raise ValueError(f"nested deeper than {yaml_text.MAX_DEPTH} levels")
    return (*above, *own) if all(own) else ()


def _refuse_import(tree: Tree, top: Tree, trains: bool) -> None:
    """Raises ConfigError where a run's own file alone names code of the user's. Names that `top` repeats, to confirm
    them, are taken out of it: they reset no section.
    """
    in_full: dict[yaml_text.Path, str] = {
        (section, "name"): name
        for section in NAMED_SECTIONS
        if isinstance(name := tree.leaves.get((section, "name")), str) and registry.is_in_full(name)
    }
    if trains and (places := tree.leaves.get(OBSERVERS)):
        in_full[OBSERVERS] = f"[{','.join(map(str, places))}]"
    if missing := {path: name for path, name in in_full.items() if path not in top.leaves}:
        why = "a run directory alone makes fedmpi import nothing; to run this code, name it again:"
        again = " ".join(f"{dotted(path)}={name}" for path, name in missing.items())
        without = " (or output.observers=[] to continue without them)" if OBSERVERS in missing else ""
        raise ConfigError(tree.where, f"{why} {again}{without}")
    top.leaves = {path: value for path, value in top.leaves.items() if in_full.get(path, "") != value}


def _validate(tree: Tree, observed: bool) -> tuple[Config | None, list[Problem]]:
    """Validates section by section, so that a problem in one hides none in another."""
    problems: list[Problem] = []
    values = tree.values
    options = _options(values, problems)
    owners = cache(partial(explain.all_keys, options))  # imports the options of all names
    for name, section in options.items():
        values[name] = explain.completed(section, values.get(name))
        try:
            values[name] = section.model_validate(values[name])
        except ValidationError as error:
            problems += explain.problems(section, error, (name,), owners)
            values[name] = section.model_construct()
    if observed and isinstance(output := values["output"], Output):
        problems += [Problem(OBSERVERS, text) for text in hooks.problems(output.observers)]
    try:
        config = Config.model_validate(values)
    except ValidationError as error:
        return None, explain.problems(Config, error, (), owners) + problems
    return config, problems


def _between_sections(config: Config) -> Iterator[tuple[str, str]]:
    """Returns (dotted key, message) of all that is wrong between sections, each of which is valid by itself."""
    count, blocks = config.clients.count, config.clients.tier_blocks
    if config.clients.per_round > count:
        text = f"{config.clients.per_round} clients per round, but clients.count is {count}"
        yield "clients.per_round", f"{text}; allowed: 1 to {count}"
    tiers = len(getattr(config.method, "tiers", (1.0,)))
    has = f"method {config.method.name!r} has {counted(tiers, 'tier')}"
    if not blocks and count < tiers:
        yield "clients.count", f"{counted(count, 'client')}, but {has}; allowed: a client or more for each tier"
    if blocks and len(blocks) != tiers:
        todo = "give one block for each tier, or [] for equal blocks"
        yield "clients.tier_blocks", f"{counted(len(blocks), 'block')}, but {has}; {todo}"
    if blocks and sum(blocks) != count:
        text = f"the blocks have {counted(sum(blocks), 'client')}, but clients.count is {count}"
        yield "clients.tier_blocks", f"{text}; make them equal, or give [] for equal blocks"
    if config.evaluation.personal_test == "groups" and not config.data.used().shares_groups:
        text = f"groups, but the test examples of {config.data.name} do not come from the writers, subjects or roles"
        yield "evaluation.personal_test", f"{text} of its training examples; allowed: auto, matching, classes"
    if (tested := config.evaluation.clients) > count:
        yield "evaluation.clients", f"{tested} clients are to be tested, but clients.count is {count}; 0 tests all"
    for section in config.sections.values():
        yield from section.problems(config)


def _options(values: dict[str, Any], problems: list[Problem]) -> dict[str, type[Section]]:
    """Returns the class of each section. A section whose name is unknown is taken out of `values`."""
    options: dict[str, type[Section]] = {}
    for name, info in Config.model_fields.items():
        if name not in NAMED_SECTIONS:
            if explain.is_section(info.annotation):
                options[name] = info.annotation
            continue
        try:
            options[name] = _choose(values, name)
        except ValueError as error:
            path = (name, "name") if isinstance(values[name], dict) else (name,)
            problems.append(Problem(path, str(error)))
            values[name] = Section()
    return options


def _choose(values: dict[str, Any], section: str) -> type[Section]:
    """Returns the options class of a named section, and fills in its name. Raises ValueError with the problem."""
    given = {} if values.get(section) is None else values[section]
    known = [f"{name}..." if name.endswith(":") else name for name in registry.names(section)]
    if not isinstance(given, dict):
        raise ValueError(explain.name_missing(section, given, known))
    name = given.get("name", known[0])
    values[section] = {**given, "name": name}
    if not isinstance(name, str):
        raise ValueError(f"Input should be a name, got {found(name)}. Known names: {', '.join(known)}")
    if not registry.is_known(section, name):
        if several := registry.offers(section, name):
            raise ValueError(f"installed packages offer more than one {section} {found(name)}; write {several}")
        meant = explain.suggest(name, known) + registry.without_class(name)
        raise ValueError(f"no {section} {found(name)}.{meant} Known names: {', '.join(known)}")
    options: type[Section] = registry.options(section, name)
    return options


def _report(tree: Tree, problems: Sequence[Problem]) -> ConfigError:
    rows = [(*_key_and_origin(tree, problem), problem.text) for problem in problems]
    given = [origin for _, origin, _ in rows if origin in (COMMAND_LINE, ARGUMENTS)]
    where = given[0] if len(given) == len(rows) else tree.where
    if given and where == tree.where:
        where += f" and {given[0]}"
    lines = []
    for key, origin, text in rows:
        head = f"{key} ({origin})" if origin and origin != where else key
        lines.append(f"{head}  {text}".strip())
    if len(lines) > MAX_PROBLEMS:
        lines[MAX_PROBLEMS:] = [f"... and {len(lines) - MAX_PROBLEMS} more"]
    return ConfigError(where, *lines)


def _key_and_origin(tree: Tree, problem: Problem) -> tuple[str, str]:
    """Returns the key and where it stands; an override `a.b.c=1` whose `a` is unknown is named in full."""
    path, origin = problem.path, problem.origin or tree.origin(problem.path)
    inside = [leaf for leaf in tree.leaves if leaf[: len(path)] == path] if problem.is_unknown else []
    if len(inside) == 1 and tree.origin(inside[0]) in (COMMAND_LINE, ARGUMENTS):
        path = inside[0]
        origin = tree.origin(path)
    return dotted(path), origin
