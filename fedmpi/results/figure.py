"""Draws all figures: panels in rows, a title above them and one legend below, where no curve is.

Nothing is cut: texts that are wider than their place are broken into lines, and the figure grows by what its title and
its legend need. Lines differ by colour, dashes and marker, bars by colour and hatch, so that they can be told apart in
grey and by the colour-blind. The same lines give the same bytes.
"""

from __future__ import annotations

import functools
import io
import re
import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from fedmpi.store.files import write_atomic

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

FORMATS = (".pdf", ".svg", ".png", ".eps")
# Paul Tol, "Colour schemes", SRON/EPS/TN/09-002, 2021: black with "high-contrast", whose lightness is 0, 29, 50 and 72
# of 100; then colours of his other schemes that are far from these, and from each other, for every kind of eye.
COLOURS = ("#000000", "#004488", "#bb5566", "#ddaa33", "#0077bb", "#997700", "#88ccee", "#882255")
GRID, EDGE = "#e0e0e0", "#999999"
HATCHES = ("", "///", "...", "xxx", "\\\\\\", "---", "++", "oo")
DASHES: tuple[tuple[float, ...], ...] = ((), (6, 3), (2, 2.5), (8, 3, 2, 3))
PANEL_INCHES = (3.4, 2.6)
X_LABELS = {"rounds": "round", "bytes": "communication of all clients", "macs": "training compute (MACs)"}
_MARKERS = "osD^vPX*"
_MOST_MARKED = 12
"""A curve of more points than this has markers at some of its points only."""
_BAND = 0.18
_COLUMNS = (3, 2)
"""Columns of panels: what leaves fewer places empty, and of equals the first."""
_POINTS = 9
_POINTS_PER_INCH = 72
_BESIDE_INCHES = 1.0
"""What numbers and label of the y axis take of a panel's width at most."""
_LEGEND_INCHES = 3.4
"""Longer names are broken into lines."""
_DPI = 300
_STYLE: dict[Any, Any] = {
    "font.size": _POINTS,
    "svg.fonttype": "none",  # text that can be selected
    "svg.hashsalt": "fedmpi",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.linewidth": 0.7,
    "xtick.major.size": 0,
    "xtick.major.pad": 6,
    "ytick.major.size": 0,
    "axes.facecolor": "none",
    "legend.frameon": False,
    "axes.edgecolor": EDGE,
    "axes.titlesize": _POINTS,
    "grid.color": GRID,
    "lines.linewidth": 1.4,
    "figure.facecolor": "white",
    "savefig.facecolor": "white",
    "hatch.linewidth": 0.6,
    "pdf.fonttype": 42,  # TrueType, as publishers ask for
    "ps.fonttype": 42,
}
Draw = Callable[["Axes"], None]


@dataclass(frozen=True)
class Line:
    """A curve: points, and where it is a mean, the lower and upper end of its band."""

    label: str
    x: Sequence[float]
    y: Sequence[float]
    low: Sequence[float] = ()
    high: Sequence[float] = ()


def over_seeds(label: str, points: Iterable[tuple[int, float, float]], num_seeds: int) -> Line:
    """Averages all seeds' (round, x, y) in the rounds that all of them have. The band is the lowest and highest y."""
    by_round: dict[int, list[tuple[float, float]]] = {}
    for number, x, y in points:
        by_round.setdefault(number, []).append((x, y))
    xs, ys, low, high = [], [], [], []
    for _, found in sorted(by_round.items()):
        if len(found) == num_seeds:
            values = [y for _, y in found]
            xs.append(sum(x for x, _ in found) / num_seeds)
            ys.append(sum(values) / num_seeds)
            low.append(min(values))
            high.append(max(values))
    return Line(label, xs, ys, low, high) if num_seeds > 1 else Line(label, xs, ys)


def colour_of(place: int) -> str:
    return COLOURS[place % len(COLOURS)]


def bar_style(place: int) -> dict[str, Any]:
    """Returns how the bars of the `place`th label look: a fill, and a white hatch on it."""
    return {"color": colour_of(place), "hatch": HATCHES[place % len(HATCHES)], "edgecolor": "white", "linewidth": 0}


