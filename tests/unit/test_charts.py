"""Charts of a page, read back from their SVG: ticks by hand, curves where their values are, none hidden by another."""

import math
import re
import subprocess
import sys
import xml.etree.ElementTree as ET
from pathlib import Path

import numpy as np
import pytest

from fedmpi.pages import charts, svg
from fedmpi.pages.charts import Line

Points = list[tuple[float, float]]


def elements(chart: str, kind: str) -> list[ET.Element]:
    """The paths of this class, outside the legend; also a test that the chart is well-formed."""
    drawn = ET.fromstring(f"<figure>{chart}</figure>").find("svg")
    assert drawn is not None
    return [path for path in drawn.iter("path") if (path.get("class") or "").split()[0] == kind]


def corners(path: ET.Element) -> Points:
    """The points of a path of lines, or where its markers stand."""
    places = re.findall(r"[ML](-?[\d.]+) (-?[\d.]+)", path.get("d") or "")
    return [(float(x), float(y)) for x, y in places]


def test_ticks_are_round_and_inside() -> None:
    assert svg.linear([1, 34], most=8, whole=True).ticks == [0, 5, 10, 15, 20, 25, 30, 35]
    assert svg.linear([1, 3], whole=True).ticks == [1, 2, 3]
    assert svg.linear([0.37, 0.98], most=8).ticks == [0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0]
    assert svg.linear([0, 4.1e8], svg.prefixed("B"), most=5).ticks == [0, 1e8, 2e8, 3e8, 4e8]


WHOLE: list[list[float]] = [[], [5.0], [0.0, 0.0], [-2.0], [1.0, 1e9], [1e15]]


@pytest.mark.parametrize(
    ("values", "whole"),
    [*((values, True) for values in WHOLE), *((values, False) for values in [*WHOLE, [1e-9, 2e-9]])],
)
def test_a_scale_of_few_or_odd_values(values: list[float], whole: bool) -> None:
    found = svg.linear(values, whole=whole)
    assert found.low < found.high and all(math.isfinite(share) for share in found.shares(values))
    assert all(0 <= share <= 1 for share in found.shares([*values, *found.ticks]))
    assert len(found.ticks) <= 8 and (not whole or all(tick == round(tick) for tick in found.ticks))


def test_logarithmic_ticks() -> None:
    shown = svg.logarithmic([0.5, 2e-8])
    assert [shown.shown(tick) for tick in shown.ticks] == ["10⁻⁶", "10⁻⁴", "10⁻²"]
    assert svg.logarithmic([0.58, 0.9]).ticks == [0.6, 0.7, 0.8, 0.9]
    assert svg.logarithmic([3.0]).low < 3 < svg.logarithmic([3.0]).high
    assert svg.logarithmic([1.0, 100.0]).shares([1.0, 10.0, 100.0]).tolist()[1] == pytest.approx(0.5)


def test_numbers_at_ticks() -> None:
    assert [svg.prefixed("B")(value) for value in (0, 950, 2.5e4, 2e7)] == ["0 B", "950 B", "25 kB", "20 MB"]
    assert (svg.percents(0.07), svg.plain(12500.0), svg.prefixed("")(1e9)) == ("7 %", "12,500", "1 G")


def test_a_curve_is_where_its_values_are() -> None:
    """Grid lines stand at 0.2, 0.4, 0.6, 0.8: the points of these values are at their heights."""
    chart = charts.lines([Line("", [1, 2, 3, 4], [0.2, 0.4, 0.6, 0.8])], "Accuracy", "round", y=svg.percents)
    [line] = elements(chart, "line")
    heights = {corners(grid)[0][1] for grid in elements(chart, "grid")}
    assert {y for _, y in corners(line)} <= heights
    across = np.diff([x for x, _ in corners(line)])
    assert across == pytest.approx(across[0], abs=0.11)


def test_curves_on_each_other_are_all_seen() -> None:
    """Dashes leave gaps for what is below, and no two markers stand at one point."""
    same = [Line(f"tier {place}", range(1, 41), np.linspace(0, 1, 40).tolist()) for place in range(3)]
    chart = charts.lines(same, "Accuracy", "round")
    dashes = [line.get("stroke-dasharray") for line in elements(chart, "line")]
    assert len(set(dashes)) == 3 and dashes[0] is None and all(dashes[1:])
    marked = [set(corners(mark)) for mark in elements(chart, "mark")]
    assert all(marked) and not (marked[0] & marked[1] or marked[1] & marked[2] or marked[0] & marked[2])


def test_bytes_up_stand_on_those_down() -> None:
    """10 down and 30 up: the second area begins where the first one ends, and is three times as high."""
    parts = {"down": np.array([5.0, 10.0]), "up": np.array([15.0, 30.0])}
    down, up = (corners(area) for area in elements(charts.stacked([1, 2], parts, "Bytes", svg.prefixed("B")), "area"))
    bottom, middle, top = down[1][1], down[2][1], up[2][1]
    assert (up[1][1], bottom - middle) == (middle, pytest.approx((bottom - top) / 4, abs=0.2))


def test_one_round_has_an_area() -> None:
    [area] = elements(charts.stacked([3], {"down": np.array([7.0])}, "Bytes", svg.plain), "area")
    assert len({x for x, _ in corners(area)}) == 2


def test_names_are_no_markup() -> None:
    chart = charts.lines([Line("<b>", [1], [1]), Line("&", [1], [1])], 'a "<i>"', "<u>")
    texts = "".join(ET.fromstring(f"<figure>{chart}</figure>").itertext())
    assert "<b>" in texts and "&" in texts and 'a "<i>"' in texts and "<u>" in texts


def test_squares_have_the_area_of_their_count() -> None:
    chart = charts.heat_map(np.array([[1, 0], [0, 4]]), "Examples", [0, 7])
    [squares] = elements(chart, "area")
    one, four = (float(side) for side in re.findall(r"h([\d.]+)v", squares.get("d") or ""))
    assert four == pytest.approx(2 * one, abs=0.2) and ">7</text>" in chart


def test_a_page_needs_no_matplotlib(tmp_path: Path) -> None:
    """It would take a second and a half of each run's end."""
    code = (
        "import sys; from fedmpi.command import report; code = report.main(sys.argv[1:]); "
        "sys.exit(code or 'matplotlib' in sys.modules or 'scipy' in sys.modules)"
    )
    run = tmp_path / "run"
    run.mkdir()
    (run / "config.yaml").write_text(
        "rounds: 2\nseed: 0\nmethod: {name: fedavg}\nmodel: {name: mlp}\ndata: {name: digits}\npartition: {name: iid}\n"
        "clients: {count: 4, per_round: 2}\ntrain: {local_epochs: 1, batch_size: 8}\n"
    )
    done = subprocess.run([sys.executable, "-c", code, str(run)], capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
