"""From a YAML file and `section.key=value` overrides to a validated `Config`, or to every problem at once.

`configs/README.md` says how files, what they extend and overrides lie on each other.
"""

import os
from collections.abc import Iterable, Sequence
from functools import lru_cache
from pathlib import Path
from types import FunctionType
from typing import Any

from pydantic import ValidationError
from pydantic_core import to_jsonable_python

from fedmpi import registry
from fedmpi.config import explain, yaml_text
from fedmpi.config.address import CONFIGS, file_and_cell, is_address, located, similar_config
from fedmpi.config.explain import Problem
from fedmpi.config.schema import NAMED_SECTIONS, Config, named_in_full
from fedmpi.config.yaml_text import Tree, YamlError, dotted, found, leaves, nested
from fedmpi.errors import ConfigError, reason
from fedmpi.store.files import read_bytes, user_path

Override = str | tuple[str, Any]
"""A word of a command line, `train.lr=0.1`, or from Python a dotted key and its value, `("train.lr", 0.1)`."""

# The names of sources in messages; the second is a Python program's, the third that of no file.
COMMAND_LINE = "command line"
ARGUMENTS = "arguments"
DEFAULT_NAME = "default config fedhm_delta_digits.yaml"
DEFAULT_FILE = CONFIGS / "fedhm_delta_digits.yaml"
MAX_BYTES = 200_000
"""A hundred times a config. PyYAML reads 80 kB/s."""
MAX_PROBLEMS = 50
_FORM = "a config is a YAML file or a name as fedhm_digits, a setting is section.key=value, in quotes if it has blanks"


def one_config(words: Sequence[str]) -> tuple[str | None, list[str]]:
    """Returns the one config's address, or None, and the overrides. Raises `ConfigError` for any other word."""
    configs, overrides = without_overrides(words)
    for word in configs:
        if not is_address(word) and not os.path.exists(file_and_cell(located(word))[0]):
            raise ConfigError(COMMAND_LINE, f"{found(word)} means nothing here: {_advice(word) or _FORM}")
    if len(configs) > 1:
        raise ConfigError(COMMAND_LINE, f"one config, or none, is allowed, got {', '.join(configs)}")
    return (located(configs[0]) if configs else None), overrides


