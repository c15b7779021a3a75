"""The job file of a run, or of a sweep as an array: one task a run. Pure text; nothing is submitted here."""

from __future__ import annotations

import argparse
import re
import shlex
import sys
from argparse import ArgumentTypeError
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

from fedmpi.errors import ConfigError
from fedmpi.mpi.mpirun import launcher_words

_PACKAGE = Path(__file__).resolve().parents[2]
_IS_CHECKOUT = _PACKAGE.with_name("setup.cfg").is_file()
# An installed package has `slurm/` within it; its jobs run where they are submitted.
_PROJECT = _PACKAGE.parent if _IS_CHECKOUT else Path.cwd()


@dataclass(frozen=True)
class Order:
    """What is wanted of Slurm."""

    name: str
    command: Sequence[str]
    """That gave the order, from the project's folder."""
    folder: Path
    """Of the job file and the logs."""
    given: argparse.Namespace
    """With `--ranks`, `--launcher` and what `queue.add_arguments` adds."""


_OWN_WORDS = {
    "array": "set by --array-max and the runs themselves",
    "ntasks": "set by --ranks",
    "wrap": "set by --launcher",
    "test-only": "for sbatch itself; without --submit nothing is submitted",
    "wait": "not for a program that continues",
}
# Only this form reaches the batch shell alone, which tells the ranks (slurm/life_cycle.sh).
_EARLY_SIGNAL = re.compile(r"B:(USR1|SIGUSR1|10)@[1-9]\d*")


def check_words(words: Sequence[str]) -> None:
    """Raises `ConfigError` for a word that would break the lines of a job file: its name, folder and comments."""
    if broken := [word for word in words if not word.isprintable()]:
        problem = f"a job file needs words of one line of printable characters, got {broken[0]!r}"
        raise ConfigError("command line", problem)


def sbatch_option(text: str) -> str:
    """The type of `--sbatch-option`: `key=value` or `key`, as of sbatch's long options (`--` before it may stay)."""
    key, equals, value = text.removeprefix("--").partition("=")
    if not re.fullmatch(r"[a-z]+(-[a-z0-9]+)*", key):
        raise ArgumentTypeError(f"expected a long option of sbatch, as partition=gpu or exclusive, got {text!r}")
    if equals and not value:
        raise ArgumentTypeError(f"{key} has no value; write {key}=VALUE, or {key} alone")
    if key in _OWN_WORDS:
        raise ArgumentTypeError(f"{key} is {_OWN_WORDS[key]}")
    ours = (*_OWN_WORDS, *_defaults("", 1, "", ""))
    if meant := next((word for word in ours if word.startswith(key) and word != key), None):
        raise ArgumentTypeError(f"{key} is short for {meant} to sbatch; write it in full")  # and we, to see what it is
    if key == "signal" and not _EARLY_SIGNAL.fullmatch(value):
        raise ArgumentTypeError(f"signal must be B:USR1@SECONDS, which slurm/life_cycle.sh listens to, got {value!r}")
    return f"{key}{equals}{value}"


def check_time(given: Sequence[str]) -> None:
    """Raises `ConfigError` where the early signal would come before the job has begun."""
    options = {**_defaults("", 1, "", ""), **_read(given)}
    early_s = int(options["signal"].rpartition("@")[2])
    for key in ("time", "time-min"):
        limit_s = _seconds(options.get(key, ""))
        if limit_s is not None and 0 < limit_s <= early_s:
            what = f"{key}={options[key]} is not longer than the {early_s} s before its end at which the signal comes"
            raise ConfigError("--sbatch-option", f"{what}; give it more, or signal=B:USR1@SECONDS less")


def _read(options: Sequence[str]) -> dict[str, str]:
    return dict(option.partition("=")[::2] for option in options)


def _seconds(time: str) -> int | None:
    """A limit as sbatch takes it: M, M:S, H:M:S, D-H, D-H:M, D-H:M:S; None for what sbatch is to judge."""
    if not re.fullmatch(r"(\d+-)?\d+(:\d+){0,2}", time):
        return None
    days, dash, rest = time.rpartition("-")
    parts = [int(part) for part in rest.split(":")]
    parts = parts if dash or len(parts) == 3 else [0, *parts]
    hours, minutes, seconds = (*parts, 0, 0)[:3]
    return ((int(days or 0) * 24 + hours) * 60 + minutes) * 60 + seconds


