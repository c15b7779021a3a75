"""A figure for a paper: panels in rows, its title above them and one legend below, where no curve is.

Nothing is cut: texts that are wider than their place are broken into lines, and the figure grows by what its title and
its legend need. Colours are told apart in grey and by the colour-blind; lines differ by dashes and markers, too, and
bars by hatches.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from fedmpi.pages.drawing import POINTS_PER_INCH, legend_below, text_inches, wrapped
from fedmpi.store.files import write_atomic

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

FORMATS = (".pdf", ".svg", ".png", ".eps")
# Paul Tol, "Colour schemes", SRON/EPS/TN/09-002, 2021: black with "high-contrast", whose lightness is 0, 29, 50 and 72
# of 100; then colours of his other schemes that are far from these, and from each other, for every kind of eye.
COLOURS = ("#000000", "#004488", "#bb5566", "#ddaa33", "#0077bb", "#997700", "#88ccee", "#882255")
HATCHES = ("", "///", "...", "xxx", "\\\\\\", "---", "++", "oo")
PANEL_INCHES = (3.4, 2.6)
_ACROSS = (3, 2)
"""Columns of panels: what leaves fewer places empty, and of equals the first."""
_POINTS = 9
_BESIDE_INCHES = 1.0
"""Of a panel's width, what the numbers and the label of its y axis take at most."""
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
    "ytick.major.size": 0,
    "axes.facecolor": "none",
    "legend.frameon": False,
    "axes.edgecolor": "0.6",
    "axes.labelcolor": "black",
    "axes.titlecolor": "black",
    "axes.titlesize": _POINTS,
    "grid.color": "0.88",
    "xtick.color": "0.25",
    "ytick.color": "0.25",
    "text.color": "black",
    "lines.linewidth": 1.4,
    "figure.facecolor": "white",
    "savefig.facecolor": "white",
    "hatch.linewidth": 0.6,
    "pdf.fonttype": 42,  # TrueType, as publishers ask for
    "ps.fonttype": 42,
}


def colour_of(place: int) -> str:
    return COLOURS[place % len(COLOURS)]


def bar_style(place: int) -> dict[str, Any]:
    """How the bars of the `place`th label look: a fill, and a white hatch on it."""
    return {"color": colour_of(place), "hatch": HATCHES[place % len(HATCHES)], "edgecolor": "white", "linewidth": 0}


def composed(
    panels: Sequence[Callable[[Axes], None]],
    title: str = "",
    *,
    more: Mapping[str, Artist] = MappingProxyType({}),
    share_y: bool = False,
) -> Figure:
    """The figure. Each of `panels` draws into its axes; `more` are entries of the legend that no panel has."""
    from matplotlib import rc_context
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    across = min(len(panels), min(_ACROSS, key=lambda columns: -len(panels) % columns))
    down = -(-len(panels) // across)
    width, height = PANEL_INCHES[0] * across, PANEL_INCHES[1] * down
    with rc_context(_STYLE):
        figure = Figure(figsize=(width, height), layout="constrained")
        FigureCanvasAgg(figure)
        grid = list(figure.subplots(down, across, squeeze=False, sharey=share_y).flat)
        for axes, draw in zip(grid, panels, strict=False):
            draw(axes)
            if share_y and axes not in grid[::across]:
                axes.set_ylabel("")
            _fit(axes)
        for axes in grid[len(panels) :]:
            axes.set_visible(False)
        legend_below(figure, more)
        if title:
            lines = "\n".join(wrapped(line, width - 0.3, _POINTS + 1) for line in title.split("\n"))
            figure.suptitle(lines, fontsize=_POINTS + 1)
            needed = 1.5 * (_POINTS + 1) / POINTS_PER_INCH * (1 + lines.count("\n"))
            figure.set_figheight(figure.get_figheight() + needed)
    return figure


def save(figure: Figure, path: Path) -> None:
    """Writes it; the format is that of the name's ending. The same runs give the same bytes. Raises RunDirError."""
    from matplotlib import rc_context

    ending = path.suffix.lower()
    dates = {".pdf": {"CreationDate": None}, ".svg": {"Date": None}}
    drawn = io.BytesIO()
    with rc_context(_STYLE):
        figure.savefig(drawn, format=ending[1:], dpi=_DPI, metadata=dates.get(ending))
    write_atomic(path, drawn.getbuffer())


def _fit(axes: Axes) -> None:
    """Breaks the panel's texts into lines that fit; ticks that are words stand aslant where they do not."""
    from matplotlib.ticker import FixedLocator

    width, height = PANEL_INCHES[0] - _BESIDE_INCHES, PANEL_INCHES[1] - _BESIDE_INCHES
    axes.set_title(wrapped(axes.get_title(), width, _POINTS))
    axes.set_xlabel(wrapped(axes.get_xlabel(), width, _POINTS))
    axes.set_ylabel(wrapped(axes.get_ylabel(), height, _POINTS))
    if isinstance(axes.xaxis.get_major_locator(), FixedLocator):
        names = [label.get_text() for label in axes.get_xticklabels()]
        if max((text_inches(name, _POINTS) for name in names), default=0.0) > 0.9 * width / max(1, len(names)):
            for label in axes.get_xticklabels():
                label.set(rotation=30, horizontalalignment="right", rotation_mode="anchor")
