"""Texts, numbers, keys, words and bases that a config should survive: each is odd in a way of its own."""

from __future__ import annotations

from fedmpi.config.address import CONFIGS

# Written as they stand, where Python has no such value or YAML another word for it.
RAW = [
    *("0o17", "017", "0x1F", "1_000", "1e-3", "1E+3", ".5", "5.", "+1", "~", "null", "Null", "yes", "no", "on"),
    *("off", "True", "TRUE", "2026-01-01", "12:30:00", "1:30"),
    *(".nan", ".inf", "-.inf", "'1'", '"1.5"', "!!int", "!!python/object:os.system", "!!binary"),
    *("*a", "&a", "<<:", "?", "!", "|", ">", "-", "@", "`", "%", "{}", "[]", "[[]]", "{}", "[{}]", "1e999"),
    *("-1e999", "1e-999"),
    *(f"torchvision:{name}" for name in ("", "resnet18", "x", "maskrcnn_resnet50_fpn")),
    *('"\\uD800"', '"\\0"', '"\\e[2J"', "{a:{b:{c:1}}}", "[1,,2]", "[1,2", "{1:2", "!x", "#"),
    *("[" + "0.5, " * 2_000 + "1]", "[" + "1, " * 300_000 + "1]", "9" * 401, "9" * 9_000, "x" * 30_000),
    *("[" * 60, "{a: " * 60, "{" + ", ".join(f"k{number}: {number}" for number in range(500)) + "}"),
    *("'" + "\u00e9\u2028" * 50 + "'", "", "\t"),
]
NUMBERS = (
    *(0, -1, 1, 2, 3, 7, 17, 100, 1000, 65_536, 10**6, 2**31 - 1, 2**31, 2**63 - 1, 2**63),
    *(10**12, 10**30, 10**400, -(2**63), 0.0, -0.0, 1.0, 0.5, 0.1, 1e-3, 1e-9, 1e-300, 5e-324),
    *(2.5, -1.5, 1e9, 1e18, 1e308, 0.999_999_999, 1.000_000_1, *map(float, ("nan", "inf", "-inf"))),
)
TEXTS = (
    *("", " ", "1", "0.5", "1e-3", "auto", "none", "name", "true", "nan"),
    *("../..", "/", "/dev/null", "/dev/zero", "~nobody-here/x", "a\0b", "a\nb", "a\x1b[31m"),
    *("\u00e9\u4e2d\U0001f600", "x" * 300, "y" * 5_000, "'", '"', "$(id)", "{}", "%s%n", "-x", "..", "\udc80"),
    *("extends", "file.yaml", "C:\\x", "a/b/../../c"),
)
OTHERS = (
    *(None, True, False, [], {}, [[]], [None], [1, [2, [3]]]),
    *({"name": 1}, {"name": {"name": "x"}}, {"a": {"b": {"c": 1}}}),
)
KEYS = (
    *("", " ", "name", "extends", "a.b", "\u00e9", "k" * 300, "__class__", "model_config", "1", "-", "_where"),
    *("a\nb", "<<"),
)
WORDS = (
    *("", "=", "=1", "a", "a=", ".=1", "a..b=1", "seed", "seed=", "seed==1", "seed=["),
    *("train", "train=", "train=1", "train={}", "train=[]", "model.name", "model="),
    *("--plan=json", "--plan=", "--plan=x", "--resume", "--run-dir", "--run-dir=", "--nothing", "-x", "--"),
    *("other.yaml", "seed=1\0", "\udcff=1", "train.lr=\x1b[2J", "a.b.c.d.e.f.g.h.i.j.k.l=1", "data.name=synthetic"),
    *("train={lr: 0.01, momentum: 0}", "seed=\u00e9", "config=1", "extends=x", "extends=base.yaml", "--list=1"),
)

LAUGHS = "a: &a [x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"{chr(98 + level)}: &{chr(98 + level)} [{', '.join([f'*{chr(97 + level)}'] * 9)}]\n" for level in range(9)
)
PREFIXES = (
    *(LAUGHS, "base: &base {lr: 1}\ntrain:\n  <<: *base\n", "--- \n", "%YAML 1.1\n---\n", "%TAG ! x\n"),
    *("!!python/object/apply:os.system ['id']\n", "- 1\n", "5\n", "text\n", "...\n", "? [a, b]\n: 1\n"),
    *("? {a: 1}\n: 1\n", "{\n", "&a\n", "!!map\n", "\t", "\ufeff\ufeff", "# \u0001\n", "seed: 1\nseed: 2\n"),
    *("? " * 2_000 + "a\n", "- " * 2_000 + "a\n", "[" * 50_000, "{" * 50_000, "a: " * 1_000 + "\n"),
    *("k" * 100_000 + ": 1\n", "'" + "x" * 100_000, "|\n" + " x\n" * 20_000, "#" * 150_000 + "\n", "\n" * 150_000),
    *("x" * 250_000, "seed: !!set {a, b}\n", "*a\n"),
)

