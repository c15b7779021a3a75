"""The figures of `jobs/reproduce.py`: what is drawn, read back from the axes, against numbers by hand."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from studied_runs import asked_for, learning, named, record, write_config, write_run

from fedmpi.studies import figures
from fedmpi.studies.figures import Line, Panel
from fedmpi.studies.reproduction import Budget, Named, Request, every, find
from fedmpi.studies.tables import Archive

if TYPE_CHECKING:
    from matplotlib.axes import Axes


asked = asked_for


def figure_of(kind: str, axes: str, blocks: str, quantity: str = "accuracy", more: str = "") -> Named:
    text = f"""
source: nobody
tables:
  figure:
    {{title: A figure, kind: {kind}, quantity: {quantity}, unit: "%", axes: {{{axes}}}, {more} blocks: {{{blocks}}}}}
"""
    return named("figure", text)


def drawn(of: Named, request: Request) -> list[Axes]:
    """The panels' axes."""
    return list(figures.picture(of.table, figures.panels_of(Archive(of, request))).axes)


def points(axes: Axes, label: str) -> list[list[float]]:
    """Of the line with this label, without rounding noise."""
    [line] = [line for line in axes.get_lines() if line.get_label() == label]
    return [[round(number, 9) for number in point] for point in line.get_xydata().tolist()]


def crosses(axes: Axes) -> list[list[float]]:
    return [point for line in axes.get_lines() if line.get_marker() == "x" for point in line.get_xydata().tolist()]


def test_curves_are_means_over_the_rounds_that_all_seeds_have(asked: Request) -> None:
    """0.2 and 0.4 are 30 %, 0.5 and 0.7 are 60 %; round 2 is tested by one seed only; the band is sqrt(2 x 100) wide on
    each side. FedHM is not run: an empty legend entry is none."""
    write_run(asked, "one", 0, learning(0.2, 0.3, 0.5))
    write_run(asked, "one", 1, learning(0.4, None, 0.7))
    write_run(asked, "one", 2, learning(0.9))
    first, second = drawn(named("figure1"), asked)
    assert points(first, "FedAvg") == [[1, 30], [3, 60]] == points(second, "FedAvg")
    assert (first.get_title(), second.get_title()) == ("IID", "Non-IID")
    assert (first.get_xlabel(), first.get_ylabel()) == ("Communication round", "Top-1 (%)")
    [band] = first.collections
    low, high = 30 - 200**0.5, 30 + 200**0.5
    ends = sorted({round(y, 6) for x, y in band.get_paths()[0].vertices if x == 1})
    assert ends == pytest.approx([low, high])
    assert [text.get_text() for text in first.figure.legends[0].get_texts()] == ["FedAvg"]


@pytest.mark.parametrize(
    ("axis", "places"),
    [("mega_parameters", [15 / 1024e6, 45 / 1024e6]), ("uploaded_parameters", [5, 15]), ("bytes", [60, 180])],
)
def test_curves_by_what_was_moved_until_then(axis: str, places: list[float], asked: Request) -> None:
    """A round moves 60 bytes, 20 of them up; the second is not tested but costs."""
    write_run(asked, "one", 0, learning(0.2, None, 0.5))
    [axes] = drawn(figure_of("curves", f"x: {axis}, y: accuracy", "A: {FedAvg: {run: one, net: 1}}"), asked)
    [line] = axes.get_lines()
    assert line.get_xydata().tolist() == [[pytest.approx(places[0]), 20], [pytest.approx(places[1]), 50]]
    assert axes.get_xlabel() == axis.replace("_", " ")


