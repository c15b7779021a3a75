"""A chart's parts as SVG: scales with ticks, axes, curves, areas, and the HTML around them.

Colours are classes of the page's CSS, so that charts follow it in light and dark; texts are the browser's own. Numbers
are pixels of a chart WIDTH wide, which the page scales. Without matplotlib: it takes 1.5 s for the charts of a page.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from html import escape

import numpy as np
from numpy.typing import ArrayLike, NDArray

WIDTH = 380.0
NUM_COLOURS = 8
DASHES: tuple[tuple[float, ...], ...] = ((), (6, 3), (2, 2.5), (8, 3, 2, 3))
LETTER = 6.1
"""The width of an average letter in the widest usual font (DejaVu Sans)."""
LINE = 14.0
"""The height of a line of text."""
MOST_MARKED = 12
"""A curve of more points than this has markers at some of its points only."""
PALE = 0.4
"""The opacity of the part of a branch's curve that is its parent's."""
_POWERS = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")
_PREFIXES = ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))
# Circle, square, diamond, triangles, plus, cross, star: strokes from a point's place, which `_marked` puts before them.
_MARKERS = (
    "m-2.2 0a2.2 2.2 0 1 0 4.4 0a2.2 2.2 0 1 0-4.4 0z",
    "m-1.9-1.9h3.8v3.8h-3.8z",
    "m0-2.7l2.5 2.7l-2.5 2.7l-2.5-2.7z",
    "m0-2.7l2.6 4.7h-5.2z",
    "m0 2.7l2.6-4.7h-5.2z",
    "m0-2.7v5.4m-2.7-2.7h5.4",
    "m-2.3-2.3l4.6 4.6m0-4.6l-4.6 4.6",
    "m0-2.7v5.4m-2.3-4.1l4.6 2.8m0-2.8l-4.6 2.8",
)
Shown = Callable[[float], str]
"""How a number stands at its tick."""


def plain(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:g}"


def percents(share: float) -> str:
    return f"{100 * share:g} %"


def prefixed(unit: str) -> Shown:
    """2e7 -> `20 M`, and the unit."""

    def shown(value: float) -> str:
        scale, prefix = next((pair for pair in _PREFIXES if abs(value) >= pair[0]), (1.0, ""))
        return f"{value / scale:g} {prefix}{unit}".strip()

    return shown


def _power(value: float) -> str:
    return "10" + str(round(math.log10(value))).translate(_POWERS)


@dataclass(frozen=True)
class Scale:
    """Values from `low`, at the left or the bottom, to `high`, and the numbers at its ticks."""

    low: float
    high: float
    ticks: Sequence[float]
    shown: Shown = plain
    is_log: bool = False

    def shares(self, values: ArrayLike) -> NDArray[np.float64]:
        """How far each value is from `low` to `high`."""
        found, ends = np.asarray(values, dtype=float), np.array([self.low, self.high])
        if self.is_log:
            found, ends = np.log10(found), np.log10(ends)
        return np.asarray((found - ends[0]) / (ends[1] - ends[0]))


def linear(values: Iterable[float], shown: Shown = plain, *, most: int = 7, whole: bool = False) -> Scale:
    """A scale of all values with a margin, and at most so many round ticks; of `whole` numbers alone."""
    found = [*values] or [0.0, 1.0]
    low, high = min(found), max(found)
    if low == high:
        half = 0.5 if whole or not low else abs(low) / 2
        low, high = low - half, high + half
    margin = 0.04 * (high - low)
    low, high = low - margin * (low != 0), high + margin  # what starts at zero stands on its axis
    return Scale(low, high, _round_numbers(low, high, most, whole=whole), shown)


def logarithmic(values: Iterable[float]) -> Scale:
    """A scale of values above 0: ticks at powers of ten, or at round numbers where that would be less than two."""
    found = np.log10([*values] or [1.0])
    margin = max(0.04 * float(np.ptp(found)), 0.02)
    low, high = float(found.min()) - margin, float(found.max()) + margin
    first, last = math.ceil(low), math.floor(high)
    if last - first < 1:
        return Scale(10**low, 10**high, _round_numbers(10**low, 10**high, 5), is_log=True)
    every = -(-(last - first) // 5)
    powers = [power for power in range(first, last + 1) if power % every == 0]
    return Scale(10**low, 10**high, [10.0**power for power in powers], _power, is_log=True)


def _round_numbers(low: float, high: float, most: int, *, whole: bool = False) -> list[float]:
    least = (high - low) / most
    power = 10.0 ** math.floor(math.log10(max(least, 1.0) if whole else least))
    steps = [step for factor in (1, 2, 2.5, 5, 10) if (step := power * factor) >= least]
    step = next(step for step in steps if not whole or step == round(step))
    places = range(math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9) + 1)
    return [float(f"{place * step:.12g}") for place in places]


@dataclass(frozen=True)
class Plot:
    """Two scales and the pixels of their axes."""

    x: Scale
    y: Scale
    height: float
    x_label: str = ""
    y_label: str = ""

    @property
    def left(self) -> float:
        widest = max((len(self.y.shown(tick)) for tick in self.y.ticks), default=0)
        return LETTER * widest + 8

    @property
    def right(self) -> float:
        """Half of the last label may stand beyond its tick."""
        last = self.x.shown(self.x.ticks[-1]) if self.x.ticks else ""
        return WIDTH - max(6.0, LETTER * len(last) / 2 + 3)

    @property
    def top(self) -> float:
        return LINE + 6 if self.y_label else 8.0

    @property
    def bottom(self) -> float:
        return self.height - LINE * (1 + bool(self.x_label)) - 3

    def across(self, values: ArrayLike) -> NDArray[np.float64]:
        return self.left + self.x.shares(values) * (self.right - self.left)

    def down(self, values: ArrayLike) -> NDArray[np.float64]:
        return self.bottom - self.y.shares(values) * (self.bottom - self.top)

    def points(self, xs: ArrayLike, ys: ArrayLike) -> list[str]:
        """`120.5 33` for each point."""
        pairs = zip(self.across(xs).tolist(), self.down(ys).tolist(), strict=True)
        return [f"{pixels(x)} {pixels(y)}" for x, y in pairs]

    def axes(self) -> str:
        """Grid lines at the y ticks, the x axis, and all their texts."""
        parts = []
        for tick, at in zip(self.y.ticks, self.down(self.y.ticks).tolist(), strict=True):
            parts.append(f'<path class="grid" d="M{pixels(self.left)} {pixels(at)}H{pixels(self.right)}"/>')
            parts.append(text(self.left - 5, at + 3.5, self.y.shown(tick), "end"))
        for tick, at in zip(self.x.ticks, self.across(self.x.ticks).tolist(), strict=True):
            parts.append(text(at, self.bottom + LINE, self.x.shown(tick), "middle"))
        parts.append(f'<path class="axis" d="M{pixels(self.left)} {pixels(self.bottom)}H{pixels(self.right)}"/>')
        if self.x_label:
            parts.append(text((self.left + self.right) / 2, self.bottom + 2 * LINE, self.x_label, "middle"))
        if self.y_label:
            parts.append(text(0, LINE - 4, self.y_label))
        return "".join(parts)


def pixels(value: float) -> str:
    """A coordinate in as few signs as serve."""
    return f"{value:.1f}".removesuffix(".0")


def text(x: float, y: float, said: str, anchor: str = "start", *, is_strong: bool = False) -> str:
    kind = ' class="strong"' if is_strong else ""
    return f'<text{kind} x="{pixels(x)}" y="{pixels(y)}" text-anchor="{anchor}">{escape(said)}</text>'


def curve(points: Sequence[str], place: int, num_curves: int = 1) -> str:
    """The curve that is the `place`th of so many, with markers; those of other curves stand at other points."""
    every = max(1, len(points) // MOST_MARKED)
    return _stroke("L".join(points), place) + _marked(points[place * every // num_curves % every :: every], place)


def pale(points: Sequence[str], place: int) -> str:
    """The part of that curve which is another run's: pale, and without markers."""
    return f'<g opacity="{PALE}">{_stroke("L".join(points), place)}</g>'


