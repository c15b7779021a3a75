"""From a YAML file and `section.key=value` overrides to a validated `Config`, or to every problem at once.

A config is a file, or a cell of one (`address`). It stands on what it `extends` (another config, relative
to the file's folder), or alone: what is left out takes the defaults of the schema and of the options
classes, never those of the packaged default.yaml, which is used only where no file is given. An override
of a section's `name`, by the command line or by a file that extends, resets that section to the new name's
own defaults; the section's other overrides then apply on top, wherever they stand.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from functools import cache, partial
from pathlib import Path
from types import FunctionType
from typing import Any

from pydantic import ValidationError

from fedmpi import registry
from fedmpi.config import explain, hooks, slips, words, yaml_text
from fedmpi.config.address import located
from fedmpi.config.comparing import leaves
from fedmpi.config.explain import MAX_PROBLEMS
from fedmpi.config.fields import Section
from fedmpi.config.schema import NAMED_SECTIONS, Config, Output
from fedmpi.config.tree import COMMAND_LINE, MAX_BYTES, Tree, read_tree
from fedmpi.config.yaml_text import Problem
from fedmpi.errors import ConfigError, counted

Override = str | tuple[str, Any]
"""A word of a command line, `train.lr=0.1`, or from Python a dotted key and its value, `("train.lr", 0.1)`."""

ARGUMENTS = "arguments"
"""How messages name what a Python program gives on top of a file."""
DEFAULT_FILE = "default.yaml"
"""How messages name the packaged default, which is used where no file is given."""
_GIVEN = (COMMAND_LINE, ARGUMENTS)
_DEFAULT = Path(__file__).with_name(DEFAULT_FILE)
OBSERVERS: yaml_text.Path = ("output", "observers")


def parted(given: Sequence[str]) -> tuple[list[str], list[str]]:
    """The addresses of the configs that a command line names, and the overrides: words with a =, but for paths, which
    may have one after a /. Raises `ConfigError` for what can be neither."""
    configs, overrides = without_overrides(given)
    for word in configs:
        slips.refuse(word)
    return [located(word) for word in configs], overrides


def one_config(given: Sequence[str]) -> tuple[str | None, list[str]]:
    """`parted` for a command of one config, or none. Raises `ConfigError`."""
    configs, overrides = parted(given)
    if len(configs) > 1:
        raise ConfigError(COMMAND_LINE, f"one config, or none, is allowed, got {', '.join(configs)}")
    if "" in configs:
        raise ConfigError(COMMAND_LINE, "an empty word is neither a config nor section.key=value; remove it")
    return (configs[0] if configs else None), overrides


def without_overrides(given: Sequence[str]) -> tuple[list[str], list[str]]:
    """The other words, and the overrides. Raises `ConfigError` for blanks around a =."""
    slips.refuse_blanks(given)
    overrides = [word for word in given if "=" in word and "/" not in word.partition("=")[0]]
    return [word for word in given if word not in overrides], overrides


def only_overrides(given: Sequence[str], advice: str = "") -> list[str]:
    """The words of a command that reads no config. Raises `ConfigError` for another word, with what to do."""
    others, overrides = without_overrides(given)
    if others:
        end = f"; {advice}" if advice else ""
        raise ConfigError(COMMAND_LINE, f"{words.found(others[0])} means nothing here{end}")
    return overrides


def load(
    path: str | os.PathLike[str] | None,
    overrides: Sequence[Override],
    *,
    of_run: bool = False,
    trains: bool = False,
    observed: bool = False,
) -> Config:
    """The validated config. Raises ConfigError with one line for each problem, all at once.

    `path` None is the packaged default. Reads the file and those it extends; imports only what its names mean. Of a
    file that a run directory holds (`of_run`), not the user, nothing is imported that is named in full there alone; a
    command that `trains` needs the names of its observers again, too. Mistakes in observers are among the problems if
    the run is `observed` by this process, which imports them.
    """
    tree = read_tree(_DEFAULT if path is None else path, DEFAULT_FILE if path is None else str(path))
    tree.problems += _apply(tree, overrides, _named_in_full(tree, trains) if of_run else {})
    config, problems = _validate(tree, observed)
    problems = tree.problems + problems
    if config is not None and not problems:
        problems = [Problem(words.split(key), text) for key, text in _between_sections(config)]
    if config is None or problems:
        raise _report(tree, problems)
    config._where = tree.file
    return config


def _named_in_full(tree: Tree, trains: bool) -> dict[yaml_text.Path, str]:
    """The names in the tree that make fedmpi import a module of the user's, by key."""
    sections = {name: tree.values.get(name) for name in NAMED_SECTIONS}
    names = {key: value.get("name") for key, value in sections.items() if isinstance(value, dict)}
    found: dict[yaml_text.Path, str] = {
        (key, "name"): name for key, name in names.items() if isinstance(name, str) and registry.is_in_full(name)
    }
    output = tree.values.get("output")
    places = output.get("observers") if trains and isinstance(output, dict) else None
    if isinstance(places, list) and places:
        found[OBSERVERS] = f"[{','.join(map(str, places))}]"
    return found