def test_curves_of_kernels_by_round_and_clients_by_kernel(asked: Request) -> None:
    """Layer a needs 3.5 kernels, then 2; its kernels had 4 and 2 clients on the average of (5, 1) and (3, 3)."""
    records = []
    for number, (needed, counts) in enumerate(((3.5, [5, 1]), (2.0, [3, 3])), 1):
        layer = {"effective_kernels": needed, "clients_per_kernel": [0, 3, 5], "clients_of_kernel": counts}
        records.append(record(number, {"server": 0.5}, method={"kernels": {"a": layer}}))
    write_run(asked, "one", 0, records, rounds=2)
    block = "A: {layer a: {run: one, net: a}}"
    [axes] = drawn(figure_of("curves", "x: round, y: kernels_needed", block, "kernels_needed"), asked)
    assert points(axes, "layer a") == [[1, 3.5], [2, 2]]
    [axes] = drawn(figure_of("curves", "x: kernel, y: clients_per_kernel", block, "clients_per_kernel"), asked)
    assert points(axes, "layer a") == [[1, 4], [2, 2]]


def test_curves_over_a_setting(asked: Request) -> None:
    """Local epochs 1, 5 and 10, of which 10 is not run; what the paper prints are crosses."""
    write_run(asked, "one", 0, learning(0.6), rounds=1)
    write_run(asked, "one", 0, learning(0.4), rounds=1, overrides=("train.local_epochs=5",))
    cells = "{5: [1, 45, train.local_epochs=5], 1: [1, 65], 10: [1, 30, train.local_epochs=10]}"
    block = f"A: {{FedAvg: {{run: one, cells: {cells}}}}}"
    [axes] = drawn(figure_of("curves", "x: local_epochs, y: accuracy", block), asked)
    assert points(axes, "FedAvg") == [[1, 60], [5, 40]]
    assert sorted(crosses(axes)) == [[1, 65], [5, 45], [10, 30]]


def bars(axes: Axes) -> list[tuple[float, float]]:
    """(middle, height) of all bars, from the left."""
    found = [bar for container in axes.containers if hasattr(container, "patches") for bar in container.patches]
    return sorted((round(bar.get_x() + bar.get_width() / 2, 9), round(bar.get_height(), 9)) for bar in found)


def test_bars_of_drops_stand_in_groups_without_the_baseline(asked: Request) -> None:
    """From 0.9: to 0.8 it drops 10, to 0.85 it drops 5. Two bars a group, each 0.4 wide."""
    write_run(asked, "full", 0, learning(0.9), rounds=1)
    write_run(asked, "one", 0, learning(0.8), rounds=1)
    write_run(asked, "two", 0, learning(0.85), rounds=1)
    block = """A: {Full: {run: full, cells: {full: {net: 1}}},
                   OrthDrop: {run: one, cells: {0.2: [1, 12], 0.4: [1, lost]}},
                   PriSM: {run: two, cells: {0.2: [1, 3], 0.4: {run: other, net: 1}}}}"""
    of = figure_of("bars", "x: keep_ratio, y: accuracy_drop", block, "accuracy_drop", "baseline: Full,")
    [axes] = drawn(of, asked)
    assert bars(axes) == [(-0.2, 10), (0.2, 5), (0.8, 10)]
    assert crosses(axes) == [[-0.2, 12], [0.2, 3]]
    assert [tick.get_text() for tick in axes.get_xticklabels()] == ["0.2", "0.4"]
    assert [text.get_text() for text in axes.figure.legends[0].get_texts()] == ["OrthDrop", "PriSM", "paper"]


def test_bars_of_a_tick_of_their_own_stand_on_it(asked: Request) -> None:
    """Bytes until 50 %, by four: 60 in the first round of one, 120 for the other."""
    write_run(asked, "one", 0, learning(0.5, 0.6), rounds=2)
    write_run(asked, "two", 0, learning(0.4, 0.5), rounds=2)
    block = "A: {Original: {run: one, cells: {Original: [1, 70]}}, 1/2: {run: two, cells: {1/2: {net: 1}}}}"
    axes = "x: method, y: bytes_to_target"
    [shown] = drawn(figure_of("bars", axes, block, "bytes_to_target", "targets: {A: 0.5}, scale: 4,"), asked)
    assert bars(shown) == [(0, 15), (1, 30)] and crosses(shown) == [[0, 70]]


