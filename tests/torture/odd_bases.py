"""Files that a config should not extend, or only so many of them."""

from __future__ import annotations

import random
from pathlib import Path

CONFIGS = Path(__file__).resolve().parents[2] / "configs"
_TYPES = ("5", "[]", "{}", "''", "~", "true", "[[empty.yaml]]", "[5]", "{name: empty.yaml}", ".nan")
_ODD = ("'" + "x" * 300 + "'", "'" + "x/" * 3_000 + "'", '"a\\0b"', '"\\uD800"', '"\\e[2J"', "'*.yaml'", "~/x")
_CONTENTS = ("list.yaml", "binary.yaml", "wrong.yaml", "[wrong.yaml, empty.yaml]", str(CONFIGS / "README.md"))


def files(top: str) -> dict[str, bytes]:
    """What lies beside the config `top`, by name."""
    return {
        "one.yaml": b"extends: two.yaml\n",
        "two.yaml": b"extends: one.yaml\n",
        "empty.yaml": b"",
        "cells.yaml": b"cells: {a: {seed: 1}, b: {extends: cells.yaml@c}, c: {extends: cells.yaml@b}, d: 5, e: }\n",
        "odd_cells.yaml": b"cells: {a/b: {seed: 1}, '': {}, a/b: 1}\n",
        "no_cells.yaml": b"cells: [a]\n",
        "sub/up.yaml": f"extends: ../{top}".encode(),
        "list.yaml": b"- 1\n",
        "binary.yaml": bytes(range(256)),
        "wrong.yaml": b"train: {lr: -1, nothing: 1}\nseed: x\n",
        "large.yaml": b"".join(b"key%d: [1]\n" % number for number in range(2_000)),
        **{f"fan{level}.yaml": f"extends: [{', '.join([f'fan{level + 1}.yaml'] * 8)}]".encode() for level in range(8)},
        "fan8.yaml": b"seed: 1\n",
        **{f"chain{level}.yaml": f"extends: chain{level + 1}.yaml".encode() for level in range(40)},
    }


def targets(chance: random.Random, top: str, shipped: list[str]) -> dict[str, str]:
    """What stands behind `extends:`, in YAML, by what is odd about it."""
    return {
        "self": top,
        "cycle": "one.yaml",
        "back": "sub/up.yaml",
        "cell": chance.choice(
            ("cells.yaml", *(f"cells.yaml@{cell}" for cell in ("a", "b", "d", "e", "f", "", "a@b", "..")))
        ),
        "odd cells": chance.choice(("odd_cells.yaml@a", "no_cells.yaml@a", "no_cells.yaml", "empty.yaml@a")),
        "missing": chance.choice(("nothing.yaml", "a/b/c.yaml", "ones.yaml")),
        "directory": chance.choice((".", "/", "sub", "..", "sub/")),
        "fifo": "fifo.yaml",
        "chain": "chain0.yaml",
        "fan": "fan0.yaml",
        "device": chance.choice(("/dev/zero", "/dev/random", "/dev/null", "/dev/stdin", "/dev/tty")),
        "proc": "/proc/" + chance.choice(("kmsg", "self/mem", "self/environ", "self/pagemap", "cpuinfo")),
        "many": "[" + ", ".join(["empty.yaml"] * chance.choice((9, 1_000, 10_000))) + "]",
        "large": "[large.yaml, large.yaml]",
        "type": chance.choice(_TYPES),
        "odd": chance.choice(_ODD),
        "content": chance.choice(_CONTENTS),
        "config": chance.choice([str(CONFIGS / name) for name in shipped]),
    }
