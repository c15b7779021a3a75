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
import operator
import os
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fedmpi import registry
from fedmpi.config import yaml_text
from fedmpi.config.load import load
from fedmpi.errors import ConfigError

from . import legal_values, odd_bases
from .odd_values import ENVIRONMENT, ENVIRONMENT_TEXTS, NUMBERS, ODD_KEYS, OTHERS, PREFIXES, RAW, TEXTS, WORDS

CONFIGS = Path(__file__).resolve().parents[2] / "configs"
FILE = "mutated.yaml"
KINDS = ("legal", "legal", "legal", "tree", "tree", "words", "text", "extends", "several", "environment")


@dataclass
class Mutation:
    """One case: its number, what was done, the files beside it, and the words of the command."""

    number: int
    kind: str
    of: str
    content: bytes
    words: list[str] = field(default_factory=list)
    files: dict[str, bytes] = field(default_factory=dict)
    fifos: list[str] = field(default_factory=list)
    environment: dict[str, str] = field(default_factory=dict)

    def write(self, folder: Path) -> list[str]:
        """Makes the files in `folder`; the command's words, with the config's path first."""
        for name, content in {FILE: self.content, **self.files}.items():
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
        for name in self.fifos:
            os.mkfifo(folder / name)
        cell = self.of.partition("@")[2] if b"cells:" in self.content else ""
        return [str(folder / (f"{FILE}@{cell}" if cell else FILE)), *self.words]


@functools.cache
def sources() -> dict[str, tuple[str, dict[str, Any], dict[str, Any]]]:
    """Each shipped config by address: its text and tree, of all cells only its own, and all its keys. What it extends
    is an absolute path.
    """
    found = {}
    for path in sorted(CONFIGS.rglob("*.yaml")):
        file = yaml_text.parse(path.read_text()).value
        cells = file.pop("cells", {})
        for cell in cells or [None]:
            tree = _absolute(file, path.parent)
            if cell is not None:
                tree["cells"] = {cell: _absolute(cells[cell], path.parent)}
            address = path if cell is None else path.with_name(f"{path.name}@{cell}")
            try:
                whole = load(address, []).to_dict()
            except ConfigError:  # a part that needs what its heirs say
                whole = copy.deepcopy(cells[cell] if cell else tree)
            found[address.relative_to(CONFIGS).as_posix()] = (yaml_text.dump(tree), tree, whole)
    return found


def _absolute(tree: dict[str, Any], folder: Path) -> dict[str, Any]:
    """A copy whose `extends` holds in every folder."""
    copied, bases = copy.deepcopy(tree), tree.get("extends", [])
    if bases:
        copied["extends"] = [str(folder / base) for base in ([bases] if isinstance(bases, str) else bases)]
    return copied


def mutate(number: int, seed: int, among: Callable[[str], bool] = lambda name: True) -> Mutation:
    """Case `number` of `seed`; `among` says which configs may be mutated."""
    chance = random.Random(f"{seed}:{number}")
    name = chance.choice([name for name in sources() if among(name)])
    kind = chance.choice(KINDS)
    mutation = Mutation(number, kind, name, sources()[name][0].encode())
    chosen = [kind]
    if kind == "several":
        chosen = chance.sample(("legal", "tree", "words", "extends", "text"), chance.randint(2, 3))
    # In this order: each works on what those before it have left.
    steps = (_environment, _tree, _extends, _legal, _words, _text)
    for step in (step for step in steps if step.__name__.removeprefix("_") in chosen):
        step(mutation, chance)
    return mutation


# The tree of keys and values.


def _tree(mutation: Mutation, chance: random.Random) -> None:
    _, said, whole = sources()[mutation.of]
    tree = copy.deepcopy(whole if chance.random() < 0.7 else said)
    raw: list[str] = []
    done = [_change(tree, chance, raw) for _ in range(chance.choice((1, 1, 1, 2, 3)))]
    mutation.kind = f"{mutation.kind}:{done[0]}"
    mutation.content = _dumped(tree, raw)


def _dumped(tree: dict[Any, Any], raw: list[str]) -> bytes:
    text = yaml_text.dump(tree)
    for number, token in enumerate(raw):
        text = text.replace(f"RAW<{number}>", token)
    return text.encode("utf-8", "surrogatepass")


