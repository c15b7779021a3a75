"""Numbers for people: 11.17 M, 44.70 MB, 1:15. Files keep the exact ones."""

from __future__ import annotations

import math

_SI = ("", "k", "M", "G", "T", "P")


def si(number: float | None) -> str:
    """Returns at most four digits and a power of 1000: 1236042 -> `1.24 M`; below 1000 as it is; None -> `-`."""
    if number is None or not math.isfinite(number):
        return "-"
    power = 0
    while power < len(_SI) - 1 and abs(round(number, 2)) >= 1000:
        number /= 1000
        power += 1
    return f"{number:.2f} {_SI[power]}" if power else f"{number:g}"


def size(num_bytes: float | None) -> str:
    """Returns bytes in powers of 1000: 44700000 -> `44.70 MB`."""
    return _with_unit(si(num_bytes), "B")


def joules(number: float | None) -> str:
    """Returns 13.456 as `13.46 J`, 1236042 as `1.24 MJ`."""
    return _with_unit(si(number if number is None else round(number, 2)), "J")


def _with_unit(text: str, unit: str) -> str:
    if text == "-":
        return text
    return f"{text}{unit}" if text[-1].isalpha() else f"{text} {unit}"


def as_number(text: str) -> float | None:
    """Returns the number that a text is; None if it is none."""
    try:
        return float(text)
    except ValueError:
        return None


def percent(share: float | None) -> str:
    """Returns 0.9123 as `91.23 %`; None as `-`."""
    return "-" if share is None else f"{100 * share:.2f} %"


def duration(seconds: float | None) -> str:
    """Returns `0:07`, `1:15`, `2:03:04`, `3 d 02:03`."""
    if seconds is None or not math.isfinite(seconds):
        return "-"
    minutes, rest_s = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours >= 48:
        return f"{hours // 24} d {hours % 24:02d}:{minutes:02d}"
    return f"{hours}:{minutes:02d}:{rest_s:02d}" if hours else f"{minutes}:{rest_s:02d}"


def seconds(number: float) -> str:
    """Returns three digits, from 1000 s on more: `0.804 s`, `12.0 s`, `-0.0449 s`."""
    return f"{number:.0f} s" if abs(number) >= 99.95 else f"{number:#.3g} s"


def short_duration(seconds: float) -> str:
    """Returns `duration`, but `0.42 s` below a second."""
    return f"{seconds:.2f} s" if 0.005 <= seconds < 1 else duration(seconds)
