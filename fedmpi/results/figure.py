"""Draws all figures: panels in rows, and one legend below. Texts that are wider than their panel are broken into lines.

Lines differ by colour, dashes and marker, so that they can be told apart in grey and by the colour-blind. The same
lines give the same bytes.
"""

from __future__ import annotations

import io
import re
import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedmpi.store.files import write_atomic

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure

FORMATS = (".pdf", ".svg", ".png")
# Paul Tol, "Colour schemes", SRON/EPS/TN/09-002, 2021: black with "high-contrast", whose lightness is 0, 29, 50 and 72
# of 100; then colours of his other schemes that are far from these, and from each other, for every kind of eye.
COLOURS = ("#000000", "#004488", "#bb5566", "#ddaa33", "#0077bb", "#997700", "#88ccee", "#882255")
GRID, EDGE = "#e0e0e0", "#999999"  # those of figure.mplstyle
DASHES: tuple[Any, ...] = ("-", (0, (6, 3)), (0, (2, 2.5)), (0, (8, 3, 2, 3)))
X_LABELS = {
    "rounds": "round",
    "bytes": "communication of all clients",
    "macs": "training compute (MACs)",
    "simulated_s": "simulated time",
    "simulated_j": "simulated energy",
}
_UNITS = {"bytes": "B", "macs": "", "simulated_s": "s", "simulated_j": "J", "uploaded_parameters": ""}
_MARKERS = "osD^vPX*"
_STEPS = (1, 2, 2.5, 5, 10)
"""Multiples of these may stand at ticks."""
_MOST_MARKED = 12
"""A curve of more points than this has markers at some of its points only."""
_PANEL_INCHES = (3.4, 2.6)
_CHARACTER_INCHES = 0.55 * 9 / 72
"""A little more than the mean width of the letters of 9 points (`font.size`)."""
_BESIDE_INCHES = 1.0
"""The most of a panel's width that numbers and label of the y axis need."""
_LEGEND_INCHES = 3.4
_HANDLE_INCHES = 0.75
"""The width of a line's sample and the space beside it in a legend."""
_STYLE = Path(__file__).with_suffix(".mplstyle")
Draw = Callable[["Axes"], None]


@dataclass(frozen=True)
class Line:
    """A curve: points, and where it is a mean, the lower and upper end of its band."""

    label: str
    x: Sequence[float]
    y: Sequence[float]
    low: Sequence[float] = ()
    high: Sequence[float] = ()
    num_seeds: int = 1


def colour_of(place: int) -> str:
    return COLOURS[place % len(COLOURS)]


