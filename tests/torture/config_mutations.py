"""What can be wrong with a config, drawn at random: mutations of the shipped configs and of the command line.

Case n of a seed is the same everywhere: `mutate(n, seed)` is a pure function of the two and of
`configs/`. A mutation changes the tree of keys and values (`tree`), the text or its bytes (`text`), the
overrides (`words`), what the file extends (`extends`), several of these (`several`), or the environment. It says
what files there are, which words follow `python -m fedmpi.main`, and what stands in its environment;
`Mutation.write` makes the files. Relative names in the words and in `extends` are of that folder.
"""

from __future__ import annotations

import copy
import functools
import json
import math
import os
import random
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fedmpi import registry
from fedmpi.config import yaml_text
from fedmpi.config.address import CONFIGS
from fedmpi.config.load import load
from fedmpi.errors import ConfigError

from . import damage, legal_values
from . import odd_values as odd

KINDS = ("legal", "legal", "legal", "tree", "tree", "words", "text", "extends", "several", "environment")


@dataclass
class Mutation:
    """One case: its number, what was done, the files beside it, and the words of the command."""

    number: int
    kind: str
    of: str
    content: bytes
    words: list[str] = field(default_factory=list)
    files: Mapping[str, bytes | None] = field(default_factory=dict)
    """By name; None is a pipe, from which nothing ever comes."""
    environment: dict[str, str] = field(default_factory=dict)

    def write(self, folder: Path) -> list[str]:
        """Makes the files in `folder`; the command's words, with the config's path first."""
        for name, content in {odd.FILE: self.content, **self.files}.items():
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            if content is None:
                os.mkfifo(path)
            else:
                path.write_bytes(content)
        cell = self.of.partition("@")[2] if b"cells:" in self.content else ""
        return [str(folder / (f"{odd.FILE}@{cell}" if cell else odd.FILE)), *self.words]


@functools.cache
def addresses() -> list[str]:
    """The shipped configs, below `configs/`: files, and cells of files."""
    found = []
    for path in sorted(path for path in CONFIGS.rglob("*.yaml") if path.parent.name != "studies"):
        cells = yaml_text.parse(path.read_text()).value.get("cells", {})
        found += [f"{path.relative_to(CONFIGS).as_posix()}{cell}" for cell in [f"@{name}" for name in cells] or [""]]
    return found