def without_overrides(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """Returns the other words, and the overrides: words with a =, but for paths, which may have one after a /."""
    overrides = []
    for word in words:
        is_file = is_address(word) and os.path.isfile(word)
        if "=" in word and "/" not in word.partition("=")[0] and not is_file:
            overrides.append(word)
    return [word for word in words if word not in overrides], overrides


def _advice(word: str) -> str:
    """Returns what to write instead of a word; "" where nothing is similar."""
    key, _, value = word.partition(":")
    if meant := explain.keys_meant(key):
        return "write " + " or ".join(f"{one}={value or 'VALUE'}" for one in meant[:3])
    for section in NAMED_SECTIONS:
        if registry.is_built_in(section, word.lower()):
            return f"write {section}.name={word.lower()}"
    config = similar_config(word)
    return f"did you mean {config!r}?" if config else ""


def read_tree(address: str | os.PathLike[str], shown: str, extended_by: tuple[str, ...] = ()) -> Tree:
    """Reads a file on top of what it extends, the later of these on the earlier. Raises `ConfigError`."""
    tree = read_yaml(Path(address), shown, f"{Path(address).name}: " if extended_by else "")
    if not isinstance(tree.value or {}, dict):
        text = f"expected sections (`seed: 1`, `data: ...`), got {found(tree.value)} on the top level"
        raise ConfigError(shown, text)
    own = dict(tree.value or {})
    extends = own.pop("extends", [])
    merged = Tree({})
    for base in extends if isinstance(extends, list) else [extends]:
        where = f"{shown}: extends ({tree.origin_of(('extends',))})"
        merged = merged.with_top(_base(base, where, (*extended_by, os.path.normpath(address))))
    return merged.with_top(Tree(own, tree.origins))


def _base(name: Any, where: str, chain: tuple[str, ...]) -> Tree:
    """Reads one of the files that the last of the chain extends."""
    if not isinstance(name, str) or not name:
        raise ConfigError(where, f"expected the path of a YAML file, or a list of paths, got {found(name)}")
    try:
        address = str(Path(chain[-1]).parent / user_path(name))
    except ValueError as error:
        raise ConfigError(where, str(error)) from None
    if os.path.normpath(address) in chain:
        raise ConfigError(where, f"{name!r} extends this file in turn; a file may not extend itself")
    try:
        return read_tree(address, address, chain)
    except ConfigError as error:
        raise ConfigError(where, *error.text().splitlines()) from None


def read_yaml(path: Path, shown: str, origin: str = "") -> Tree:
    """Reads a YAML file, which messages call `shown`; each place in it begins with `origin`. Raises `ConfigError`."""
    try:
        content = read_bytes(path, MAX_BYTES)
        return _parsed(content.decode("utf-8-sig"), origin)
    except FileNotFoundError:
        config = similar_config(str(path))
        raise ConfigError(shown, f"no such file.{explain.did_you_mean([config] if config else [])}") from None
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise ConfigError(shown, f"line {line}: not valid UTF-8 (byte 0x{content[error.start]:02x})") from None
    except YamlError as error:
        raise ConfigError(shown, str(error)) from None
    except (OSError, ValueError) as error:
        raise ConfigError(shown, f"cannot be read: {reason(error)}") from None


# A grid of runs reads the same texts many times.
_parsed = lru_cache(maxsize=64)(yaml_text.parse)


def load(
    path: str | os.PathLike[str] | None,
    overrides: Sequence[Override],
    *,
    below: Tree | None = None,
    of_run: bool = False,
    trains: bool = False,
) -> Config:
    """Returns the validated config. Raises `ConfigError` with one line for each problem, all at once.

    `path` None is the default config. The settings `below` lie between the file and the overrides. Imports only what
    names mean, and of the file of a run directory (`of_run`) nothing that it alone names in full; a command that
    `trains` needs the names of its observers again, too.
    """
    where = DEFAULT_NAME if path is None else str(path)
    tree = read_tree(DEFAULT_FILE if path is None else path, where).with_top(below or Tree({}))
    problems: list[Problem] = []
    top = _override_tree(overrides, problems)
    if of_run:
        top = _confirmed(tree, top, where, trains)
    tree = tree.with_top(top)
    config = None
    try:
        config = Config.model_validate(tree.value)
    except ValidationError as error:
        problems += explain.problems(Config, error, tree.value)
    words = frozenset(key for key, _ in leaves(top.value))
    everything = frozenset(key for key, _ in leaves(tree.value))
    # Words that name another method or other data make a new experiment, of which the default config says nothing.
    is_new = path is None and any((section, "name") in words for section in NAMED_SECTIONS)
    if config is not None and not problems and (trains or not of_run):  # a run that is only read was checked then
        if ("train", "masked_loss") not in (words if path is None else everything):
            config = config.without_needless_mask(is_new)
        sections = config.sections.values()
        problems = [Problem(yaml_text.split(key), text) for one in sections for key, text in one.problems(config)]
    if config is None or problems:
        raise report(where, tree, problems)
    config._where = where
    config._choices = words if is_new else everything
    return config


def _override_tree(overrides: Sequence[Override], problems: list[Problem]) -> Tree:
    """Returns the overrides as a tree; adds a problem for each that cannot be read."""
    settings: dict[yaml_text.Path, Any] = {}
    origin = COMMAND_LINE
    for override in overrides:
        origin = COMMAND_LINE if isinstance(override, str) else ARGUMENTS
        try:
            settings |= _settings(override)
        except ValueError as error:
            shown = found(override if isinstance(override, str) else override[0])
            problems.append(Problem((), f"override {shown}: {error}", origin))
    return Tree.of(nested(settings.items()), origin)


def _settings(override: Override) -> dict[yaml_text.Path, Any]:
    """Returns what one override sets: a section as value sets each of its keys. Raises ValueError."""
    if isinstance(override, str):
        key, _, text = override.partition("=")
        try:
            value = yaml_text.parse_word(text)
        except YamlError as error:
            raise ValueError(error.text) from None
    else:
        key, value = override
    parts = tuple(part.strip() for part in str(key).split("."))
    if not all(parts) or (isinstance(override, str) and "=" not in override):
        raise ValueError("expected section.key=value without blanks, as train.lr=0.1")
    return {path: to_jsonable_python(item, fallback=_of_object) for path, item in leaves(value, parts)}


def _of_object(value: Any) -> Any:
    """Returns `module:Name` of a class or function, or the values of an array. Raises ValueError for another object."""
    if isinstance(value, (type, FunctionType)):
        if not all(part.isidentifier() for part in value.__qualname__.split(".")):
            advice = "define it by `class` or `def` at the top of its module"
            raise ValueError(f"no module has {value.__qualname__} by name (a lambda, or made in a function); {advice}")
        return f"{value.__module__}:{value.__qualname__}"
    if hasattr(value, "tolist"):  # of numpy or torch
        return value.tolist()
    raise ValueError(f"expected text, numbers, lists or mappings, a class or a function, got {type(value).__name__}")


def _confirmed(tree: Tree, top: Tree, where: str, trains: bool) -> Tree:
    """Raises `ConfigError` where only a run's own file names the user's code. Returns `top` without the names that
    repeat those, to confirm them: they reset no section.
    """
    again = dict(leaves(top.value))
    in_full = named_in_full(tree.value, trains=trains)
    if missing := {path: name for path, name in in_full.items() if path not in again}:
        why = "a run directory alone makes fedmpi import nothing; to run this code, name it again:"
        words = " ".join(f"{dotted(path)}={name}" for path, name in missing.items())
        without = " (or 'output.observers=[]' to continue without them)" if ("output", "observers") in missing else ""
        raise ConfigError(where, f"{why} {words}{without}")
    kept = {}
    for path, value in again.items():
        if path and (path[-1] != "name" or in_full.get(path) != value):
            kept[path] = value
    return Tree(nested(kept.items()), top.origins)


def report(where: str, tree: Tree, problems: Iterable[Problem]) -> ConfigError:
    """Returns the error with a line for each problem: the key, where it stands, and what is wrong."""
    rows = [(problem, problem.origin or tree.origin_of(problem.path)) for problem in problems]
    origins = {origin for _, origin in rows}
    of_user = (ARGUMENTS, COMMAND_LINE)
    if where == DEFAULT_NAME:  # a file that the user has not named cannot be wrong
        where = next((one for one in of_user if one in origins.union(tree.origins.values())), where)
        rows = [(problem, origin if origin in of_user else "the default") for problem, origin in rows]
    elif len(origins) == 1 and origins <= {*of_user}:
        where = origins.pop()
    lines = []
    for problem, origin in rows[:MAX_PROBLEMS]:
        at = f" ({origin})" if origin and origin != where else ""
        lines.append(f"{dotted(problem.path)}{at}  {problem.text}".strip())
    more = [f"... and {len(rows) - MAX_PROBLEMS} more"] if len(rows) > MAX_PROBLEMS else []
    return ConfigError(where, *lines, *more)
