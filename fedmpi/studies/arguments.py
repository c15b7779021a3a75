"""Arguments that several programs of `jobs/` have, and their types for argparse."""

from __future__ import annotations

import argparse
import hashlib
import os
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from fedmpi.errors import ConfigError, UserError, reason

SEEDS = (0, 1, 2)
# File systems allow 255 bytes for a name; a log's is longer than its run's.
_LONGEST_NAME = 160


def add_run_arguments(parser: argparse.ArgumentParser) -> None:
    """What the programs that make runs are told about them."""
    parser.add_argument("--seeds", type=numbers, help="default 0,1,2; with --collect, all there")
    parser.add_argument("--ranks", type=number(int, 1), default=3, help="of each run; 1 is without mpirun (default 3)")


def changes(given: Sequence[str]) -> tuple[str, ...]:
    """Each key's last override, sorted, so that their order makes no other runs. Raises `ConfigError` for the seed."""
    by_key = {"".join(override.partition("=")[0].split()): override for override in given}
    if "seed" in by_key:
        raise ConfigError("command line", f"{by_key['seed']} would be overridden; the seeds are given by --seeds")
    return tuple(by_key[key] for key in sorted(by_key))


def numbers(text: str) -> list[int]:
    """`0,1,2`: seeds, or clients."""
    found = text.split(",")
    if not all(re.fullmatch(r"\d{1,18}", number) for number in found) or len(set(map(int, found))) < len(found):
        raise argparse.ArgumentTypeError(f"expected different whole numbers >= 0, as 0,1,2, got {text!r}")
    return [int(number) for number in found]


def number(kind: type, low: float, high: float = float("inf")) -> Callable[[str], Any]:
    """An argument's type: a whole number from low to high, or a number in (low, high]."""

    def read(text: str) -> Any:
        try:
            value = kind(text)
        except ValueError:
            value = float("nan")
        if not (low <= value <= high if kind is int else low < value <= high and value < float("inf")):
            allowed = f"a whole number >= {low:g}" if kind is int else f"a number > {low:g}"
            allowed += f" and <= {high:.15g}" if high < float("inf") else ""
            raise argparse.ArgumentTypeError(f"expected {allowed}, got {text!r}")
        return value

    return read


def short(name: str) -> str:
    """A name that a file system takes: the end of a long one gives way to its digest."""
    if len(name.encode()) <= _LONGEST_NAME:
        return name
    digest = hashlib.sha256(name.encode()).hexdigest()[:8]
    return f"{name.encode()[: _LONGEST_NAME - 9].decode(errors='ignore')}-{digest}"


def folder_name(text: str) -> str:
    """A name for a folder of ours."""
    if text in ("", ".", "..") or "/" in text or "\\" in text or len(text.encode()) > _LONGEST_NAME:
        allowed = f"a folder's name of at most {_LONGEST_NAME} bytes, without / and \\"
        raise argparse.ArgumentTypeError(f"expected {allowed}, got {text[:_LONGEST_NAME]!r}")
    return text


def absolute(out: Path) -> Path:
    """`--out` as a path that is one from everywhere. Raises `UserError` if there can be no folder like that."""
    path = Path(os.path.expanduser(out)).resolve()
    try:
        (path / (_LONGEST_NAME * "x")).exists()
    except OSError as error:
        raise UserError("--out", f"cannot be used: {reason(error)}: {str(out)[:_LONGEST_NAME]}") from None
    return path