def colour(place: int) -> str:
    """The class of a curve's colour."""
    return f"c{place % NUM_COLOURS}"


def dashes(place: int) -> str:
    """The attribute for the `place`th line; empty for an unbroken one."""
    pattern = DASHES[place % len(DASHES)]
    return f' stroke-dasharray="{" ".join(map(str, pattern))}"' if pattern else ""


def _stroke(points: str, place: int) -> str:
    # Lines of one colour, which are NUM_COLOURS places apart, differ in dashes and marker.
    return f'<path class="line {colour(place)}"{dashes(place + place // NUM_COLOURS)} d="M{points}"/>' if points else ""


def _marked(points: Sequence[str], place: int) -> str:
    shape = _MARKERS[(place + 3 * (place // NUM_COLOURS)) % len(_MARKERS)]
    return f'<path class="mark {colour(place)}" d="{"".join(f"M{point}{shape}" for point in points)}"/>'


def area(points: Sequence[str], place: int, kind: str = "area") -> str:
    return f'<path class="{kind} {colour(place)}" d="M{"L".join(points)}z"/>'


def of_curve(place: int) -> str:
    """What stands in a legend for a curve."""
    return _stroke("1 5L27 5", place) + _marked(["14 5"], place)


def of_area(place: int) -> str:
    return f'<path class="area {colour(place)}" d="M8 0h12v10h-12z"/>'


def of_mark(place: int) -> str:
    return f'<path class="rule"{dashes(place)} d="M1 5H27"/>'


def chart(title: str, height: float, drawn: str, legend: Sequence[tuple[str, str]] = ()) -> str:
    """The content of the page's `figure`; `legend` has a drawing and a name for each entry."""
    said = escape(title)
    entries = "".join(f'<li><svg viewBox="0 0 28 10">{key}</svg>{escape(name)}</li>' for key, name in legend)
    picture = f'<svg role="img" aria-label="{said}" viewBox="0 0 {pixels(WIDTH)} {pixels(height)}">{drawn}</svg>'
    return f"<figcaption>{said}</figcaption>{picture}" + (f'<ul class="legend">{entries}</ul>' if entries else "")