_TEMPLATE = """\
#!/bin/bash
# {name}: {what}. Written by
#     {command}
# Submitted again, it continues what is not finished.
#
# To edit: what your site calls its partitions and accounts, the GPUs of a node (--sbatch-option partition=...,
# gres=gpu:4 write such lines), the time (a run that does not fit saves, goes back into the queue, and continues
# where it was), and below the modules to load.
{options}
cd {project}
source {life_cycle}
# module load openmpi
source {activate}

{runs}

# Where the site has it, in place of mpirun and its options: srun --mpi=pmix -n {ranks}
resumable "${{run[2]}}" {launcher} python -m fedmpi.main "${{run[@]}}" --resume
"""


def sbatch(order: Order, runs: Sequence[Sequence[str]], numbers: Sequence[int], project: Path = _PROJECT) -> str:
    """The file for sbatch; `runs` are the arguments of `python -m fedmpi.main` for each run, with `--run-dir`, and
    `numbers` those of the runs to make, from 1."""
    given, is_array = order.given, len(runs) > 1
    lines = [f"run=({shlex.join(run)})" for run in runs]
    cases = [f"  {number}) {line} ;;" for number, line in enumerate(lines, 1)]
    # With a word of its own for the places: variables that sbatch passes on may put all ranks on the first node.
    launcher = f"mpirun -n {given.ranks} --map-by slot"
    if given.launcher is not None:
        launcher = shlex.join(launcher_words(given.ranks, given.launcher))
    return _TEMPLATE.format(
        name=order.name,
        what=f"{len(numbers)} of {len(runs)} runs, one array task each" if is_array else "one run",
        command=shlex.join(order.command),
        options=_option_lines(order, ranges(numbers) if is_array else ""),
        project=shlex.quote(str(project)),
        life_cycle="slurm/life_cycle.sh" if _IS_CHECKOUT else shlex.quote(str(_PACKAGE / "slurm" / "life_cycle.sh")),
        activate=".venv/bin/activate" if _IS_CHECKOUT else shlex.quote(f"{sys.prefix}/bin/activate"),
        runs="\n".join(["case $SLURM_ARRAY_TASK_ID in", *cases, "esac"] if is_array else lines),
        ranks=given.ranks,
        launcher=launcher,
    )


def _option_lines(order: Order, tasks: str) -> str:
    """`#SBATCH` lines of our options with those on top that the user gives, as `time=01:00:00` or `exclusive`."""
    given = order.given
    at_once = f"%{given.array_max}" if tasks and given.array_max else ""
    merged = {**_defaults(order.name, given.ranks, str(order.folder), tasks + at_once), **_read(given.sbatch_option)}
    if "no-requeue" in merged:
        merged.pop("requeue", None)
    return "\n".join(f"#SBATCH --{key}" + (f"={_quoted(value)}" if value else "") for key, value in merged.items())


def _defaults(name: str, ranks: int, folder: str, tasks: str) -> dict[str, str]:
    """What sbatch is told if the user says nothing else; `tasks` are the array's, empty for a single job."""
    return {
        "job-name": name,
        **({"array": tasks} if tasks else {}),
        "ntasks": str(ranks),
        "cpus-per-task": "1",
        "time": "24:00:00",
        "signal": "B:USR1@120",
        "requeue": "",
        "open-mode": "append",
        "output": f"{folder.replace('%', '%%')}/slurm-{'%A_%a' if tasks else '%j'}.log",
    }


def _quoted(value: str) -> str:
    """The text as sbatch reads its lines: blanks need quotes, and a backslash takes the next character as it is."""
    if not re.search(r"[\s#\"'\\]", value):
        return value
    return '"' + re.sub(r'(["\\])', r"\\\1", value) + '"'


def ranges(numbers: Sequence[int]) -> str:
    """1, 2, 3, 7 as `1-3,7`."""
    runs = groupby(enumerate(sorted(numbers)), key=lambda pair: pair[1] - pair[0])
    ends = ([number for _, number in run] for _, run in runs)
    return ",".join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in ends)
