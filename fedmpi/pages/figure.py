"""One figure for a paper, and its table in LaTeX: settings over seeds, by rounds, bytes or MACs.

Panels are tiers, lines are settings. The legend stands below the panels, where no curve is. Colours print in grey, and
lines differ by dashes and markers, too.
"""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from fedmpi.errors import ConfigError
from fedmpi.pages import charts
from fedmpi.pages.prose import name_of
from fedmpi.pages.settings import Group

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FORMATS = (".pdf", ".svg", ".png", ".eps")
LABELS = {"rounds": "round", "bytes": "communication of all clients (B)", "macs": "training compute (MACs)"}
_LABEL_COLUMNS = 40
_PANEL_INCHES = (3.4, 2.5)
_MOST_ACROSS = 3
# Okabe and Ito's, from dark to light: in grey they keep that order.
_COLOURS = ("#000000", "#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#7f7f7f")
_STYLE = {
    "font.size": 9,
    "axes.edgecolor": "0.6",
    "axes.labelcolor": "black",
    "axes.titlecolor": "black",
    "axes.titleweight": "normal",
    "axes.titlesize": 9,
    "grid.color": "0.88",
    "xtick.color": "0.25",
    "ytick.color": "0.25",
    "text.color": "black",
    "lines.linewidth": 1.4,
    "figure.facecolor": "white",
    "pdf.fonttype": 42,  # TrueType, as publishers ask for
    "ps.fonttype": 42,
}


def draw(groups: Sequence[Group], path: Path, x: str, y: str, tiers: Sequence[str]) -> None:
    """Writes the figure; its format is that of the name's ending. A panel for each of `tiers`."""
    figure = drawn(groups, x, y, tiers)
    with charts.style(**_STYLE):
        figure.savefig(path, format=path.suffix[1:], dpi=300, bbox_inches="tight", metadata=_no_date(path))


def drawn(groups: Sequence[Group], x: str, y: str, tiers: Sequence[str]) -> Figure:
    """A panel for each of `tiers`."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    across = min(len(tiers), _MOST_ACROSS)
    down = -(-len(tiers) // across)
    width, height = _PANEL_INCHES
    with charts.style(**_STYLE):
        figure = Figure(figsize=(width * across, height * down + 0.35), layout="constrained")
        FigureCanvasAgg(figure)
        panels = figure.subplots(down, across, squeeze=False, sharey=True).flatten()
        for place, axes in enumerate(panels):
            axes.set_visible(place < len(tiers))
        for axes, tier in zip(panels, tiers, strict=False):
            for place, group in enumerate(groups):
                if tier in group.tested:
                    label = textwrap.fill(group.name, _LABEL_COLUMNS)
                    line = group.line(tier, "MACs" if x == "macs" else x, y, label)
                    charts.draw_line(axes, line, place, _COLOURS[place % len(_COLOURS)])
            axes.set_title(name_of(tier) if len(tiers) > 1 else "")
            axes.set_xlabel(LABELS[x])
            if x == "rounds":
                charts.whole_numbers(axes)
            else:
                charts.with_prefix(axes, "x", "")
            if y == "accuracy":
                charts.as_percent(axes)
        for row in range(down):
            panels[row * across].set_ylabel(f"test {y}")
        named = {
            label: handle for axes in panels for handle, label in zip(*axes.get_legend_handles_labels(), strict=True)
        }
        figure.legend(
            named.values(), named.keys(), loc="outside lower center", ncols=min(4, len(named)), handlelength=2.8
        )
        return figure


def _no_date(path: Path) -> dict[str, None]:
    """The same runs give the same bytes."""
    return {".pdf": {"CreationDate": None}, ".svg": {"Date": None}}.get(path.suffix, {})


def chosen_tiers(groups: Sequence[Group], asked: Sequence[str]) -> list[str]:
    """The tiers to show: `asked`, else the first of each setting. Raises ConfigError for a name that no run has."""
    known = dict.fromkeys(tier for group in groups for tier in group.tested)
    if unknown := [tier for tier in asked if tier not in known]:
        raise ConfigError(
            "--tier", f"no run has tested {', '.join(unknown)}; allowed: {', '.join(known) or 'none yet'}"
        )
    return list(asked or dict.fromkeys(group.tested[0] for group in groups if group.tested))


def tex(groups: Sequence[Group], y: str) -> str:
    """The last values as a LaTeX table (booktabs): mean and sample standard deviation over seeds."""
    import numpy as np

    lines = [r"\begin{tabular}{llrr}", r"\toprule", rf"setting & tier & seeds & {y} \\", r"\midrule"]
    for group in groups:
        for tier in group.tested:
            values = list(group.last(tier, y).values())
            scale, unit = (100, r"\,\%") if y == "accuracy" else (1, "")
            said = f"{scale * np.mean(values):.2f}" if values else "--"
            if len(values) > 1:
                said += rf" \pm {scale * np.std(values, ddof=1):.2f}"
            lines.append(rf"{_escaped(group.name)} & {_escaped(tier)} & {len(values)} & ${said}${unit} \\")
    return "\n".join([*lines, r"\bottomrule", r"\end{tabular}", ""])


def _escaped(text: str) -> str:
    return "".join(f"\\{sign}" if sign in "&%$#_{}" else sign for sign in text)