FILE = "mutated.yaml"
BASE_FILES: dict[str, bytes | None] = {
    "one.yaml": b"extends: two.yaml\n",
    "two.yaml": b"extends: one.yaml\n",
    "empty.yaml": b"",
    "cells.yaml": b"cells: {a: {seed: 1}, b: {extends: cells.yaml@c}, c: {extends: cells.yaml@b}, d: 5, e: }\n",
    "odd_cells.yaml": b"cells: {a/b: {seed: 1}, '': {}, a/b: 1}\n",
    "no_cells.yaml": b"cells: [a]\n",
    "sub/up.yaml": f"extends: ../{FILE}".encode(),
    "list.yaml": b"- 1\n",
    "binary.yaml": bytes(range(256)),
    "wrong.yaml": b"train: {lr: -1, nothing: 1}\nseed: x\n",
    "fifo.yaml": None,
    "large.yaml": b"".join(b"key%d: [1]\n" % number for number in range(2_000)),
    **{f"fan{level}.yaml": f"extends: [{', '.join([f'fan{level + 1}.yaml'] * 8)}]".encode() for level in range(8)},
    "fan8.yaml": b"seed: 1\n",
    **{f"chain{level}.yaml": f"extends: chain{level + 1}.yaml".encode() for level in range(40)},
}
"""What lies beside a config that extends something odd; None is a pipe, from which nothing ever comes."""
BASES = {
    "self": (FILE,),
    "cycle": ("one.yaml",),
    "back": ("sub/up.yaml",),
    "cell": ("cells.yaml", *(f"cells.yaml@{cell}" for cell in ("a", "b", "d", "e", "f", "", "a@b", ".."))),
    "odd cells": ("odd_cells.yaml@a", "no_cells.yaml@a", "no_cells.yaml", "empty.yaml@a"),
    "missing": ("nothing.yaml", "a/b/c.yaml", "ones.yaml"),
    "directory": (".", "/", "sub", "..", "sub/"),
    "fifo": ("fifo.yaml",),
    "chain": ("chain0.yaml",),
    "fan": ("fan0.yaml",),
    "device": ("/dev/zero", "/dev/random", "/dev/null", "/dev/stdin", "/dev/tty"),
    "proc": tuple(f"/proc/{name}" for name in ("kmsg", "self/mem", "self/environ", "self/pagemap", "cpuinfo")),
    "many": tuple("[" + ", ".join(["empty.yaml"] * count) + "]" for count in (9, 1_000, 10_000)),
    "large": ("[large.yaml, large.yaml]",),
    "type": ("5", "[]", "{}", "''", "~", "true", "[[empty.yaml]]", "[5]", "{name: empty.yaml}", ".nan"),
    "odd": ("'" + "x" * 300 + "'", "'" + "x/" * 3_000 + "'", '"a\\0b"', '"\\uD800"', '"\\e[2J"', "'*.yaml'", "~/x"),
    "content": ("list.yaml", "binary.yaml", "wrong.yaml", "[wrong.yaml, empty.yaml]", str(CONFIGS / "README.md")),
}
"""What stands behind `extends:`, in YAML, by what is odd about it."""

# Every environment variable that the package reads; a test keeps the list whole.
ENVIRONMENT = (
    *("CUBLAS_WORKSPACE_CONFIG", "MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE"),
    *("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_MCA_btl", "OMPI_MCA_btl_sm_backing_directory"),
    *("OMPI_MCA_mpi_ft_enable", "PALS_RANKID", "PALS_SIZE", "PMIX_NAMESPACE", "PMIX_RANK", "PMI_RANK"),
    *("PMIX_SERVER_TMPDIR", "PMI_SIZE"),
    "MV2_USE_CUDA",
    *("SLURM_ARRAY_JOB_ID", "SLURM_ARRAY_TASK_ID", "SLURM_JOB_END_TIME", "SLURM_JOB_ID", "SLURM_PROCID"),
    *("SLURM_STEP_ID", "SLURM_STEP_NUM_TASKS", "TERM"),
)
# No positive rank: such a process leaves the answer to rank 0, and says nothing.
ENVIRONMENT_TEXTS = (
    *("", "0", "00", "-1", "x", "nan", "1e3", "0x1", " 0", "+0", "\u00b2", "\u0660", "9" * 20, "9" * 5_000, "\udcff"),
    *("a\nb", "\x1b[2J", "4294967296", "1.5", "UNLIMITED", "$(id)"),
)
