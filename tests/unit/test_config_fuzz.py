"""Whatever a config or the command line holds: a Config or a ConfigError of one-line problems, never a traceback."""

from __future__ import annotations

import random
from pathlib import Path

from fedmpi.config.load import load
from fedmpi.config.reference import installed_tables
from fedmpi.errors import ConfigError

CONFIGS = Path(__file__).parents[2] / "configs"
PLAIN_VALUES = r"""
~ yes true -1 0 1.5 .nan .inf -.inf 1e999 'x' "\uD800" [] {} [1,[2,[3]]] {name:x} {"a":{"b":{"c":1}}} *a &a !!int
# % @ ` ? - <<: 2026-01-01 0x1F 1:30 torchvision: torchvision:x {"name":[1]} {"name":{"name":1}} 9223372036854775808
"""
LONG_VALUES = ["9" * 400, "9" * 5000, "x" * 3000, "[" * 50, "{a: " * 30, "[" + "0, " * 300 + "]"]
ODD_VALUES = ["", "\t", "\r\n", "|\n  text", "\u00e9\u2028\x85", "\x07", "&a 1", "! x", "? a", "name: fedhm", "a b"]
VALUES = [*PLAIN_VALUES.split(), *LONG_VALUES, *ODD_VALUES]
PLAIN_KEYS = """
seed train train.lr train.schedule train.schedule.name train.schedule.milestones model.name method method.rank_ratio
method.layer_ranks method.tau clients.tier_blocks clients.count clients.per_round data data.name data.shape name . a.b.c
partition.alpha.x output.dir
"""
KEYS = [*PLAIN_KEYS.split(), "", "\udcff", "x" * 400, "\n", "a b"]


def mutated(text: str, chance: random.Random) -> str:
    """Up to three of: a value replaced, a line doubled, lost or indented, a character replaced, the text cut."""
    for _ in range(chance.randint(1, 3)):
        lines = text.split("\n")
        at = chance.randrange(len(lines))
        key, colon, _ = lines[at].partition(":")
        new = {
            0: [key + colon + " " + chance.choice(VALUES)],
            1: [lines[at], lines[at]],
            2: [],
            3: ["  " * chance.randint(1, 4) + lines[at]],
            4: [chance.choice(VALUES) + ": " + lines[at]],
            5: [lines[at].replace(chance.choice(lines[at] or " "), chance.choice("[]{}:,&*!|>'\"%@`#-?\t\x00e0"), 1)],
        }
        lines[at : at + 1] = new[chance.randrange(6)]
        text = "\n".join(lines)
    return text[: chance.randrange(len(text) + 1)] if chance.random() < 0.1 else text


def test_any_file_and_any_override(tmp_path: Path) -> None:
    chance, tables, path = random.Random(0), installed_tables(), tmp_path / "fuzz.yaml"
    texts = [file.read_text() for file in sorted(CONFIGS.glob("*.yaml"))]
    refused = 0
    for _ in range(500):
        content = mutated(chance.choice(texts), chance).encode("utf-8", "surrogatepass")
        if chance.random() < 0.1:
            content = content.replace(bytes([chance.choice(content or b" ")]), bytes([chance.randrange(256)]), 2)
        path.write_bytes(content)
        overrides = [f"{chance.choice(KEYS)}={chance.choice(VALUES)}" for _ in range(chance.choice([0, 0, 1, 3]))]
        try:
            config = load(path, overrides, tables)
        except ConfigError as error:
            refused += 1
            assert error.problems and all(len(problem.splitlines()) == 1 for problem in error.problems), error.problems
            assert max(map(len, error.problems)) < 600
            str(error).encode()
        else:
            assert config.diff(config.to_dict()) == [] and len(config.hash()) == 64
    assert 100 < refused < 490, "the mutations are too tame, or too wild, to test both outcomes"