@functools.cache
def source(address: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """What a shipped config says (of a file's cells only its own; what it extends is an absolute path), and all its
    keys.
    """
    name, _, cell = address.partition("@")
    path = CONFIGS / name
    file = yaml_text.parse(path.read_text()).value
    cells = file.pop("cells", {})
    tree = _absolute(file, path.parent)
    if cell:
        tree["cells"] = {cell: _absolute(cells[cell], path.parent)}
    try:
        return tree, load(CONFIGS / address, []).to_dict()
    except ConfigError:  # a part that needs what its heirs say
        return tree, cells.get(cell, tree)


def _absolute(tree: dict[str, Any], folder: Path) -> dict[str, Any]:
    """A copy whose `extends` holds in every folder."""
    bases = tree.get("extends", [])
    absolute = [str(folder / base) for base in ([bases] if isinstance(bases, str) else bases)]
    return {**tree, **({"extends": absolute} if absolute else {})}


def mutate(number: int, seed: int, among: Callable[[str], bool] = lambda name: True) -> Mutation:
    """Case `number` of `seed`; `among` says which configs may be mutated."""
    chance = random.Random(f"{seed}:{number}")
    of, kind = chance.choice([*filter(among, addresses())]), chance.choice(KINDS)
    mutation = Mutation(number, kind, of, yaml_text.dump(source(of)[0]).encode())
    several = ("legal", "tree", "words", "extends", "text")
    chosen = chance.sample(several, chance.randint(2, 3)) if kind == "several" else [kind]
    # In this order: each works on what those before it have left.
    for step in (_environment, _tree, _extends, _legal, _words, _text):
        if step.__name__.removeprefix("_") in chosen:
            step(mutation, chance)
    return mutation


# The tree of keys and values.


def _tree(mutation: Mutation, chance: random.Random) -> None:
    said, whole = source(mutation.of)
    tree = copy.deepcopy(whole if chance.random() < 0.7 else said)
    done = [_change(tree, chance) for _ in range(chance.choice((1, 1, 1, 2, 3)))]
    mutation.kind = f"{mutation.kind}:{done[0]}"
    mutation.content = _with_raw(yaml_text.dump(tree)).encode("utf-8", "surrogatepass")


def _with_raw(text: str) -> str:
    """The text with each of `odd.RAW` as it stands there, in place of its name."""
    return re.sub(r'"?RAW<(\d+)>"?', lambda name: odd.RAW[int(name[1])], text)


def _places(tree: Any) -> Iterator[tuple[Any, Any]]:
    """Every (container, key) in a tree; a number in a list, too."""
    for key, value in list(tree.items() if isinstance(tree, dict) else enumerate(tree)):
        yield tree, key
        if isinstance(value, (dict, list)):
            yield from _places(value)


def _change(tree: dict[str, Any], chance: random.Random) -> str:
    """What was done to one place in the tree, in a word."""
    places = [place for place in _places(tree) if place[1] != "extends"]
    done = chance.choice(("value", "value", "value", "value", "drop", "extra", "move", "nest", "rename", "swap"))
    holder, key = chance.choice(places or [(tree, None)])
    sections = [tree, *(section for section in tree.values() if isinstance(section, dict))]
    if done == "extra" or not places or (done in ("move", "rename") and not isinstance(holder, dict)):
        chance.choice(sections)[chance.choice(odd.KEYS)] = _value(None, chance)
    elif done == "value":
        holder[key] = _value(holder[key], chance)
    elif done == "drop":
        del holder[key]
    elif done == "swap":
        other, place = chance.choice(places)
        holder[key], other[place] = copy.deepcopy(other[place]), copy.deepcopy(holder[key])
    elif done == "nest":
        holder[key] = chance.choice(([holder[key]], {"name": holder[key]}, {str(key): holder[key]}, [holder[key]] * 40))
    elif done == "move":
        chance.choice(sections)[key] = holder.pop(key)
    else:
        word = str(key)
        at = chance.randrange(len(word) + 1)
        holder[chance.choice((word[:at] + word[at + 1 :], word[:at] + "x" + word[at:], word.upper()))] = holder.pop(key)
    return done


def _value(old: Any, chance: random.Random) -> Any:
    """Another value: near the old one, of another type, or far out."""
    draw = chance.random()
    if draw < 0.5 and old is not None:
        return _near(old, chance)
    if draw < 0.7:
        return chance.choice(odd.NUMBERS)
    if draw < 0.78:
        return chance.choice(odd.TEXTS)
    if draw < 0.84:
        return copy.deepcopy(chance.choice(odd.OTHERS))
    if draw < 0.9:
        return [chance.choice(odd.NUMBERS) for _ in range(chance.choice((1, 2, 3, 8, 9, 50)))]
    return f"RAW<{chance.randrange(len(odd.RAW))}>"


def _near(old: Any, chance: random.Random) -> Any:
    if isinstance(old, bool):
        return chance.choice((not old, int(old), str(old)))
    if isinstance(old, (int, float)):
        old = max(-(2**70), min(old, 2**70)) if isinstance(old, int) else old  # a float can be made of it
        factor = chance.choice((2, 10, 100, 10**4, 10**6, 10**9))
        whole = int(old) if math.isfinite(old) else 0
        return chance.choice((old * factor, old / factor, old + 1, old - 1, -old, str(old), float(old), whole))
    if isinstance(old, str):
        words = sorted({name for table in registry.BUILT_IN.values() for name in table})
        return chance.choice((old.upper(), old[:-1], old + "x", [old], *chance.sample(words, 6)))
    if isinstance(old, list):
        keyed = dict(enumerate(old)) and {"0": old}
        return chance.choice((old * 2, old[:-1], old[::-1], old * 40, [old], [*old, 1], keyed))
    return chance.choice(([old], {}, None, {**old, **old, "name": "x"} if isinstance(old, dict) else old))


# Words of the command line.


def _legal(mutation: Mutation, chance: random.Random) -> None:
    mutation.words += legal_values.overrides(source(mutation.of)[1], chance)


def _words(mutation: Mutation, chance: random.Random) -> None:
    whole = source(mutation.of)[1]
    for _ in range(chance.choice((1, 1, 2, 3))):
        mutation.words.append(_word(whole, chance))
    if chance.random() < 0.02:
        mutation.words += [f"train.key{number}={number}" for number in range(3_000)]
    mutation.words = [word for word in mutation.words if "\0" not in word]  # no operating system takes one


def _word(whole: dict[str, Any], chance: random.Random) -> str:
    if chance.random() < 0.25 or not whole:  # a base may say nothing by itself
        return chance.choice(odd.WORDS)
    key, old = chance.choice(list(_settings(whole)))
    if chance.random() < 0.15:
        below = key.partition(".")[2] or key
        key, old = chance.choice((below, f"train.{key}", key + "x", f"{key}.x", key.upper(), f" {key} ")), None
    value = _value(old, chance)
    return f"{key}={_with_raw(yaml_text.flow(value) if chance.random() < 0.7 else json.dumps(value))}"


def _settings(tree: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Dotted keys and values, sections included."""
    for key, value in tree.items():
        yield f"{prefix}{key}", value
        if isinstance(value, dict):
            yield from _settings(value, f"{prefix}{key}.")


# The text.


def _text(mutation: Mutation, chance: random.Random) -> None:
    text = mutation.content.decode("utf-8", "surrogatepass")
    done = chance.choice(("lines", "lines", "bytes", "bytes", "prefix", "encoding", "many", "control"))
    mutation.kind = f"{mutation.kind}:{done}"
    if done == "lines":
        text = _other_lines(text, chance)
    elif done == "prefix":
        text = chance.choice(("", text)) + chance.choice(odd.PREFIXES) + chance.choice(("", text))
    elif done == "many":
        text += _many(chance)
    elif done == "control":
        at = chance.randrange(len(text) + 1)
        text = text[:at] + chance.choice("\0\x07\x1b\x85\u2028\ufffe\x7f\t\r\u200b") + text[at:]
    content = text.encode("utf-8", "surrogatepass")
    if done == "bytes":
        content = chance.choice((damage.flipped, damage.overwritten, damage.cut_off))(content or b"a: 1", chance)
    elif done == "encoding":
        binary = chance.randbytes(300)
        encoded = [text.encode(name, "replace") for name in ("utf-16", "utf-32", "utf-8-sig", "latin-1", "utf-7")]
        content = chance.choice((*encoded, content.replace(b"\n", b"\r\n"), content.replace(b"\n", b"\r"), binary, b""))
    mutation.content = content


def _other_lines(text: str, chance: random.Random) -> str:
    lines = text.split("\n")
    for _ in range(chance.randint(1, 3)):
        at = chance.randrange(len(lines))
        line, key, raw = lines[at], lines[at].partition(":")[0], chance.choice(odd.RAW)
        new = [
            *([f"{key}: {raw}"], [f"{raw}: {line}"], [key], [f"{key}:"], [line, line], [line, "---"], []),
            *([" " * chance.randint(1, 9) + line], ["\t" + line], [line + chance.choice("[]{}:,&*!|>'\"%@`#-?")]),
        ]
        lines[at : at + 1] = chance.choice(new)
        lines = lines or [""]
    return "\n".join(lines)


def _many(chance: random.Random) -> str:
    """Thousands of keys, sections or items, within what a config may be in bytes; some of them have few names."""
    count = chance.choice((100, 100, 1_000, 1_000, 8_000))
    names = chance.choice((count, count, 50))
    lines = ("key%d: 1", "s%d: {a: [1, 2]}", "junk:\n  - %d", "junk:\n  key%d: [1]", "train:\n  key%d: [1]")
    head, _, line = chance.choice(lines).rpartition("\n")
    return "\n".join(["", head, *(line % (number % names) for number in range(count)), ""])


# What launchers, and anybody else, leave in the environment.


def _environment(mutation: Mutation, chance: random.Random) -> None:
    names = chance.sample(odd.ENVIRONMENT, chance.choice((1, 2, 4, len(odd.ENVIRONMENT))))
    mutation.environment = {name: chance.choice(odd.ENVIRONMENT_TEXTS) for name in names}


# What a file extends.


def _extends(mutation: Mutation, chance: random.Random) -> None:
    done = chance.choice((*odd.BASES, "config"))
    value = chance.choice(odd.BASES.get(done) or [str(CONFIGS / name) for name in addresses()])
    mutation.kind = f"{mutation.kind}:{done}"
    body = b"" if chance.random() < 0.5 else b"\n" + mutation.content
    if body and chance.random() < 0.7:
        tree = yaml_text.dump({key: item for key, item in source(mutation.of)[0].items() if key != "extends"})
        body = b"\n" + tree.encode()
    mutation.content = b"extends: " + value.encode("utf-8", "surrogatepass") + body
    mutation.files = odd.BASE_FILES