def _apply(tree: Tree, overrides: Sequence[Override], in_full: dict[yaml_text.Path, str]) -> list[Problem]:
    """Writes the overrides into the tree, names first; returns what is wrong with the overrides themselves.

    Names of the file that are `in_full` must be among the overrides; there they only confirm, and reset no section.
    Raises ConfigError where one is not, and for overrides that would take minutes to read.
    """
    length = sum(len(override) for override in overrides if isinstance(override, str))
    if length > MAX_BYTES:
        raise ConfigError(COMMAND_LINE, f"overrides of {length:,} characters; allowed: {MAX_BYTES:,} in all")
    settings: list[tuple[yaml_text.Path, Any]] = []
    problems: list[Problem] = []
    origins: dict[yaml_text.Path, str] = {}
    for override in overrides:
        origin = COMMAND_LINE if isinstance(override, str) else ARGUMENTS
        try:
            found = _settings(override) if isinstance(override, str) else [*_given(*override)]
        except ValueError as error:
            shown = words.found(override if isinstance(override, str) else override[0])
            problems.append(Problem((), f"override {shown}: {error}", origin))
            continue
        settings += found
        origins |= {path: origin for path, _ in found}
    named = {path for path, _ in settings}
    if missing := {path: name for path, name in in_full.items() if path not in named}:
        why = "a run directory alone makes fedmpi import nothing; to run this code, name it again:"
        again = " ".join(f"{words.dotted(path)}={name}" for path, name in missing.items())
        without = " (or output.observers=[] to continue without them)" if OBSERVERS in missing else ""
        raise ConfigError(tree.file, f"{why} {again}{without}")
    settings = [(path, value) for path, value in settings if in_full.get(path, "") != value]
    tree.put_all(settings, lambda path: origins[path])
    return problems


def _settings(override: str) -> list[tuple[yaml_text.Path, Any]]:
    """What one override sets: a section as value sets each of its keys. Raises ValueError."""
    key, equals, text = override.partition("=")
    parts = _parts(key)
    if not equals or not parts:
        raise ValueError("expected section.key=value, as train.lr=0.1")
    try:
        document = yaml_text.parse(text)
    except yaml_text.YamlError as error:
        raise ValueError(error.text) from None
    if document.problems:
        raise ValueError(f"{words.dotted(document.problems[0].path)} {document.problems[0].text}")
    return list(leaves(document.value, parts))


def _given(key: object, value: object, above: tuple[str, ...] = ()) -> Iterator[tuple[yaml_text.Path, Any]]:
    """What a Python key and value set: of a mapping, each of its keys, which may be dotted. Raises ValueError."""
    parts = _parts(key, above) if isinstance(key, str) else ()
    if not parts:
        raise ValueError(f"expected keys as 'train.lr', got {words.found(key)}")
    if isinstance(value, Mapping) and value:
        for inner, item in value.items():
            yield from _given(inner, item, parts)
    else:
        yield parts, _plain(value)