def _places(tree: Any) -> Iterator[tuple[Any, Any]]:
    """Every (container, key) in a tree; a number in a list, too."""
    for key, value in list(tree.items() if isinstance(tree, dict) else enumerate(tree)):
        yield tree, key
        if isinstance(value, (dict, list)):
            yield from _places(value)


def _change(tree: dict[str, Any], chance: random.Random, raw: list[str]) -> str:
    places = [place for place in _places(tree) if place[1] != "extends"]
    if not places:
        tree[chance.choice(ODD_KEYS)] = _value(None, chance, raw)
        return "extra"
    holder, key = chance.choice(places)
    done = chance.choice(("value", "value", "value", "value", "drop", "extra", "move", "nest", "rename", "swap"))
    if done == "value":
        holder[key] = _value(holder[key], chance, raw)
    elif done == "drop":
        del holder[key]
    elif done == "swap":
        other, place = chance.choice(places)
        holder[key], other[place] = copy.deepcopy(other[place]), copy.deepcopy(holder[key])
    elif done == "nest":
        holder[key] = chance.choice(([holder[key]], {"name": holder[key]}, {str(key): holder[key]}, [holder[key]] * 40))
    else:
        _misplace(tree, holder, key, done, chance, raw)
    return done


def _misplace(tree: dict[str, Any], holder: Any, key: Any, done: str, chance: random.Random, raw: list[str]) -> None:
    sections = [tree, *(section for section in tree.values() if isinstance(section, dict))]
    if done == "extra" or not isinstance(holder, dict):
        chance.choice(sections)[chance.choice(ODD_KEYS)] = _value(None, chance, raw)
    elif done == "move":
        chance.choice(sections)[key] = holder.pop(key)
    else:
        word = str(key)
        at = chance.randrange(len(word) + 1)
        holder[chance.choice((word[:at] + word[at + 1 :], word[:at] + "x" + word[at:], word.upper()))] = holder.pop(key)


def _value(old: Any, chance: random.Random, raw: list[str]) -> Any:
    """Another value: near the old one, of another type, or far out."""
    draw = chance.random()
    if draw < 0.5 and old is not None:
        return _near(old, chance)
    if draw < 0.7:
        return chance.choice(NUMBERS)
    if draw < 0.78:
        return chance.choice(TEXTS)
    if draw < 0.84:
        return copy.deepcopy(chance.choice(OTHERS))
    if draw < 0.9:
        return [chance.choice(NUMBERS) for _ in range(chance.choice((1, 2, 3, 8, 9, 50)))]
    raw.append(chance.choice(RAW))
    return f"RAW<{len(raw) - 1}>"


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
    mutation.words += legal_values.overrides(sources()[mutation.of][2], chance)


def _words(mutation: Mutation, chance: random.Random) -> None:
    whole = sources()[mutation.of][2]
    for _ in range(chance.choice((1, 1, 2, 3))):
        mutation.words.append(_word(whole, chance))
    if chance.random() < 0.02:
        mutation.words += [f"train.key{number}={number}" for number in range(3_000)]
    mutation.words = [word for word in mutation.words if "\0" not in word]  # no operating system takes one


def _word(whole: dict[str, Any], chance: random.Random) -> str:
    if chance.random() < 0.25 or not whole:  # a base may say nothing by itself
        return chance.choice(WORDS)
    path = chance.choice(list(_paths(whole)))
    key, old = ".".join(path), None
    if chance.random() < 0.15:
        below = key.partition(".")[2] or key
        key = chance.choice((below, f"train.{key}", key + "x", f"{key}.x", key.upper(), f" {key} "))
    else:
        old = functools.reduce(operator.getitem, path, whole)
    raw: list[str] = []
    value = _value(old, chance, raw)
    text = raw[-1] if raw else yaml_text.flow(value) if chance.random() < 0.7 else json.dumps(value)
    return f"{key}={text}"


def _paths(tree: dict[str, Any]) -> Iterator[tuple[str, ...]]:
    for key, value in tree.items():
        yield (key,)
        if isinstance(value, dict):
            yield from ((key, *path) for path in _paths(value))


