"""What a word of a command line may have been meant for that is neither a config nor `section.key=value`."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any

from fedmpi import registry
from fedmpi.config import address, explain, words
from fedmpi.config.schema import NAMED_SECTIONS, Config
from fedmpi.config.tree import COMMAND_LINE
from fedmpi.config.yaml_text import is_number
from fedmpi.errors import ConfigError

_FORM = "a config is a YAML file or a name as fedhm_digits, a setting is section.key=value"
_MOST_KEYS = 3
_VALUE = "VALUE"


def refuse_blanks(given: Sequence[str]) -> None:
    """Raises `ConfigError` for `rounds = 5`, `rounds= 5` and `rounds =5`: a blank makes two words of one."""
    for place, word in enumerate(given):
        before, after = (given[near] if 0 <= near < len(given) else "" for near in (place - 1, place + 1))
        if word == "=":
            key, value = before, after
        elif word.startswith("=") and keys_meant(before):
            key, value = before, word[1:]
        elif word.endswith("=") and keys_meant(word[:-1]) and after and "=" not in after and not _is_config(after):
            key, value = word[:-1], after
        else:
            continue
        raise ConfigError(COMMAND_LINE, f"blanks around = make several words; write {key}={value}")


def refuse(word: str) -> None:
    """Raises `ConfigError` for a word that stands where a config may stand and names none; a file that is only missing
    is left to the reader of files."""
    if word and not address.is_address(word) and not _is_config(word):
        raise ConfigError(COMMAND_LINE, f"{words.found(word)} means nothing here: {advice(word) or _FORM}")


def advice(word: str) -> str:
    """What to write instead of a word, an option included; empty where nothing is similar."""
    if word in ("-n", "-np", "--np"):
        return "-n is an option of mpirun: mpirun -n 5 fedmpi ..."
    if word in ("--config", "--set"):
        return f"remove {word}, and write what follows it alone"
    key, _, value = re.sub("^-+", "", word).partition("=" if "=" in word else ":")
    if keys := keys_meant(key):
        return f"write {' or '.join(f'{one}={value or _VALUE}' for one in keys[:_MOST_KEYS])}"
    if sections := [section for section in NAMED_SECTIONS if registry.is_built_in(section, word.lower())]:
        return f"write {sections[0]}.name={word.lower()}"
    if "\\" in word:
        return "folders are parted by / and not by \\"
    if is_number(word) or set(word) & set("[]{},"):
        return "write a value beside its key, in quotes where it has blanks or brackets: 'method.rank_ratio=[1, 0.5]'"
    return address.suggestion(word)


def keys_meant(text: str) -> list[str]:
    """The keys of a config that are called so: `train.lr` for `lr`."""
    name = text.replace("-", "_")
    known = dict.fromkeys(_keys())
    last = words.KEYS_MEANT.get(name, name)
    return [name] if name in known else [key for key in known if key.rpartition(".")[2] == last != "name"]


def _keys() -> Iterator[str]:
    """Every key that a config can have, under any name."""
    for key, info in Config.model_fields.items():
        kinds: list[Any] = [options for _, options in registry.built_in(key)] if key in NAMED_SECTIONS else []
        for kind in kinds or [info.annotation]:
            yield from (path for path, _ in explain.keys(key, kind)) if words.is_section(kind) else [key]


def _is_config(word: str) -> bool:
    return address.exists(address.located(word))