def draw_line(axes: Axes, line: Line, place: int, *, is_joined: bool = True) -> None:
    """Draws a curve and its band in the style of its place among the others; points alone if they are not joined."""
    colour = colour_of(place)
    # Lines of one colour differ in dashes and marker.
    dashes = DASHES[(place + place // len(COLOURS)) % len(DASHES)]
    joined: Any = (0, dashes) if dashes else "-"
    style: dict[str, Any] = {"color": colour, "linestyle": joined if is_joined else "none"}
    marker = _MARKERS[(place + 3 * (place // len(COLOURS))) % len(_MARKERS)]
    every = max(1, len(line.x) // _MOST_MARKED)
    first = place % every  # so that no marker covers one of another curve
    axes.plot(line.x, line.y, label=line.label, marker=marker, markersize=3.5, markevery=(first, every), **style)
    if line.low:
        axes.fill_between(line.x, line.low, line.high, color=colour, alpha=_BAND, linewidth=0)


def curves(
    panels: Mapping[str, Mapping[int, Line]], x: str, y: str, *, width: float | None = None, ylim: Sequence[float] = ()
) -> Figure:
    """Draws a panel for each net: its lines by their places, which decide on colour and dashes in every panel.

    `x` is one of `X_LABELS`, `y` accuracy or loss, `width` the inches of the whole figure.
    """

    def draw(axes: Axes, net: str, lines: Mapping[int, Line]) -> None:
        for place, line in lines.items():
            draw_line(axes, line, place)
        axes.set_title(net if len(panels) > 1 else "")
        axes.set_xlabel(X_LABELS[x])
        # One panel has no title: a paper's caption is one. What was tested stands beside the axis.
        axes.set_ylabel(f"test {y}" if len(panels) > 1 else f"test {y}, {net}")
        if x == "rounds":
            whole_numbers(axes)
        else:
            with_unit(axes, "B" if x == "bytes" else "")
        if y == "accuracy":
            as_percent(axes)
        if ylim:
            axes.set_ylim(*ylim)

    drawn = [functools.partial(draw, net=net, lines=lines) for net, lines in panels.items()]
    return compose(drawn, share_y=True, width=width)


def as_percent(axes: Axes, axis: str = "y") -> None:
    from matplotlib.ticker import PercentFormatter

    getattr(axes, f"{axis}axis").set_major_formatter(PercentFormatter(1.0, symbol=" %"))


def whole_numbers(axes: Axes, axis: str = "x") -> None:
    from matplotlib.ticker import MaxNLocator

    locator = MaxNLocator("auto", steps=[1, 2, 2.5, 5, 10], integer=True, min_n_ticks=1)
    getattr(axes, f"{axis}axis").set_major_locator(locator)


def with_unit(axes: Axes, unit: str, axis: str = "x") -> None:
    """Writes numbers as `20 MB`, `1.5 G`."""
    from matplotlib.ticker import EngFormatter, MaxNLocator

    ticks = getattr(axes, f"{axis}axis")
    ticks.set_major_formatter(EngFormatter(unit))
    ticks.set_major_locator(MaxNLocator(5, steps=[1, 2, 2.5, 5, 10]))


def logarithmic(axes: Axes) -> None:
    """Draws the y axis in logarithms; its numbers are plain text, as in `1e-02`."""
    from matplotlib.ticker import LogFormatter

    axes.set_yscale("log")
    axes.yaxis.set_major_formatter(LogFormatter())
    axes.yaxis.set_minor_formatter(LogFormatter())


def compose(
    panels: Sequence[Draw],
    title: str = "",
    *,
    width: float | None = None,
    height: float = PANEL_INCHES[1],
    more: Mapping[str, Artist] = MappingProxyType({}),
    share_y: bool = False,
) -> Figure:
    """Lays a figure out. Each of `panels` draws into its axes, `more` are entries of the legend that no panel has.
    `width` is that of the whole figure, `height` that of a panel, in inches.
    """
    from matplotlib import rc_context
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    across = min(len(panels), min(_COLUMNS, key=lambda columns: -len(panels) % columns))
    down = -(-len(panels) // across)
    width = width or PANEL_INCHES[0] * across
    with rc_context(_STYLE):
        figure = Figure(figsize=(width, height * down), layout="constrained")
        FigureCanvasAgg(figure)
        grid = list(figure.subplots(down, across, squeeze=False, sharey=share_y).flat)
        for axes, draw in zip(grid, panels, strict=False):
            draw(axes)
            if share_y and axes not in grid[::across]:
                axes.set_ylabel("")
            _fit(axes, width / across - _BESIDE_INCHES, height - _BESIDE_INCHES)
        for axes in grid[len(panels) :]:
            axes.set_visible(False)
        _legend_below(figure, more)
        if title:
            _title_above(figure, title)
    return figure


def _fit(axes: Axes, width: float, height: float) -> None:
    """Breaks the panel's texts into lines that fit; ticks that are words stand aslant where they do not."""
    from matplotlib.ticker import FixedLocator

    axes.set_title(wrapped(axes.get_title(), width, _POINTS))
    axes.set_xlabel(wrapped(axes.get_xlabel(), width, _POINTS))
    axes.set_ylabel(wrapped(axes.get_ylabel(), height, _POINTS))
    if isinstance(axes.xaxis.get_major_locator(), FixedLocator):
        names = [label.get_text() for label in axes.get_xticklabels()]
        if max((text_inches(name, _POINTS) for name in names), default=0.0) > 0.9 * width / max(1, len(names)):
            for label in axes.get_xticklabels():
                label.set(rotation=30, horizontalalignment="right", rotation_mode="anchor")


def _legend_below(figure: Figure, more: Mapping[str, Artist]) -> None:
    """Puts all labels, and `more`, below the panels, in as many columns as fit. The figure grows by it."""
    found = [axes.get_legend_handles_labels() for axes in figure.axes]
    handles = {label: handle for pair in found for handle, label in zip(*pair, strict=True)} | {**more}
    if not handles:
        return
    most = figure.get_figwidth() - 0.3
    names = [wrapped(name, min(most - 0.6, _LEGEND_INCHES), _POINTS) for name in handles]
    shown: dict[str, Any] = {"loc": "outside lower center", "handlelength": 2.8, "fontsize": _POINTS}
    columns = len(handles)
    while True:
        legend = figure.legend([*handles.values()], names, ncols=columns, **shown)
        box = legend.get_window_extent()
        width = box.width / figure.dpi
        if columns == 1 or width <= most:
            figure.set_figheight(figure.get_figheight() + box.height / figure.dpi + 0.1)
            return
        legend.remove()
        columns = min(columns - 1, int(columns * most / width) + 1)


def _title_above(figure: Figure, title: str) -> None:
    points = _POINTS + 1
    lines = "\n".join(wrapped(line, figure.get_figwidth() - 0.3, points) for line in title.split("\n"))
    figure.suptitle(lines, fontsize=points)
    needed = 1.5 * points / _POINTS_PER_INCH * (1 + lines.count("\n"))
    figure.set_figheight(figure.get_figheight() + needed)


def text_inches(text: str, points: float) -> float:
    """Measures how wide a line of text is."""
    from matplotlib.font_manager import FontProperties
    from matplotlib.textpath import text_to_path

    width: float = text_to_path.get_text_width_height_descent(text, FontProperties(size=points), ismath=False)[0]
    return width / _POINTS_PER_INCH


def wrapped(text: str, inches: float, points: float) -> str:
    """Breaks a text into lines of at most so many inches; words break only where they are wider than that."""
    lines = [text]
    for columns in range(len(text) - 1, 0, -1):
        if all(text_inches(line, points) <= inches for line in lines):
            break
        lines = textwrap.wrap(text, columns)
    return "\n".join(lines)


def save(figure: Figure, path: Path) -> None:
    """Writes the figure; the ending of the name says the format. Raises RunDirError."""
    write_atomic(path, _bytes_of(figure, path.suffix.lower()[1:]))


def _bytes_of(figure: Figure, form: str, **options: Any) -> bytes:
    from matplotlib import rc_context

    dates = {"pdf": {"CreationDate": None}, "svg": {"Date": None}}
    drawn = io.BytesIO()
    if form == "eps":
        _without_opacity(figure)
    with rc_context(_STYLE):
        figure.savefig(drawn, format=form, dpi=_DPI, metadata=dates.get(form), **options)
    return re.sub(rb"%%CreationDate: .*\n", b"", drawn.getvalue()) if form == "eps" else drawn.getvalue()


def _without_opacity(figure: Figure) -> None:
    """EPS knows no opacity, so colours are mixed with white, and what had some lies below all curves."""
    from matplotlib.colors import to_rgb

    for axes in figure.axes:
        colours: list[tuple[Artist, Any]] = [(band, band.get_facecolor()[0]) for band in axes.collections]
        colours += [(line, line.get_color()) for line in axes.lines]
        for artist, colour in colours:
            strength = artist.get_alpha()
            if strength is not None:
                paler = [1 - strength * (1 - share) for share in to_rgb(colour)]
                artist.set(color=paler, alpha=None, zorder=1)


def inline_svg(figure: Figure, label: str) -> str:
    """Returns the figure as an element of a page, whose style sets width, font and colours (`--series-0`, `--grid`)."""
    from html import escape

    text = _bytes_of(figure, "svg", facecolor="none").decode()
    text = re.sub(r"<metadata>.*?</metadata>|<defs>\s*<style.*?</defs>|<!--.*?-->", "", text, flags=re.DOTALL)
    text = re.sub(r'font-family: [^;"]*; | transform="rotate\(-0[^"]*"', "", text)
    text = re.sub(r' id="[\w.]+_\d+"', "", text)  # the same in every figure
    for place, colour in enumerate(COLOURS):
        text = text.replace(f": {colour}", f": var(--series-{place})")
    text = text.replace(f": {GRID}", ": var(--grid)").replace(f": {EDGE}", ": var(--edge)")
    head, _, content = text[text.index("<svg") :].partition(">")
    shape = re.search(r'viewBox="[^"]*"', head)
    links = 'xmlns:xlink="http://www.w3.org/1999/xlink"'
    return f'<svg role="img" aria-label="{escape(label)}" {shape and shape[0]} {links}>{content}'