# The text.


def _text(mutation: Mutation, chance: random.Random) -> None:
    text = mutation.content.decode("utf-8", "surrogatepass")
    done = chance.choice(("lines", "lines", "bytes", "cut", "prefix", "encoding", "many", "control"))
    mutation.kind = f"{mutation.kind}:{done}"
    if done == "lines":
        text = _other_lines(text, chance)
    elif done == "prefix":
        text = chance.choice(("", text)) + chance.choice(PREFIXES) + chance.choice(("", text))
    elif done == "many":
        text += _many(chance)
    elif done == "control":
        at = chance.randrange(len(text) + 1)
        text = text[:at] + chance.choice("\0\x07\x1b\x85\u2028\ufffe\x7f\t\r\u200b") + text[at:]
    content = text.encode("utf-8", "surrogatepass")
    if done == "bytes":
        content = bytes(byte ^ (1 << chance.randrange(8)) if chance.random() < 0.01 else byte for byte in content)
    elif done == "cut":
        content = content[: chance.randrange(len(content) + 1)]
    elif done == "encoding":
        binary = chance.randbytes(300)
        encoded = [text.encode(name, "replace") for name in ("utf-16", "utf-32", "utf-8-sig", "latin-1", "utf-7")]
        content = chance.choice((*encoded, content.replace(b"\n", b"\r\n"), content.replace(b"\n", b"\r"), binary, b""))
    mutation.content = content


def _other_lines(text: str, chance: random.Random) -> str:
    lines = text.split("\n")
    for _ in range(chance.randint(1, 3)):
        at = chance.randrange(len(lines))
        key, colon, _ = lines[at].partition(":")
        new = [
            *([f"{key}{colon} {chance.choice(RAW)}"], [lines[at]] * 2, [], [" " * chance.randint(1, 9) + lines[at]]),
            *([f"{chance.choice(RAW)}: {lines[at]}"], ["\t" + lines[at]]),
            *([lines[at] + chance.choice("[]{}:,&*!|>'\"%@`#-?")], [lines[at], "---"], [key], [f"{key}:"]),
        ]
        lines[at : at + 1] = chance.choice(new)
        lines = lines or [""]
    return "\n".join(lines)


def _many(chance: random.Random) -> str:
    """Thousands of keys, sections or items, within what a config may be in bytes."""
    count = chance.choice((100, 100, 1_000, 1_000, 8_000))
    lines = {
        "keys": [f"key{number}: {number}" for number in range(count)],
        "sections": [f"s{number}: {{a: [1, 2]}}" for number in range(count)],
        "twice": [f"key{number % 50}: 1" for number in range(count)],
        "items": ["junk:", *(f"  - {number}" for number in range(count))],
        "inner": ["junk:", *(f"  key{number}: [1]" for number in range(count))],
        "tiers": ["clients:", "  tier_blocks: [" + ", ".join(["1"] * count) + "]"],
        "wrong": ["train:", *(f"  key{number}: [1]" for number in range(count))],
    }
    return "\n" + "\n".join(chance.choice(list(lines.values()))) + "\n"


# What launchers, and anybody else, leave in the environment.


def _environment(mutation: Mutation, chance: random.Random) -> None:
    names = chance.sample(ENVIRONMENT, chance.choice((1, 2, 4, len(ENVIRONMENT))))
    mutation.environment = {name: chance.choice(ENVIRONMENT_TEXTS) for name in names}


# What a file extends.


def _extends(mutation: Mutation, chance: random.Random) -> None:
    done, value = chance.choice(list(odd_bases.targets(chance, FILE, list(sources())).items()))
    mutation.kind = f"{mutation.kind}:{done}"
    body = b"" if chance.random() < 0.5 else b"\n" + mutation.content
    if body and chance.random() < 0.7:
        tree = yaml_text.dump({key: item for key, item in sources()[mutation.of][1].items() if key != "extends"})
        body = b"\n" + tree.encode()
    mutation.content = b"extends: " + value.encode("utf-8", "surrogatepass") + body
    mutation.files = odd_bases.files(FILE)
    mutation.fifos = ["fifo.yaml"] if done == "fifo" else []
