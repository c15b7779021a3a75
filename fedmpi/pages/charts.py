"""Charts as SVG that follows the page: its fonts, its colours in light and dark, its width.

matplotlib draws them with placeholder colours, which become CSS variables in the SVG. Lines differ by colour, by dashes
and by marker, so that they can be told apart in grey and by the colour-blind.
"""

from __future__ import annotations

import io
import re
import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

NUM_COLOURS = 8
POINTS_PER_INCH = 72
_WIDTH_INCHES = 5.2
"""A column of a page is as wide on a desk; on a phone its texts are 9 pixels high."""
_LEGEND_POINTS = 9
_LEGEND_INCHES = 3.4
"""Longer names are broken into lines."""
DASHES = ("-", (0, (6, 2)), (0, (2, 1.5)), (0, (7, 2, 1.5, 2)))
MARKERS = "osD^vPX*"
_MOST_MARKED = 12
"""A curve of more points than this has markers at some of its points only."""
# Placeholders: colours that nothing else has, and the CSS variable that takes the place of each.
_SERIES = tuple(f"#0a0b{place:02x}" for place in range(NUM_COLOURS))
_INK, _FAINT, _GRID = "#0c0d00", "#0c0d01", "#0c0d02"
_VARIABLES = {colour: f"var(--series-{place})" for place, colour in enumerate(_SERIES)} | {
    _INK: "var(--ink)",
    _FAINT: "var(--muted)",
    _GRID: "var(--rule)",
}
_STYLE: dict[str, Any] = {
    "svg.fonttype": "none",  # the browser's own fonts, text that can be selected
    "svg.hashsalt": "fedmpi",
    "font.size": 10,
    "axes.edgecolor": _GRID,
    "axes.labelcolor": _FAINT,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.titlesize": 10,
    "axes.titlecolor": _INK,
    "axes.titlelocation": "left",
    "axes.titleweight": "bold",
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": _GRID,
    "grid.linewidth": 0.7,
    "xtick.color": _FAINT,
    "ytick.color": _FAINT,
    "xtick.major.size": 0,
    "ytick.major.size": 0,
    "text.color": _INK,
    "lines.linewidth": 1.8,
    "figure.facecolor": "none",
    "axes.facecolor": "none",
    "savefig.facecolor": "none",
    "legend.frameon": False,
}


@dataclass(frozen=True)
class Line:
    """A curve: points, and where it is a mean, the lower and upper end of its band."""

    label: str
    x: Sequence[float]
    y: Sequence[float]
    low: Sequence[float] = ()
    high: Sequence[float] = ()


def lines(
    given: Sequence[Line], title: str, x_label: str, *, percent: bool = False, units: str = "", log: bool = False
) -> str:
    """Curves with a legend below. `units` names what the axes count: `x B` has 20 MB for 2e7 on the x axis; `log`
    makes the y axis logarithmic, for values above 0."""

    def draw(axes: Axes) -> None:
        for place, line in enumerate(given):
            draw_line(axes, line, place, _SERIES[place % NUM_COLOURS])
        if percent:
            as_percent(axes)
        if log:
            axes.set_yscale("log")
        whole_numbers(axes)
        if units:
            axis, _, unit = units.partition(" ")
            with_prefix(axes, axis, unit)
        axes.set_xlabel(x_label)

    return _svg(title, draw, height=2.6, has_legend=len(given) > 1)


