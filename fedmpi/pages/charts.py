"""The charts of a page. Lines differ by colour, by dashes and by marker, so that they can be told apart in grey and by
the colour-blind; where they lie on each other, gaps and markers show those below.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedmpi.pages import svg
from fedmpi.pages.svg import Plot, Scale

_HEIGHT = 190.0


@dataclass(frozen=True)
class Line:
    """A curve: points, and where it is a mean, the lower and upper end of its band."""

    label: str
    x: Sequence[float]
    y: Sequence[float]
    low: Sequence[float] = ()
    high: Sequence[float] = ()
    x_before: Sequence[float] = ()
    y_before: Sequence[float] = ()
    """The points of the rounds that a branch has of its parent: drawn pale, without a band."""


def over_seeds(label: str, found: Iterable[tuple[int, float, float]], num_seeds: int) -> Line:
    """The mean of all seeds' (round, x, y) in the rounds that all of them have, and the lowest and the highest y."""
    by_round: dict[int, list[tuple[float, float]]] = {}
    for number, x, y in found:
        by_round.setdefault(number, []).append((x, y))
    points = [np.array(of_round) for _, of_round in sorted(by_round.items()) if len(of_round) == num_seeds]
    xs, ys = ([float(point[:, column].mean()) for point in points] for column in (0, 1))
    low, high = ([float(end(point[:, 1])) for point in points] for end in (np.min, np.max))
    return Line(label, xs, ys, low, high)


def lines(
    given: Sequence[Line],
    title: str,
    x_label: str,
    *,
    x: svg.Shown | None = None,
    y: svg.Shown = svg.plain,
    log: bool = False,
) -> str:
    """Curves with a legend below. `x` and `y` say how numbers stand at the axes: whole ones at an x axis without it;
    `log` makes the y axis logarithmic, for values above 0."""
    ys = [value for line in given for values in (line.y, line.low, line.high, line.y_before) for value in values]
    xs = [value for line in given for value in (*line.x, *line.x_before)]
    across = svg.linear(xs, most=8, whole=True) if x is None else svg.linear(xs, x)
    plot = Plot(across, svg.logarithmic(ys) if log else svg.linear(ys, y), _HEIGHT, x_label)
    bands = [
        svg.area([*plot.points(line.x, line.low), *plot.points(line.x, line.high)[::-1]], place, "band")
        for place, line in enumerate(given)
        if len(line.low)
    ]
    curves = [svg.curve(plot.points(line.x, line.y), place, len(given)) for place, line in enumerate(given)]
    pale = [
        svg.pale(plot.points([*line.x_before, *line.x[:1]], [*line.y_before, *line.y[:1]]), place)
        for place, line in enumerate(given)
        if len(line.x_before)
    ]
    legend = [(svg.of_curve(place), line.label) for place, line in enumerate(given)]
    return svg.chart(title, _HEIGHT, "".join([plot.axes(), *bands, *pale, *curves]), legend if len(given) > 1 else ())


def stacked(x: Sequence[float], parts: Mapping[str, NDArray[np.float64]], title: str, shown: svg.Shown) -> str:
    """Areas on top of each other, by round."""
    tops = [np.zeros(len(x)), *np.cumsum([*parts.values()], axis=0)]
    plot = Plot(svg.linear(x, most=8, whole=True), svg.linear([0.0, *tops[-1]], shown), _HEIGHT, "round")
    if len(x) == 1:  # a band about its tick: areas between points would have no width
        x, tops = [x[0] - 0.4, x[0] + 0.4], [np.repeat(top, 2) for top in tops]
    pairs = enumerate(itertools.pairwise(tops))
    areas = [svg.area([*plot.points(x, low), *plot.points(x, top)[::-1]], place) for place, (low, top) in pairs]
    legend = [(svg.of_area(place), name) for place, name in enumerate(parts)]
    return svg.chart(title, _HEIGHT, "".join([plot.axes(), *areas]), legend if len(parts) > 1 else ())


def bars(values: Mapping[str, float], title: str, shown: Callable[[float], str]) -> str:
    """Horizontal bars, each with its number at its end."""
    row, said = 19.0, [shown(value) for value in values.values()]
    left = svg.LETTER * max(map(len, values), default=0) + 8
    room = svg.WIDTH - left - svg.LETTER * max(map(len, said), default=0) - 6
    largest, drawn = max(values.values(), default=0.0) or 1.0, []
    for place, ((name, value), number) in enumerate(zip(values.items(), said, strict=True)):
        top, width = 4 + place * row, room * value / largest
        drawn.append(svg.text(left - 6, top + 11, name, "end", is_strong=True))
        drawn.append(
            f'<path class="area c0" d="M{svg.pixels(left)} {svg.pixels(top + 1)}h{width:.1f}v13h-{width:.1f}z"/>'
        )
        drawn.append(svg.text(left + width + 5, top + 11, number))
    return svg.chart(title, 6 + row * len(values), "".join(drawn))


