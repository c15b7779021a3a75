"""What sbatch is told in a job file: our options, and those that the user gives on top. Pure text."""

from __future__ import annotations

import re
from argparse import ArgumentTypeError
from collections.abc import Mapping, Sequence
from itertools import groupby

from fedmpi.errors import ConfigError


def _quoted(value: str) -> str:
    """As sbatch reads its lines: blanks need quotes, and a backslash takes the next character as it is."""
    if not re.search(r"[\s#\"'\\]", value):
        return value
    return '"' + re.sub(r'(["\\])', r"\\\1", value) + '"'


_OWN_WORDS = {
    "array": "set by --array-max and the runs themselves", "ntasks": "set by --ranks", "wrap": "set by --launcher",
    "test-only": "for sbatch itself; without --submit nothing is submitted", "wait": "not for a program that goes on",
}  # fmt: skip
# Only this form reaches the batch shell alone, which tells the ranks (slurm/life_cycle.sh).
_EARLY_SIGNAL = re.compile(r"B:(USR1|SIGUSR1|10)@[1-9]\d*")


def check_words(words: Sequence[str]) -> None:
    """Raises `ConfigError` for a word that would break the lines of a job file: its name, folder and comments."""
    broken = next((word for word in words if not word.isprintable()), None)
    if broken is not None:
        raise ConfigError("command line", f"a job file needs words of one line of printable characters, got {broken!r}")


def sbatch_option(text: str) -> str:
    """The type of `--sbatch-option`: `key=value` or `key`, as of sbatch's long options (`--` before it may stay)."""
    key, equals, value = text.removeprefix("--").partition("=")
    if not re.fullmatch(r"[a-z]+(-[a-z0-9]+)*", key):
        raise ArgumentTypeError(f"expected a long option of sbatch, as partition=gpu or exclusive, got {text!r}")
    if equals and not value:
        raise ArgumentTypeError(f"{key} has no value; write {key}=VALUE, or {key} alone")
    if not value.isprintable():
        raise ArgumentTypeError(f"{key} must be one line of printable characters, got {value!r}")
    if key in _OWN_WORDS:
        raise ArgumentTypeError(f"{key} is {_OWN_WORDS[key]}")
    ours = (*_OWN_WORDS, *default_options("", 1, "", "", None))
    if meant := next((word for word in ours if word.startswith(key) and word != key), None):
        raise ArgumentTypeError(f"{key} is short for {meant} to sbatch; write it in full")  # and we, to see what it is
    if key == "signal" and not _EARLY_SIGNAL.fullmatch(value):
        raise ArgumentTypeError(f"signal must be B:USR1@SECONDS, which slurm/life_cycle.sh listens to, got {value!r}")
    return f"{key}{equals}{value}"


def check_time(given: Sequence[str]) -> None:
    """Raises `ConfigError` where the early signal would come before the job has begun."""
    options = {**default_options("", 1, "", "", None), **_read(given)}
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


def default_launcher(ranks: int) -> str:
    """With a word of its own for the places: variables that sbatch passes on may put all ranks on the first node."""
    return f"mpirun -n {ranks} --map-by slot"


def default_options(name: str, ranks: int, folder: str, tasks: str, max_at_once: int | None) -> dict[str, str]:
    """What sbatch is told if the user says nothing else; `tasks` are the array's, empty for a single job."""
    array = {"array": tasks + (f"%{max_at_once}" if max_at_once else "")}
    return {
        "job-name": name,
        **(array if tasks else {}),
        "ntasks": str(ranks),
        "cpus-per-task": "1",
        "time": "24:00:00",
        "signal": "B:USR1@120",
        "requeue": "",
        "open-mode": "append",
        "output": f"{folder.replace('%', '%%')}/slurm-{'%A_%a' if tasks else '%j'}.log",
    }


def option_lines(options: Mapping[str, str], given: Sequence[str]) -> str:
    """`#SBATCH` lines of our options with those on top that the user gives, as `time=01:00:00` or `exclusive`."""
    merged = {**options, **_read(given)}
    if "no-requeue" in merged:
        merged.pop("requeue", None)
    lines = (f"#SBATCH --{key}={_quoted(value)}" if value else f"#SBATCH --{key}" for key, value in merged.items())
    return "\n".join(lines)


def ranges(numbers: Sequence[int]) -> str:
    """1, 2, 3, 7 as `1-3,7`."""
    runs = groupby(enumerate(sorted(numbers)), key=lambda pair: pair[1] - pair[0])
    ends = ([number for _, number in run] for _, run in runs)
    return ",".join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in ends)