def draw_line(axes: Axes, line: Line, place: int, colour: object, *, is_joined: bool = True) -> None:
    """One curve and its band, in the style of its place among the others; its points alone if it is not joined."""
    every = max(1, len(line.x) // _MOST_MARKED)
    # Lines of one colour, which are NUM_COLOURS places apart, differ in both.
    dashes, marker = place + place // NUM_COLOURS, place + 3 * (place // NUM_COLOURS)
    style: dict[str, Any] = {"linestyle": DASHES[dashes % len(DASHES)] if is_joined else "none"}
    style["marker"] = MARKERS[marker % len(MARKERS)]
    axes.plot(line.x, line.y, color=colour, label=line.label, markersize=3.5, markevery=every, **style)
    if len(line.low):
        axes.fill_between(line.x, line.low, line.high, color=colour, alpha=0.18, linewidth=0)


def as_percent(axes: Axes) -> None:
    from matplotlib.ticker import PercentFormatter

    axes.yaxis.set_major_formatter(PercentFormatter(1.0, symbol=" %"))


def whole_numbers(axes: Axes, axis: str = "x") -> None:
    from matplotlib.ticker import MaxNLocator

    getattr(axes, f"{axis}axis").set_major_locator(MaxNLocator("auto", steps=[1, 2, 2.5, 5, 10], integer=True))


def with_prefix(axes: Axes, axis: str, unit: str) -> None:
    """Numbers of the axis `x` or `y` as 20 M, 1.5 G and the unit."""
    from matplotlib.ticker import EngFormatter, MaxNLocator

    numbers = getattr(axes, f"{axis}axis")
    numbers.set_major_formatter(EngFormatter(unit=unit))
    numbers.set_major_locator(MaxNLocator(5, steps=[1, 2, 2.5, 5, 10]))


def legend_below(figure: Figure, more: Mapping[str, Artist] = MappingProxyType({})) -> None:
    """One legend of all labels, and of `more`, below the panels, where no curve is, in as many columns as fit; the
    figure grows by its height.
    """
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


def stacked(x: Sequence[float], parts: Mapping[str, NDArray[np.float64]], title: str, y_label: str) -> str:
    """Areas on top of each other, by round."""

    def draw(axes: Axes) -> None:
        axes.stackplot(x, *parts.values(), labels=list(parts), colors=_SERIES[: len(parts)], alpha=0.75)
        axes.set_ylabel(y_label)
        axes.set_xlabel("round")
        whole_numbers(axes)

    return _svg(title, draw, height=2.6, has_legend=True)


def bars(values: Mapping[str, float], title: str, shown: Callable[[float], str]) -> str:
    """Horizontal bars, each with its number at its end."""

    def draw(axes: Axes) -> None:
        found = axes.barh(list(values), list(values.values()), color=_SERIES[0], height=0.62)
        axes.bar_label(found, [shown(value) for value in values.values()], padding=4, fontsize=9, color=_INK)
        axes.invert_yaxis()
        axes.grid(visible=False)
        axes.set_xticks([])
        axes.spines[["bottom", "left"]].set_visible(False)
        axes.margins(x=0.2)
        axes.tick_params(axis="y", labelcolor=_INK)

    return _svg(title, draw, height=0.6 + 0.26 * len(values))


def histogram(shares: NDArray[np.float64], title: str, marks: Mapping[str, float]) -> str:
    """How many clients have which accuracy; `marks` are lines with names."""

    def draw(axes: Axes) -> None:
        from matplotlib.ticker import PercentFormatter

        axes.hist(shares, bins=np.linspace(0, 1, 21).tolist(), color=_SERIES[0], alpha=0.75, rwidth=0.92)
        for place, (name, share) in enumerate(marks.items()):
            axes.axvline(share, color=_INK, linestyle=DASHES[place], linewidth=1.2, label=f"{name} {100 * share:.1f} %")
        axes.xaxis.set_major_formatter(PercentFormatter(1.0, symbol=" %"))
        axes.set_xlim(-0.02, 1.02)
        axes.set_xlabel("accuracy of a client's own net")
        axes.set_ylabel("clients")
        whole_numbers(axes, "y")

    return _svg(title, draw, height=2.6, has_legend=True)


def heat_map(counts: NDArray[np.int64], title: str, rows: Sequence[int]) -> str:
    """Examples by class (across) and client (down): the area of a square is the number of examples."""

    def draw(axes: Axes) -> None:
        num_clients, num_classes = counts.shape
        down, across = np.nonzero(counts)
        width_points = _WIDTH_INCHES * POINTS_PER_INCH * 0.85 / max(num_classes, 1)
        height_points = axes.get_window_extent().height * 72 / axes.figure.dpi / max(num_clients, 1)
        side = 0.92 * min(width_points, height_points)
        areas = side**2 * counts[down, across] / max(int(counts.max(initial=1)), 1)
        axes.scatter(across, down, s=areas, marker="s", color=_SERIES[0], linewidths=0)
        axes.set_xlim(-0.6, num_classes - 0.4)
        axes.set_ylim(num_clients - 0.4, -0.6)
        step = max(1, num_clients // 20)
        axes.set_yticks(range(0, num_clients, step), [str(rows[place]) for place in range(0, num_clients, step)])
        if num_classes <= 20:
            axes.set_xticks(range(num_classes))
        axes.set_xlabel("class")
        axes.set_ylabel("client")

    return _svg(title, draw, height=1.0 + 0.18 * min(max(len(rows), 5), 40))


def spectra(values: Mapping[str, NDArray[np.float64]], r: Mapping[str, float], title: str) -> str:
    """Singular values of each layer over their place, relative to the largest; `r` are shares of the full rank."""

    def draw(axes: Axes) -> None:
        names = list(values)
        for place, (_, sigma) in enumerate(values.items()):
            shade = 0.25 + 0.75 * (place + 1) / len(names)
            share = np.arange(1, len(sigma) + 1) / len(sigma)
            floor = np.maximum(sigma / max(float(sigma[0]), 1e-300), 1e-9)
            axes.plot(share, floor, color=_SERIES[0], alpha=shade, linewidth=1.1)
        for place, (tier, at) in enumerate(r.items()):
            axes.axvline(at, color=_INK, linestyle=DASHES[place % 4], linewidth=1.0, label=f"r of tier {tier}")
        axes.set_yscale("log")
        axes.set_xlim(0, 1)
        axes.set_xlabel("place of the singular value, as a share of the full rank")
        axes.set_ylabel("relative to the largest")

    return _svg(title, draw, height=2.9, has_legend=bool(r))


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


@contextmanager
def style(**more: object) -> Iterator[None]:
    """Within, matplotlib draws as these charts look."""
    from matplotlib import rc_context

    settings: Any = _STYLE | more
    with rc_context(settings):
        yield


def _svg(title: str, draw: Callable[[Axes], None], *, height: float, has_legend: bool = False) -> str:
    """The chart as an SVG element, so many inches high without its legend; a page scales it to its own width."""
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure

    with style():
        figure = Figure(figsize=(_WIDTH_INCHES, height), layout="constrained")
        FigureCanvasSVG(figure)
        axes = figure.add_subplot()
        axes.set_title(title)
        draw(axes)
        if has_legend:
            legend_below(figure)
        out = io.StringIO()
        figure.savefig(out, format="svg", metadata={"Date": None, "Creator": None}, transparent=True)
    return for_page(out.getvalue(), title)


def for_page(document: str, title: str) -> str:
    """An SVG file's element for an HTML page: colours by CSS variables, width by the page, a title for readers."""
    element = document[document.index("<svg") :]
    element = re.sub(r"<metadata>.*?</metadata>", "", element, flags=re.DOTALL)
    element = re.sub(r' id="[A-Za-z0-9]+_[0-9_]+"', "", element)  # the same in every chart of a page
    for colour, variable in _VARIABLES.items():
        element = element.replace(colour, variable)
    element = re.sub(r'(<svg[^>]*?) width="[^"]*"', r"\1", element, count=1)
    element = re.sub(r'(<svg[^>]*?) height="[^"]*"', r"\1", element, count=1)
    safe = title.replace("&", "&amp;").replace("<", "&lt;").replace('"', "&quot;")
    return element.replace("<svg ", f'<svg role="img" aria-label="{safe}" ', 1)