def draw_line(axes: Axes, line: Line, place: int) -> None:
    """Draws a curve and its band in the style of its place among the others."""
    colour = colour_of(place)
    lap = place // len(COLOURS)  # lines of one colour differ in dashes and marker
    dashes = DASHES[(place + lap) % len(DASHES)]
    marker = _MARKERS[(place + 3 * lap) % len(_MARKERS)]
    every = max(1, len(line.x) // _MOST_MARKED)
    marked = (place % every, every)  # so that no marker covers one of another curve
    axes.plot(line.x, line.y, label=line.label, color=colour, linestyle=dashes, marker=marker, markevery=marked)
    if line.low:
        axes.fill_between(line.x, line.low, line.high, color=colour, alpha=0.18, linewidth=0)


@dataclass(frozen=True)
class Panel:
    """Draws curves by their places, which decide on colour and dashes in every panel."""

    lines: Mapping[int, Line]
    x: str = "rounds"
    y: str = ""
    """What the axes' numbers are of, see `format_numbers`."""
    title: str = ""
    label: str = ""
    """The label of the y axis."""

    def __call__(self, axes: Axes) -> None:
        for place, line in self.lines.items():
            draw_line(axes, line, place)
        axes.set_title(self.title)
        axes.set_xlabel(X_LABELS.get(self.x, self.x.replace("_", " ")))
        axes.set_ylabel(self.label)
        format_numbers(axes.xaxis, self.x)
        format_numbers(axes.yaxis, self.y)


def format_numbers(axis: Axis, quantity: str) -> None:
    """Writes accuracies as `20 %`, bytes as `20 MB`, MACs as `1.5 G`, and counts as whole numbers. The y axis of what
    is `lacking` is in logarithms, with plain text as in `1e-02`. Other quantities are left to matplotlib.
    """
    from matplotlib.ticker import EngFormatter, LogFormatter, MaxNLocator, PercentFormatter

    if quantity == "accuracy":
        axis.set_major_formatter(PercentFormatter(1.0, symbol=" %"))
    elif quantity in ("rounds", "kernel", "clients"):
        axis.set_major_locator(MaxNLocator("auto", steps=_STEPS, integer=True, min_n_ticks=1))
    elif quantity in _UNITS:
        axis.set_major_formatter(EngFormatter(_UNITS[quantity]))
        axis.set_major_locator(MaxNLocator(5, steps=_STEPS))
    elif quantity == "lacking":
        axis.axes.set_yscale("log")
        axis.set_major_formatter(LogFormatter())
        axis.set_minor_formatter(LogFormatter())


def compose(
    panels: Sequence[Draw], *, width: float | None = None, height: float = _PANEL_INCHES[1], share_y: bool = False
) -> Figure:
    """Lays a figure out. Each of `panels` draws into its axes. `width` is that of the whole figure, `height` that of a
    panel, in inches.
    """
    from matplotlib import rc_context
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    most_across = 2 if len(panels) in (2, 4) else 3
    across = min(len(panels), most_across)
    down = -(-len(panels) // across)
    width = width or _PANEL_INCHES[0] * across
    with rc_context(fname=_STYLE):
        figure = Figure(figsize=(width, height * down), layout="constrained")
        FigureCanvasAgg(figure)
        grid = list(figure.subplots(down, across, squeeze=False, sharey=share_y).flat)
        for axes, draw in zip(grid, panels, strict=False):
            draw(axes)
            if share_y and axes not in grid[::across]:
                axes.set_ylabel("")
            axes.set_title(_wrapped(axes.get_title(), width / across - _BESIDE_INCHES))
            axes.set_xlabel(_wrapped(axes.get_xlabel(), width / across - _BESIDE_INCHES))
            axes.set_ylabel(_wrapped(axes.get_ylabel(), height - _BESIDE_INCHES))
        for axes in grid[len(panels) :]:
            axes.set_visible(False)
        _add_legend(figure)
    return figure


def _wrapped(text: str, inches: float) -> str:
    return textwrap.fill(text, max(1, int(inches / _CHARACTER_INCHES)))


def _add_legend(figure: Figure) -> None:
    """Puts all labels below the panels, in as many columns as fit. The figure grows by it."""
    handles: dict[str, Any] = {}
    for axes in figure.axes:
        shown, labels = axes.get_legend_handles_labels()
        handles.update(zip(labels, shown, strict=True))
    if not handles:
        return
    most = figure.get_figwidth() - 0.3
    names = [_wrapped(name, min(most - _HANDLE_INCHES, _LEGEND_INCHES)) for name in handles]
    longest = max(len(line) for name in names for line in name.split("\n"))
    columns = max(1, int(most / (longest * _CHARACTER_INCHES + _HANDLE_INCHES)))
    legend = figure.legend([*handles.values()], names, ncols=columns, loc="outside lower center")
    height_inches = legend.get_window_extent().height / figure.dpi
    figure.set_figheight(figure.get_figheight() + height_inches + 0.1)


def save(figure: Figure, path: Path) -> None:
    """Writes the figure in the format of the name's ending. Raises RunDirError."""
    write_atomic(path, _bytes_of(figure, path.suffix.lower()[1:]))


def _bytes_of(figure: Figure, form: str, **options: Any) -> bytes:
    from matplotlib import rc_context

    dates = {"pdf": {"CreationDate": None}, "svg": {"Date": None}}
    drawn = io.BytesIO()
    with rc_context(fname=_STYLE):
        figure.savefig(drawn, format=form, metadata=dates.get(form), **options)
    return drawn.getvalue()


def inline_svg(figure: Figure, label: str) -> str:
    """Returns the figure as an element of a page, whose style sets width, font and colours (`--series-0`, `--grid`)."""
    text = _bytes_of(figure, "svg", facecolor="none").decode()
    text = re.sub(r"<metadata>.*?</metadata>|<defs>\s*<style.*?</defs>|<!--.*?-->", "", text, flags=re.DOTALL)
    text = re.sub(r'font-family: [^;"]*; ', "", text)
    text = re.sub(r' id="[\w.]+_\d+"', "", text)  # the same in every figure
    variables = {colour: f"series-{place}" for place, colour in enumerate(COLOURS)} | {GRID: "grid", EDGE: "edge"}
    for colour, name in variables.items():
        text = text.replace(f": {colour}", f": var(--{name})")
    head, _, content = text[text.index("<svg") :].partition(">")
    shape = re.search(r'viewBox="[^"]*"', head)
    links = 'xmlns:xlink="http://www.w3.org/1999/xlink"'
    return f'<svg role="img" aria-label="{escape(label)}" {shape and shape[0]} {links}>{content}'
