"""What `fedmpi plot` draws and writes: settings over seeds, by rounds, bytes or MACs, and their table in LaTeX.

Panels are tiers, lines are settings.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import TYPE_CHECKING

from fedmpi.errors import ConfigError
from fedmpi.pages import drawing, figure
from fedmpi.pages.prose import name_of
from fedmpi.pages.settings import Group

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

LABELS = {"rounds": "round", "bytes": "communication of all clients (B)", "macs": "training compute (MACs)"}


def drawn(groups: Sequence[Group], x: str, y: str, tiers: Sequence[str]) -> Figure:
    """A panel for each of `tiers`."""

    def panel(axes: Axes, tier: str) -> None:
        for number, group in enumerate(groups):
            if tier in group.tested:
                line = group.line(tier, x, y, group.name)
                drawing.draw_line(axes, line, number, figure.colour_of(number))
        axes.set_title(name_of(tier) if len(tiers) > 1 else "")
        axes.set_xlabel(LABELS[x])
        axes.set_ylabel(f"test {y}")
        if x == "rounds":
            drawing.whole_numbers(axes)
        else:
            drawing.with_prefix(axes)
        if y == "accuracy":
            drawing.as_percent(axes)

    return figure.composed([functools.partial(panel, tier=tier) for tier in tiers], share_y=True)


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