def histogram(shares: NDArray[np.float64], title: str, marks: Mapping[str, float]) -> str:
    """How many clients have which accuracy; `marks` are lines with names."""
    counts, edges = np.histogram(shares, bins=np.linspace(0, 1, 21))
    across = Scale(-0.02, 1.02, [0.0, 0.2, 0.4, 0.6, 0.8, 1.0], svg.percents)
    heights = svg.linear([0.0, float(counts.max())], whole=True)
    plot = Plot(across, heights, _HEIGHT, "accuracy of a client's own net", "clients")
    drawn = [plot.axes()]
    for left, right, count in zip(edges[:-1] + 0.002, edges[1:] - 0.002, counts.tolist(), strict=True):
        if count:
            drawn.append(svg.area(plot.points([left, left, right, right], [0, count, count, 0]), 0))
    drawn += [_rule(plot, share, place) for place, share in enumerate(marks.values())]
    legend = [(svg.of_mark(place), f"{name} {100 * share:.1f} %") for place, (name, share) in enumerate(marks.items())]
    return svg.chart(title, _HEIGHT, "".join(drawn), legend)


def _rule(plot: Plot, at: float, place: int) -> str:
    """A vertical line through the whole plot."""
    x = svg.pixels(float(plot.across(at)))
    return f'<path class="rule"{svg.dashes(place)} d="M{x} {svg.pixels(plot.bottom)}V{svg.pixels(plot.top)}"/>'


def heat_map(counts: NDArray[np.int64], title: str, rows: Sequence[int]) -> str:
    """Examples by class (across) and client (down): the area of a square is the number of examples."""
    num_clients, num_classes = counts.shape
    height = 50 + 13.0 * min(max(num_clients, 5), 40)
    every, each = -(-num_clients // 20), -(-num_classes // 20)
    down = Scale(num_clients - 0.4, -0.6, range(0, num_clients, every), lambda place: str(rows[int(place)]))
    plot = Plot(Scale(-0.6, num_classes - 0.4, range(0, num_classes, each)), down, height, "class", "client")
    unit = min((plot.right - plot.left) / (num_classes + 0.2), (plot.bottom - plot.top) / (num_clients + 0.2))
    clients, classes = np.nonzero(counts)
    sides = 0.95 * unit * np.sqrt(counts[clients, classes] / max(int(counts.max(initial=1)), 1))
    corners = zip(plot.across(classes) - sides / 2, plot.down(clients) - sides / 2, sides, strict=True)
    squares = [f"M{svg.pixels(x)} {svg.pixels(y)}h{side:.1f}v{side:.1f}h-{side:.1f}z" for x, y, side in corners]
    return svg.chart(title, height, f'{plot.axes()}<path class="area c0" d="{"".join(squares)}"/>')


def spectra(values: Mapping[str, NDArray[np.float64]], r: Mapping[str, float], title: str) -> str:
    """Singular values of each layer over their place, relative to the largest; `r` are shares of the full rank."""
    floors = {name: np.maximum(sigma / max(float(sigma[0]), 1e-300), 1e-9) for name, sigma in values.items()}
    across = Scale(0, 1, [0.0, 0.2, 0.4, 0.6, 0.8, 1.0], svg.percents)
    down = svg.logarithmic(np.concatenate([*floors.values()]))
    plot = Plot(across, down, 205, "place of the singular value, in % of the full rank", "relative to the largest")
    drawn = [plot.axes()]
    for place, floor in enumerate(floors.values()):
        points = "L".join(plot.points(np.arange(1, len(floor) + 1) / len(floor), floor))
        shade = 0.25 + 0.75 * (place + 1) / len(values)
        drawn.append(f'<path class="thin c0" opacity="{shade:.2f}" d="M{points}"/>')
    drawn += [_rule(plot, at, place) for place, at in enumerate(r.values())]
    legend = [(svg.of_mark(place), f"r of tier {tier}") for place, tier in enumerate(r)]
    return svg.chart(title, 205, "".join(drawn), legend)