def test_scatter_of_accuracy_and_relative_cost(asked: Request) -> None:
    """Hermes moves 30 bytes a round, FedAvg 60; two seeds have accuracies 0.7 and 0.9."""
    for seed, accuracy in enumerate((0.7, 0.9)):
        write_run(asked, "one", seed, learning(0.5), rounds=1)
        write_run(asked, "two", seed, learning(accuracy, protocol_down_bytes=10), rounds=1)
    block = "A: {FedAvg: {run: one, cells: {a: {net: 1}}}, Hermes: {run: two, cells: {a: [1, 85.7]}}}"
    [axes] = drawn(figure_of("scatter", "x: relative_cost, y: accuracy", block, more="baseline: FedAvg,"), asked)
    assert points(axes, "FedAvg") == [[1, 50]] and points(axes, "Hermes") == [[0.5, 80]]
    assert crosses(axes) == [[0.5, 85.7]]


def test_scatter_of_accuracy_and_size(tmp_path: Path) -> None:
    """An MLP of one hidden layer of 5 on 64 numbers in 10 classes: 65 x 5 + 6 x 10 = 385."""
    config = write_config(tmp_path / "one.yaml", "method.name=fedavg", "model.name=mlp", "data.shape=[1,8,8]")
    request = Request(tmp_path, changed=("model.hidden=[5]", "data.classes=10"))
    write_run(request, str(config), 0, learning(0.5), rounds=1)
    block = f"A: {{FedAvg: {{run: {config}, cells: {{11M: {{net: 1}}}}}}}}"
    [axes] = drawn(figure_of("scatter", "x: params, y: accuracy", block), request)
    assert points(axes, "FedAvg") == [[385, 50]]


def files(of: Named, request: Request, folder: Path) -> list[str]:
    folder.mkdir()
    return figures.draw(Archive(of, request), folder)


def test_pictures_and_their_points_are_written(tmp_path: Path) -> None:
    """Nothing where nothing has been run yet; a budget stands in the picture."""
    request = Request(tmp_path, Budget(0.5, 1.0))
    assert files(named("figure1"), request, tmp_path / "none") == [] and [*(tmp_path / "none").iterdir()] == []
    write_run(request, "one", 0, learning(0.25), rounds=1)
    assert files(named("figure1"), request, tmp_path / "some") == ["figure.png", "figure.svg"]
    assert (tmp_path / "some" / "figure.png").read_bytes().startswith(b"\x89PNG")
    vector = (tmp_path / "some" / "figure.svg").read_text()
    assert "<svg" in vector and "Communication round" in vector and "rounds x 0.5" in vector
    rows = list(csv.reader((tmp_path / "some" / "figure.csv").read_text().splitlines()))
    assert rows[1:] == [["IID", "FedAvg", "ours", "1.0", "25.0", ""], ["Non-IID", "FedAvg", "ours", "1.0", "25.0", ""]]
    drawn = figures.picture(named("figure1").table, [Panel("A", ())], "a budget")
    assert drawn.get_suptitle() == "Accuracy by round\na budget"
    assert [text.get_text() for text in drawn.axes[0].texts] == ["not run"]


def test_points_of_words_are_written_as_words() -> None:
    line = Line("PriSM", ours=((1.0, 2.0, 0.5),), paper=((0.0, 3.0),))
    text = figures.comma_separated([Panel("A", (line,), ("0.2", "0.4"))])
    assert text.splitlines()[1:] == ["A,PriSM,ours,0.4,2.0,0.5", "A,PriSM,paper,0.2,3.0,"]


def test_every_figure_of_the_papers_can_be_drawn_before_anything_is_run(tmp_path: Path) -> None:
    for of in every():
        if of.table.axes is not None:
            panels = figures.panels_of(Archive(of, Request(tmp_path)))
            blocks = [*dict.fromkeys(cell.block for cell in of.table.cells)]
            assert of.table.quantity == "computed" or [panel.title for panel in panels] == blocks
    layers = figures.panels_of(Archive(find("fedhm:figure7"), Request(tmp_path)))
    assert layers[0].title.startswith("CIFAR-10 ResNet-18, Params") and [x for x, _, _ in layers[0].lines[0].ours] == [
        0,
        1,
        2,
        3,
    ]
    assert layers[0].lines[0].ours[3][1] == pytest.approx(8.394, abs=5e-4)
