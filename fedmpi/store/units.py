"""Numbers for people: 11.17 M, 44.70 MB, 1:15. Files keep the exact ones."""

import math
from collections.abc import Callable

_SI = ("", "k", "M", "G", "T", "P")
_SMALL = {-1: "m", -2: "u"}


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
    text = si(num_bytes)
    if text == "-":
        return text
    return f"{text}B" if text[-1].isalpha() else f"{text} B"


def joules(number: float | None) -> str:
    """Returns three digits: 0.0024 -> `2.40 mJ`, 13.456 -> `13.5 J`, 1236042 -> `1.24 MJ`."""
    return _three_digits(number, "J")


def _three_digits(number: float | None, unit: str) -> str:
    """Returns thousandths or millionths of a unit below 0.1."""
    if number is None or not math.isfinite(number):
        return "-"
    if not number:
        return f"0 {unit}"
    exponent = int(f"{number:.2e}".partition("e")[2])
    power = (exponent + (exponent < 0)) // 3
    power = min(max(power, -2), len(_SI) - 1)
    decimals = min(max(2 - exponent + 3 * power, 0), 3)
    prefix = _SI[power] if power >= 0 else _SMALL[power]
    return f"{number / 1000.0**power:.{decimals}f} {prefix}{unit}"


def span(numbers: tuple[float, float], text: Callable[[float], str]) -> str:
    """Returns `1 s to 2 s`, or `1 s` where both read the same."""
    low, high = map(text, numbers)
    return low if low == high else f"{low} to {high}"


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
    """Returns `duration`, but three digits below a minute: `2.00 ms`, `0.420 s`, `7.25 s`."""
    return _three_digits(seconds, "s") if seconds < 59.95 else duration(seconds)
