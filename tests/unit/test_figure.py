"""Figures: nothing is cut or covered, and their colours are told apart in grey and by the colour-blind."""

import itertools
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from fast import fast
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.text import Text

from fedmpi.results import figure
from fedmpi.results.figure import Line, Panel


def shown(drawn: Figure) -> Iterator[Text]:
    """Every text that is drawn, with tick labels."""
    for axes in drawn.axes:
        if axes.get_visible():
            yield from (axes.title, axes.xaxis.label, axes.yaxis.label, *axes.texts, *ticks(axes, 0), *ticks(axes, 1))
    yield from (text for legend in drawn.legends for text in legend.get_texts())


def ticks(axes: Axes, axis: int) -> list[Text]:
    """The labels of the x axis (0) or the y axis (1) that are in view."""
    labels = (axes.get_xticklabels, axes.get_yticklabels)[axis]()
    low, high = sorted((axes.get_xlim, axes.get_ylim)[axis]())
    return [label for label in labels if low <= label.get_position()[axis] <= high]


def check_layout(drawn: Figure) -> None:
    """No text reaches out of the figure, and the legend covers no panel."""
    drawn.draw_without_rendering()
    whole = drawn.bbox
    for text in shown(drawn):
        box = text.get_window_extent()
        inside = whole.x0 <= box.x0 and box.x1 <= whole.x1 and whole.y0 <= box.y0 and box.y1 <= whole.y1
        assert inside or not text.get_text(), f"{text.get_text()!r} is cut"
    panels = [axes for axes in drawn.axes if axes.get_visible()]
    tight = [axes.get_tightbbox() for axes in panels]
    for legend in drawn.legends:
        assert not any(panel.overlaps(legend.get_window_extent()) for panel in tight)
    assert not any(one.overlaps(other) for one, other in itertools.combinations(tight, 2))
    for axes in panels:
        height, width = (axes.get_window_extent().height / drawn.dpi, axes.get_window_extent().width / drawn.dpi)
        assert height > 1.0 and width > 1.8, "there is no room for the curves"


def test_long_names_are_broken_into_lines() -> None:
    names = [f"fedhm, train.schedule.milestones {list(range(start, 200, 20))}, seed" for start in range(10)]

    def draw(axes) -> None:
        for place, name in enumerate(names):
            figure.draw_line(axes, Line(name, [0, 1], [place, place + 1]), place)
        axes.set_title("A title that is wider than its panel is, although that has three inches and a half")
        axes.set_xlabel("communication of all clients, down and up, from the first round to this one (B)")
        axes.set_ylabel("top-1 accuracy on the test examples of all clients together")

    check_layout(figure.compose([draw, draw]))


def test_the_first_colours_are_told_apart_in_grey() -> None:
    """The lightness L* of CIELAB: by hand 0, 29, 50 and 72 of 100."""
    rgb = np.array([to_rgb(colour) for colour in figure.COLOURS[:4]])
    linear = np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4)  # sRGB, IEC 61966-2-1
    relative = linear @ [0.2126, 0.7152, 0.0722]
    lightness = np.where(relative > (6 / 29) ** 3, 116 * np.cbrt(relative) - 16, 903.3 * relative)
    assert lightness.round().tolist() == [0, 29, 50, 72]


def test_lines_of_one_colour_differ_in_dashes_and_marker() -> None:
    """21 lines, as a figure of FDNNC has."""
    axes = Figure().add_subplot()
    for place in range(21):
        figure.draw_line(axes, Line(str(place), [0], [0]), place)
    styles = [(line.get_color(), line._dash_pattern, line.get_marker()) for line in axes.get_lines()]
    assert len(set(map(str, styles))) == 21
    for one, other in itertools.combinations(styles, 2):
        assert one[0] != other[0] or (one[1] != other[1] and one[2] != other[2])


def curves(**options) -> Figure:
    ours = Line("ours", [1e8, 2e8], [0.25, 0.5], [0.2, 0.4], [0.3, 0.6])
    theirs = Line("theirs", [1e8, 2e8], [0.1, 0.2])
    panels = {"tier 1": {0: ours, 3: theirs}, "tier 0.5": {3: theirs}}
    drawn = [Panel(lines, "bytes", "accuracy", title=net) for net, lines in panels.items()]
    return figure.compose(drawn, share_y=True, **options)


def test_numbers_at_ticks() -> None:
    """Bytes read 200 MB, accuracies are percentages, rounds are whole."""
    drawn = curves(width=5.0)
    drawn.draw_without_rendering()
    assert drawn.get_figwidth() == 5.0
    left, right = drawn.axes
    assert "200 MB" in [text.get_text() for text in ticks(left, 0)]
    assert "40 %" in [text.get_text() for text in ticks(left, 1)]
    assert [axes.get_title() for axes in drawn.axes] == ["tier 1", "tier 0.5"] and right.get_ylabel() == ""
    assert left.lines[1].get_color() == right.lines[0].get_color() == figure.COLOURS[3]


@pytest.mark.parametrize("ending", fast(".svg", of=figure.FORMATS, slow=()))
def test_the_same_lines_give_the_same_bytes(tmp_path: Path, ending: str) -> None:
    path = tmp_path / f"drawn{ending}"
    figure.save(curves(), path)
    first = path.read_bytes()
    figure.save(curves(), path)
    assert path.read_bytes() == first


def test_a_chart_of_a_page_follows_its_style() -> None:
    """Its colours are the page's variables, its texts have the page's font; names are no markup."""
    drawn = figure.compose([Panel({1: Line("<b>&", [1, 2], [0.5, 1.0])}, y="loss")])
    text = figure.inline_svg(drawn, 'a "<i>"')
    root = ET.fromstring(text)
    assert "var(--series-1)" in text and figure.COLOURS[1] not in text and "font-family" not in text
    assert "<b>&" in "".join(root.itertext()) and root.get("aria-label") == 'a "<i>"'
    assert root.get("width") is None and root.get("viewBox")
