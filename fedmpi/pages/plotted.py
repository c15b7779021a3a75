"""What `fedmpi plot` draws and writes: settings over seeds, by rounds, bytes or MACs, and their table in LaTeX.

Panels are tiers, lines are settings.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

from fedmpi.errors import ConfigError
from fedmpi.pages import drawing, figure
from fedmpi.pages.charts import Line
from fedmpi.pages.prose import name_of
from fedmpi.pages.settings import Group
from fedmpi.store.units import named_among

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

LABELS = {"rounds": "round", "bytes": "communication of all clients (B)", "macs": "training compute (MACs)"}


def drawn(groups: Sequence[Group], x: str, y: str, tiers: Sequence[str]) -> Figure:
    """A panel for each of `tiers`, as `chosen_tiers` has them. Raises ConfigError where a panel would be empty."""
    panels = [_Panel(tier, [*_lines(groups, tier, x, y)]) for tier in tiers]
    _refuse_empty(panels, x)

    def draw(axes: Axes, panel: _Panel) -> None:
        for place, line in panel.lines:
            drawing.draw_line(axes, line, place, figure.colour_of(place))
        axes.set_title(name_of(panel.tier) if len(panels) > 1 else "")
        axes.set_xlabel(LABELS[x])
        # One panel has no title: a paper's caption is one. What is tested stands beside the axis.
        axes.set_ylabel(f"test {y}" if len(panels) > 1 else f"test {y}, {name_of(panel.tier)}")
        if x == "rounds":
            drawing.whole_numbers(axes)
        else:
            drawing.with_prefix(axes)
        if y == "accuracy":
            drawing.as_percent(axes)

    return figure.composed([functools.partial(draw, panel=panel) for panel in panels], share_y=True)


class _Panel(NamedTuple):
    tier: str
    lines: Sequence[tuple[int, Line]]
    """With the place of the setting, which decides on colour and dashes in every panel."""


def _lines(groups: Sequence[Group], tier: str, x: str, y: str) -> Iterator[tuple[int, Line]]:
    for place, group in enumerate(groups):
        seeds = len(group.last(tier, y))
        line = group.line(tier, x, y, group.name + f", mean of {seeds} seeds" * (seeds > 1))
        if line.x:
            yield place, line


def _refuse_empty(panels: Sequence[_Panel], x: str) -> None:
    for panel in panels:
        if not panel.lines:
            raise ConfigError("--tier", f"{panel.tier}: its seeds have no tested round in common; draw one of them")
    if not any(place for panel in panels for _, line in panel.lines for place in line.x):
        raise ConfigError("--x", f"these runs have no {x}, so all points would stand at 0; draw by rounds")


def chosen_tiers(groups: Sequence[Group], asked: Sequence[str], y: str = "accuracy") -> list[str]:
    """The tiers to show: `asked`, else of each setting the first that has a `y`; empty where no round was tested.

    Raises ConfigError for a name without a `y` in any run, and for a setting without any.
    """
    known = dict.fromkeys(tier for group in groups for tier in group.recorded(y))
    without = [group.name for group in groups if group.tested and not group.recorded(y)]
    if without and not (asked and known):
        why = f"{', '.join(without)}: clients' own nets are tested for accuracy alone"
        raise ConfigError("--y", f"no {y} was recorded of {why}; draw the accuracy, or leave these runs out")
    chosen = {tier: named_among(tier, known) for tier in asked}
    if unknown := [tier for tier, name in chosen.items() if name is None]:
        allowed = ", ".join(known) or "none yet"
        raise ConfigError("--tier", f"no {y} was recorded of {', '.join(unknown)}; allowed: {allowed}")
    first = (group.recorded(y)[0] for group in groups if group.recorded(y))
    return list(dict.fromkeys([name for name in chosen.values() if name] or first))


def tex(groups: Sequence[Group], y: str) -> str:
    """The last values as a LaTeX table (booktabs): mean and sample standard deviation over seeds, and their rounds."""
    import numpy as np

    lines = [r"\begin{tabular}{llrrr}", r"\toprule", rf"setting & tier & seeds & round & test {y} \\", r"\midrule"]
    for group in groups:
        for tier in group.recorded(y):
            rounds, values = zip(*group.ends(tier, y).values(), strict=True)
            scale, digits, unit = (100, 2, r"\,\%") if y == "accuracy" else (1, 3, "")
            said = f"{scale * np.mean(values):.{digits}f}"
            if len(values) > 1:
                said += rf" \pm {scale * np.std(values, ddof=1):.{digits}f}"
            ends = map(str, sorted({min(rounds), max(rounds)}))
            cells = [_escaped(group.name), _escaped(tier), str(len(values)), "--".join(ends)]
            lines.append(rf"{' & '.join(cells)} & ${said}${unit} \\")
    note = "Values of each run's last tested round"
    if any(r"\pm" in line for line in lines):
        note += r"; mean $\pm$ sample standard deviation over seeds"
    lines += [r"\bottomrule", rf"\multicolumn{{5}}{{l}}{{\footnotesize {note}.}} \\"]
    return "\n".join([*lines, r"\end{tabular}", ""])


def _escaped(text: str) -> str:
    return "".join(f"\\{sign}" if sign in "&%$#_{}" else sign for sign in text)
