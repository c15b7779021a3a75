"""What figures draw into matplotlib's axes: curves that can be told apart in grey and by the colour-blind, numbers at
ticks, a legend below the panels, texts broken into lines.
"""

from __future__ import annotations

import textwrap
from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from fedmpi.pages.charts import Line
from fedmpi.pages.svg import DASHES, MOST_MARKED, NUM_COLOURS, PALE

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

POINTS_PER_INCH = 72
_LEGEND_POINTS = 9
_LEGEND_INCHES = 3.4
"""Longer names are broken into lines."""
_MARKERS = "osD^vPX*"


def draw_line(axes: Axes, line: Line, place: int, colour: object, *, is_joined: bool = True) -> None:
    """One curve and its band, in the style of its place among the others; its points alone if it is not joined."""
    every = max(1, len(line.x) // MOST_MARKED)
    # Lines of one colour, which are NUM_COLOURS places apart, differ in both.
    dashes, marker = place + place // NUM_COLOURS, place + 3 * (place // NUM_COLOURS)
    pattern = DASHES[dashes % len(DASHES)]
    style: dict[str, Any] = {"linestyle": ((0, pattern) if pattern else "-") if is_joined else "none"}
    style["marker"] = _MARKERS[marker % len(_MARKERS)]
    axes.plot(line.x, line.y, color=colour, label=line.label, markersize=3.5, markevery=every, **style)
    if len(line.x_before):
        before = [*line.x_before, *line.x[:1]], [*line.y_before, *line.y[:1]]
        axes.plot(*before, color=_paler(colour), linestyle=style["linestyle"], zorder=1.5)  # below all curves
    if len(line.low):
        axes.fill_between(line.x, line.low, line.high, color=colour, alpha=0.18, linewidth=0)


def _paler(colour: Any) -> tuple[float, ...]:
    """Mixed with white, because EPS knows no opacity."""
    from matplotlib.colors import to_rgb

    return tuple(1 - PALE * (1 - share) for share in to_rgb(colour))


def as_percent(axes: Axes) -> None:
    from matplotlib.ticker import PercentFormatter

    axes.yaxis.set_major_formatter(PercentFormatter(1.0, symbol=" %"))


def whole_numbers(axes: Axes) -> None:
    from matplotlib.ticker import MaxNLocator

    axes.xaxis.set_major_locator(MaxNLocator("auto", steps=[1, 2, 2.5, 5, 10], integer=True))


def with_prefix(axes: Axes) -> None:
    """Numbers of the x axis as 20 M, 1.5 G."""
    from matplotlib.ticker import EngFormatter, MaxNLocator

    axes.xaxis.set_major_formatter(EngFormatter())
    axes.xaxis.set_major_locator(MaxNLocator(5, steps=[1, 2, 2.5, 5, 10]))


def legend_below(figure: Figure, more: Mapping[str, Artist] = MappingProxyType({})) -> None:
    """One legend of all labels, and of `more`, below the panels, in as many columns as fit. The figure grows by it."""
    found = [axes.get_legend_handles_labels() for axes in figure.axes]
    handles = {label: handle for pair in found for handle, label in zip(*pair, strict=True)} | {**more}
    if not handles:
        return
    most = figure.get_figwidth() - 0.3
    names = [wrapped(name, min(most - 0.6, _LEGEND_INCHES), _LEGEND_POINTS) for name in handles]
    shown: dict[str, Any] = {"loc": "outside lower center", "handlelength": 2.8, "fontsize": _LEGEND_POINTS}
    columns = len(handles)
    while True:
        legend = figure.legend([*handles.values()], names, ncols=columns, **shown)
        box = legend.get_window_extent()
        width, height = box.width / figure.dpi, box.height / figure.dpi
        if columns == 1 or width <= most:
            figure.set_figheight(figure.get_figheight() + height + 0.1)
            return
        legend.remove()
        columns = min(columns - 1, int(columns * most / width) + 1)


def text_inches(text: str, points: float) -> float:
    """How wide a line of text is."""
    from matplotlib.font_manager import FontProperties
    from matplotlib.textpath import text_to_path

    width: float = text_to_path.get_text_width_height_descent(text, FontProperties(size=points), ismath=False)[0]
    return width / POINTS_PER_INCH


def wrapped(text: str, inches: float, points: float) -> str:
    """`text` in lines of at most so many inches; words break only where they are wider than that."""
    lines = [text]
    for columns in range(len(text) - 1, 0, -1):
        if all(text_inches(line, points) <= inches for line in lines):
            break
        lines = textwrap.wrap(text, columns)
    return "\n".join(lines)
