"""Numbers for people: 11.17 M, 44.70 MB, 1:15. Files keep the exact ones."""

from __future__ import annotations

import math
from collections.abc import Iterable

_SI = ("", "k", "M", "G", "T", "P")


def si(number: float | None) -> str:
    """At most four digits and a power of 1000: 1236042 -> `1.24 M`; below 1000 as it is; None -> `-`."""
    if number is None or not math.isfinite(number):
        return "-"
    power = 0
    while power < len(_SI) - 1 and abs(round(number, 2)) >= 1000:
        number, power = number / 1000, power + 1
    if power == 0:
        return f"{number:g}"
    return f"{number:.2f} {_SI[power]}"


def size(num_bytes: float | None) -> str:
    """Bytes in powers of 1000: 44700000 -> `44.70 MB`."""
    text = si(num_bytes)
    if text == "-":
        return text
    return f"{text}B" if text[-1].isalpha() else f"{text} B"


def as_number(text: str) -> float | None:
    """What a text says as a number; None if it is none."""
    try:
        return float(text)
    except ValueError:
        return None


def named_among(asked: str, names: Iterable[str]) -> str | None:
    """The one of `names` that is asked for, by its text or, as `0.50` for `0.5`, by its value; None where none is."""
    known, number = [*names], as_number(asked)
    if asked in known:
        return asked
    return next((name for name in known if number is not None and as_number(name) == number), None)


def percent(share: float | None) -> str:
    """0.9123 -> `91.23 %`; None -> `-`."""
    return "-" if share is None else f"{100 * share:.2f} %"


def duration(seconds: float | None) -> str:
    """`0:07`, `1:15`, `2:03:04`, `3 d 02:03`."""
    if seconds is None or not math.isfinite(seconds):
        return "-"
    minutes, rest_s = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours >= 48:
        return f"{hours // 24} d {hours % 24:02d}:{minutes:02d}"
    return f"{hours}:{minutes:02d}:{rest_s:02d}" if hours else f"{minutes}:{rest_s:02d}"


def seconds(number: float) -> str:
    """Three digits, from 1000 s on more: `0.804 s`, `12.0 s`, `-0.0449 s`."""
    return f"{number:.0f} s" if abs(number) >= 99.95 else f"{number:#.3g} s"


def took(seconds: float) -> str:
    """What something took: `duration`, but `0.42 s` below a second."""
    return f"{seconds:.2f} s" if 0.005 <= seconds < 1 else duration(seconds)