def _plain(value: Any) -> Any:
    """The value as YAML would have given it: lists for tuples and arrays, text for paths, `module:Name` for a class or
    function. Raises ValueError for anything that no YAML can say.
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
    """The words of a dotted key; none if one of them is empty. Raises ValueError for a key of too many."""
    own = tuple(part.strip() for part in key.split("."))
    if len(above) + len(own) > yaml_text.MAX_DEPTH:
        raise ValueError(f"nested deeper than {yaml_text.MAX_DEPTH} levels")
    return (*above, *own) if all(own) else ()


def _validate(tree: Tree, observed: bool) -> tuple[Config | None, list[Problem]]:
    """Section by section, so that a problem in one hides none in another."""
    problems: list[Problem] = []
    values = dict(tree.values)
    options = _options(values, problems)
    places = cache(partial(explain.places_of_keys, options))  # which imports the options of all names
    for name, section in options.items():
        values[name] = explain.completed(section, values.get(name))
        try:
            values[name] = section.model_validate(values[name])
        except ValidationError as error:
            problems += explain.problems(section, error, (name,), places)
            values[name] = section.model_construct()
    if observed and isinstance(output := values["output"], Output):
        problems += (Problem(OBSERVERS, text) for text in hooks.problems(output.observers))
    try:
        config = Config.model_validate(values)
    except ValidationError as error:
        return None, explain.problems(Config, error, (), places) + problems
    return config, problems


def _between_sections(config: Config) -> Iterator[tuple[str, str]]:
    """(dotted key, message) of all that is wrong between sections, each of which is valid by itself."""
    count, blocks = config.clients.count, config.clients.tier_blocks
    if config.clients.per_round > count:
        found = f"{config.clients.per_round} clients per round, but clients.count is {count}"
        yield "clients.per_round", f"{found}; allowed: 1 to {count}"
    tiers = len(getattr(config.method, "tiers", (1.0,)))
    has = f"method {config.method.name!r} has {counted(tiers, 'tier')}"
    if not blocks and count < tiers:
        yield "clients.count", f"{counted(count, 'client')}, but {has}; allowed: a client or more for each tier"
    if blocks and len(blocks) != tiers:
        todo = "give one block for each tier, or [] for equal blocks"
        yield "clients.tier_blocks", f"{counted(len(blocks), 'block')}, but {has}; {todo}"
    if blocks and sum(blocks) != count:
        found = f"the blocks have {counted(sum(blocks), 'client')}, but clients.count is {count}"
        yield "clients.tier_blocks", f"{found}; make them equal, or give [] for equal blocks"
    if config.evaluation.personal_test == "groups" and not config.data.used().shares_groups:
        found = f"groups, but the test examples of {config.data.name} do not come from the writers, subjects or roles"
        yield "evaluation.personal_test", f"{found} of its training examples; allowed: auto, matching, classes"
    if (tested := config.evaluation.clients) > count:
        yield "evaluation.clients", f"{tested} clients are to be tested, but clients.count is {count}; 0 tests all"
    for section in config.sections.values():
        yield from section.problems(config)


def _options(values: dict[str, Any], problems: list[Problem]) -> dict[str, type[Section]]:
    """The class of each section. A section whose name is unknown is taken out of `values`, with its problem told."""
    options: dict[str, type[Section]] = {}
    for name, info in Config.model_fields.items():
        if name not in NAMED_SECTIONS:
            if words.is_section(info.annotation):
                options[name] = info.annotation  # type: ignore[assignment]  # is_section has checked
            continue
        try:
            options[name] = _choose(values, name)
        except ValueError as error:
            is_section = isinstance(values[name], dict)
            problems.append(Problem((name, "name") if is_section else (name,), str(error)))
            values[name] = Section()
    return options


def _choose(values: dict[str, Any], section: str) -> type[Section]:
    """The options class of a named section, its name filled in. Raises ValueError with the problem."""
    default = next(iter(registry.BUILT_IN[section]))
    given = values.get(section)
    if given is None:
        given = {}
    if not isinstance(given, dict):
        raise ValueError(explain.name_missing(section, given, _known(section)))
    name = given.get("name", default)
    values[section] = {**given, "name": name}
    if not isinstance(name, str):
        raise ValueError(f"expected {words.one_of(_known(section))}, got {words.found_with_type(name)}")
    if several := registry.unclear(section).get(name):
        raise ValueError(f"installed packages offer more than one {section} {words.found(name)}; write {several}")
    if not registry.is_known(section, name):
        known = _known(section)
        meant = words.suggest(name, known) + registry.without_class(name)
        raise ValueError(f"no {section} {words.found(name)}.{meant} Known names: {', '.join(known)}")
    return registry.options(section, name)


def _known(section: str) -> list[str]:
    """Every name that the section can have, as messages show it."""
    return [f"{key}..." if key.endswith(":") else key for key in registry.names(section)]


def _report(tree: Tree, problems: Sequence[Problem]) -> ConfigError:
    rows = [(*_head(tree, problem), problem.text) for problem in problems]
    given = [origin for _, origin, _ in rows if origin in _GIVEN]
    where = given[0] if len(given) == len(rows) else tree.file
    if given and where == tree.file:
        where += f" and {given[0]}"
    origins = [f"({origin})" if origin and origin != where else "" for _, origin, _ in rows]
    heads = [f"{key} {origin}".strip() for (key, _, _), origin in zip(rows, origins, strict=True)]
    width = min(max(len(head) for head in heads), 50) if len(heads) > 1 else 0
    lines = [f"{head:{width}}  {text}".strip() for head, (_, _, text) in zip(heads, rows, strict=True)]
    if len(lines) > MAX_PROBLEMS:
        lines[MAX_PROBLEMS:] = [f"... and {len(lines) - MAX_PROBLEMS} more"]
    return ConfigError(where, *lines)


def _head(tree: Tree, problem: Problem) -> tuple[str, str]:
    """The key and where it stands; an override `a.b.c=1` whose `a` is unknown is named in full."""
    path, origin = problem.path, problem.origin or tree.origin(problem.path)
    value: Any = tree.values
    for key in path:
        value = value.get(key) if isinstance(value, dict) else None
    while problem.is_unknown and origin in _GIVEN and isinstance(value, dict) and len(value) == 1:
        ((key, value),) = value.items()
        path = (*path, key)
    return words.dotted(path), origin
