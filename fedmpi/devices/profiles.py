"""The devices that fedmpi knows by name, and those of a user's CSV file.

`profiles.csv` has the ones with names. The letter that may stand behind a number says where it is from: p, printed by
the maker; d, derived from printed numbers; a, assumed. `README.md` of this folder has sources and derivations.
"""

from __future__ import annotations

import csv
import io
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from functools import cache
from hashlib import blake2b
from importlib.resources import files
from typing import Any

from numpy.random import Generator

from fedmpi.errors import ConfigError, one_line, reason
from fedmpi.store.files import user_path

PATH = "devices.path"
COLUMNS = {
    "gmacs_per_s": ("macs_per_s", 1e9),
    "lanes": ("lanes", 1),
    "memory_gb_per_s": ("memory_bytes_per_s", 1e9),
    "step_us": ("step_ns", 1e3),
    "layer_us": ("layer_ns", 1e3),
    "memory_mb": ("memory_bytes", 1e6),
    "down_mbit_per_s": ("down_bytes_per_s", 125e3),
    "up_mbit_per_s": ("up_bytes_per_s", 125e3),
    "latency_ms": ("latency_ns", 1e6),
    "compute_w": ("compute_mw", 1e3),
    "radio_w": ("radio_mw", 1e3),
    "wait_w": ("wait_mw", 1e3),
}
"""Column of the file -> field of `Profile`, and what a number is multiplied by."""
_ALL_COLUMNS = ("class", *COLUMNS)
_EXPECTED = f"expected a CSV file with the columns {','.join(_ALL_COLUMNS)} and a row for each device"
_NUMBER = re.compile(r"([0-9]+\.?[0-9]*|\.[0-9]+)(e[+-]?[0-9]+)?[pda]?", re.IGNORECASE)
"""A number, and the letter that says where it is from."""
_MAY_BE_ZERO = {"step_us", "layer_us", "latency_ms", "compute_w", "radio_w", "wait_w"}
_LARGEST = 1e9
_DIGITS = 4


@dataclass(frozen=True)
class Profile:
    """One device. Whole numbers, so that times and energies have the same bits on any machine."""

    name: str
    """Its class."""
    macs_per_s: int
    lanes: int
    """Numbers that its vectors hold: a layer with parameters takes as long as one of the next multiple of channels."""
    memory_bytes_per_s: int
    step_ns: int
    """Fixed cost of a mini-batch."""
    layer_ns: int
    """Fixed cost of a layer in one pass; a step of training has three passes."""
    memory_bytes: int
    """What training may take."""
    down_bytes_per_s: int
    up_bytes_per_s: int
    latency_ns: int
    """Before a transfer's first byte."""
    compute_mw: int
    radio_mw: int
    """While it receives or sends."""
    wait_mw: int

    def scaled(self, generator: Generator, spread: float) -> Profile:
        """Draws a device around this one: speed, memory and link times exp(spread z), each with a z of its own."""
        speed, memory, link = (math.exp(spread * z) for z in generator.standard_normal(3).tolist())
        return replace(
            self,
            name="lognormal",
            macs_per_s=_rounded(self.macs_per_s * speed),
            memory_bytes_per_s=_rounded(self.memory_bytes_per_s * speed),
            step_ns=_rounded(self.step_ns / speed),
            layer_ns=_rounded(self.layer_ns / speed),
            memory_bytes=_rounded(self.memory_bytes * memory),
            down_bytes_per_s=_rounded(self.down_bytes_per_s * link),
            up_bytes_per_s=_rounded(self.up_bytes_per_s * link),
        )


def _rounded(value: float) -> int:
    """Keeps 4 digits: the last bit of `exp` differs between libraries."""
    return max(1, round(float(f"{value:.{_DIGITS}g}")))


@cache
def built_in() -> dict[str, Profile]:
    """Returns the devices of `profiles.csv` by name."""
    text = (files(__package__) / "profiles.csv").read_text(encoding="utf-8")
    return {profile.name: profile for profile in _profiles(text, "profiles.csv")}


def read(path: str) -> tuple[tuple[Profile, ...], str]:
    """Reads a user's file: a device for each row, and a digest of the text. Raises `ConfigError` with what is wrong."""
    try:
        with open(user_path(path), encoding="utf-8-sig", newline="") as file:
            text = file.read()
        return _profiles(text, path), blake2b(text.encode(), digest_size=16).hexdigest()
    except (OSError, ValueError, csv.Error) as error:
        raise ConfigError(PATH, one_line(f"{path} cannot be read: {reason(error)}; {_EXPECTED}")) from error


def _profiles(text: str, path: str) -> tuple[Profile, ...]:
    reader = csv.DictReader(io.StringIO(text), skipinitialspace=True)
    head = [name.strip() for name in reader.fieldnames or ()]
    if sorted(head) != sorted(_ALL_COLUMNS):
        raise ConfigError(PATH, one_line(f"{path} has the columns {','.join(head)[:200]}; {_EXPECTED}"))
    reader.fieldnames = head
    profiles = [_profile(row, f"{path}: line {reader.line_num}") for row in reader]
    if not profiles:
        raise ConfigError(PATH, one_line(f"{path}: no device; {_EXPECTED}"))
    return tuple(profiles)


def _profile(row: Mapping[str, Any], where: str) -> Profile:
    if None in row or None in row.values():
        raise ConfigError(PATH, one_line(f"{where}: other than {len(_ALL_COLUMNS)} cells; {_EXPECTED}"))
    values = {name: _whole(row[column].strip(), column, factor, where) for column, (name, factor) in COLUMNS.items()}
    return Profile(name=one_line(row["class"].strip()) or "device", **values)


def _whole(text: str, column: str, factor: float, where: str) -> int:
    """Returns the number of a cell in the unit of `Profile`."""
    number = float(text.rstrip("pdaPDA")) if _NUMBER.fullmatch(text) else math.nan
    least = 0.0 if column in _MAY_BE_ZERO else 1e-6
    kind = "a number"
    if column == "lanes":
        least = 1.0
        kind = "a whole number"
        number = number if number.is_integer() else math.nan
    if not least <= number <= _LARGEST:
        allowed = f"{kind} from {least:g} to {_LARGEST:g}, optionally followed by p, d or a"
        raise ConfigError(PATH, one_line(f"{where}: {column} is {text[:40]!r}; allowed: {allowed}"))
    return max(round(number * factor), int(least > 0))


assert {field.name for field in fields(Profile)} == {"name", *(name for name, _ in COLUMNS.values())}
