"""What papers print beside our runs' numbers: quantities, tables and figures by hand, and mistakes in a file."""

from __future__ import annotations

import csv
from collections.abc import Mapping
from dataclasses import replace
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from grids import made
from pydantic import ValidationError

from fedmpi.config import yaml_text
from fedmpi.results import figure, frame, printed, printed_report
from fedmpi.results.archive import RunRecord
from fedmpi.results.grid_file import GridRun, Measure
from fedmpi.results.printed import Table

if TYPE_CHECKING:
    from matplotlib.axes import Axes

PAPER = """
table1:
  title: Accuracy
  quantity: accuracy
  unit: "%"
  of: best
  blocks:
    IID:
      FedAvg: {cells: {11M: [iid/one, 1, "90.0"]}}
      FedHM: {run: iid/two, cells: {11M: {net: 1, value: 91.25, slip: it is another}, 4M: [0.5, lost]}}
    Non-IID:
      FedHM: {run: noniid/two, cells: {11M: [1, 80.5]}}
table2:
  title: Cost
  quantity: relative_cost
  baseline: FedAvg
  blocks:
    IID:
      FedAvg: {cells: {all: [iid/one, 1]}}
      FedHM: {run: iid/two, cells: {all: [1, 0.5]}}
figure1:
  title: Accuracy by round
  quantity: accuracy
  unit: "%"
  axes: {x: rounds, x_label: Communication round, y_label: Top-1 (%)}
  blocks:
    IID: {FedAvg: [iid/one, 1], FedHM: [iid/two, 0.5]}
    Non-IID: {FedAvg: [iid/one, 1]}
figure2:
  {title: B, quantity: accuracy, unit: "%", axes: {x: uploaded_parameters, x_label: x, y_label: y}, blocks: figure1}
"""


def record(number: int, tiers: Mapping[str, float], **other: Any) -> dict[str, Any]:
    """A round that moves 40 bytes down and 20 up."""
    tested = {"tiers": {net: {"accuracy": share, "loss": 1.0} for net, share in tiers.items()}} if tiers else {}
    costs = {"protocol_down_bytes": 40, "protocol_up_bytes": 20, "training_macs": 100.0}
    return {"round": number, **tested, "train_loss": 1.0 / number, **costs, **other}


def ran(name: str, seed: int, *rounds: float | Mapping[str, float] | None, nets: Any = (), **other: Any) -> RunRecord:
    """A run of SETTING/METHOD with these accuracies of net 1, or of several nets; None for a round without a test."""
    setting, _, method = name.partition("/")
    scores = [{"1": one} if isinstance(one, float) else one or {} for one in rounds]
    records = [record(number, tiers, **other) for number, tiers in enumerate(scores, 1)]
    return made(GridRun("final", setting, method, None, seed), records=records, nets=nets)


def content(text: str = PAPER) -> Any:
    """What reports need of a grid file."""
    tables = {name: Table.model_validate(value) for name, value in yaml_text.parse(text).plain().items()}
    return SimpleNamespace(printed=tables, source="nobody, nowhere")


def test_numbers_by_hand() -> None:
    """FedAvg's best are 0.6 and 0.8: 70 and sqrt(2 x 100) = 14.14, 20 below the paper's 90. Nobody has run the last."""
    runs = [ran("iid/one", 0, 0.6, 0.5, 0.4), ran("iid/one", 1, 0.1, None, 0.8)]
    runs.append(ran("iid/two", 0, {"1": 0.9, "0.25": 0.8}, 0.95))
    table = printed_report.table(content(), "table1", runs)
    lost = "the paper's text has lost this value"
    assert table.lines == [
        ("IID", "FedAvg", "11M", "90.0", "70.00 (14.14)", "-20.00", "0,1", "3", ""),
        ("IID", "FedHM", "11M", "91.25", "95.00", "+3.75", "0", "2", "the paper's slip: it is another"),
        ("IID", "FedHM", "4M", "lost", "-", "-", "-", "2", f"{lost}; 0 of 1 seeds have this number"),
        ("Non-IID", "FedHM", "11M", "80.5", "-", "-", "-", "-", ""),
    ]
    markdown = table.markdown()
    assert "- nobody, nowhere" in markdown and "in %, best round" in markdown
    rows = list(csv.DictReader(printed_report.comma_separated(content(), runs).splitlines()))
    assert (rows[0]["ours"], rows[0]["seeds"], rows[0]["run"], rows[2]["value"]) == ("70.0", "0 1", "iid/one", "lost")
    assert {row["table"] for row in rows} == {"table1", "table2", "figure1", "figure2"}


def test_quantities_by_hand() -> None:
    """Three rounds of 60 bytes: 180 bytes are 45 parameters; 20 bytes up are 5 a round."""
    kernels = {"conv": {"effective_kernels": 7.5, "clients_per_kernel": [1, 2.5, 4], "clients_of_kernel": [4, 1]}}
    other = {"conv": {"effective_kernels": 6.5, "clients_per_kernel": [1, 1.5, 2], "clients_of_kernel": [2, 1]}}
    records = [
        record(1, {"1": 0.3, "2": 0.1}, method={"kernels": kernels}),
        record(2, {}, method={"kernels": other}),
        record(3, {"1": 0.5, "2": 0.2}, clients={"accuracy": 0.7}),
    ]
    run = made(GridRun("final", "s", "m", None, 0), records=records, seconds={"wall": 5.0, "svd": 1.0})

    def value(quantity: str, net: str = "1", **options: Any) -> float | None:
        return frame.value(run, Measure.model_validate({"quantity": quantity, "net": net, **options}))

    def points(quantity: str, net: str, x: str = "rounds") -> list[tuple[int, float, float]]:
        return list(frame.points(records, net, quantity, x).itertuples(name=None))

    assert value("accuracy") == 0.5 and value("accuracy", "clients") == 0.7 and value("accuracy", "3") is None
    assert value("accuracy", "largest") == 0.5 and value("accuracy", "smallest") == 0.2
    assert value("accuracy", "mean") == pytest.approx(0.35)
    assert value("train_loss", of="best") == pytest.approx(1 / 3)
    assert value("seconds", "") == 5.0 and value("seconds", "svd") == 1.0 and value("time_share", "svd") == 0.2
    assert value("bytes") == 180 and value("macs") == 300
    assert value("kernels_needed", "conv") == 6.5 and value("clients_per_kernel", "conv", of="best") == 2.5
    assert value("bytes_to_target", target=0.5) == 180 and value("bytes_to_target", target=0.6) is None
    assert value("macs_to_target", target=0.5) == 300 and value("macs_to_target", target=0.3) == 100
    assert value("rounds_to_target", target=0.5) == 3 and value("inference_time") is None
    late = replace(run, records=records[1:])
    assert frame.value(late, Measure(quantity="bytes_to_target", target=0.5)) is None, "a record is missing before it"
    assert points("clients_per_kernel", "conv", "kernel") == [(1, 1, 3), (2, 2, 1)]
    assert points("clients_per_kernel", "fc", "kernel") == []
    assert points("accuracy", "1", "uploaded_parameters") == [(1, 5, 0.3), (3, 15, 0.5)]
    assert points("accuracy", "1", "mega_parameters")[1] == (3, pytest.approx(45 / 1024e6), 0.5)
    assert points("train_loss", "")[1] == (2, 2, 0.5)


def test_a_target_of_the_block_in_the_unit_of_the_paper() -> None:
    """60 bytes until 0.5 of one seed, in units of 4 bytes: 15; the other seed never comes to it."""
    column = "{FedAvg: {cells: {x: [s/one, 1, 15]}}}"
    text = f"cost: {{title: t, quantity: bytes_to_target, scale: 4, targets: {{A: 0.5}}, blocks: {{A: {column}}}}}"
    runs = [ran("s/one", 0, 0.6, 0.6), ran("s/one", 1, 0.4, 0.4)]
    (reached,) = printed_report.results(content(text), "cost", runs).itertuples()
    assert (reached.ours, reached.notes) == (15, "1 of 2 seeds have this number")


def test_a_comparison_is_with_the_same_seed() -> None:
    """30 bytes a round over 60: 0.5; 90 % less 80 % are 10 points. Seed 1 has no baseline."""
    runs = [ran("iid/one", 0, 0.9, 0.9), *(ran("iid/two", seed, 0.8, 0.8, protocol_down_bytes=10) for seed in (0, 1))]
    own, fedhm = printed_report.results(content(), "table2", runs).itertuples()
    assert own.ours == 1.0 and (fedhm.seeds, fedhm.ours, fedhm.difference) == ([0], 0.5, 0)
    drop = PAPER.replace("relative_cost", "accuracy_drop").replace("title: Cost", 'title: Cost\n  unit: "%"')
    own, fedhm = printed_report.results(content(drop), "table2", runs).itertuples()
    assert own.ours == 0 and (fedhm.seeds, fedhm.ours) == ([0], pytest.approx(10))


def test_the_runs_that_the_chosen_cells_and_their_baselines_need() -> None:
    """Words stand whole: `m` is in no cell, and `iid` is nothing of Non-IID."""
    tables = content().printed
    assert printed.runs(tables, "fedhm 11m") == ["iid/two", "noniid/two"]
    assert printed.runs(tables, "table1 iid fedhm") == ["iid/two"] and printed.runs(tables, "m") == []
    assert printed.runs(tables, "table2 fedhm") == ["iid/one", "iid/two"]
    assert printed.runs(tables) == ["iid/one", "iid/two", "noniid/two"]


def test_a_baseline_is_of_the_same_row_if_there_are_several_and_may_be_a_row() -> None:
    text = """
by_column: {title: t, quantity: accuracy_drop, baseline: Full, blocks: {
  A: {Full: {cells: {x: [s/a, 1], y: [s/b, 1]}}, PriSM: {cells: {y: [s/c, 1], z: [s/d, 1]}}}}}
by_row: {title: t, quantity: relative_cost, baseline: "0.8", blocks: {
  A: {Cost: {cells: {0.3: [s/a, 1], 0.8: [s/b, 1]}}}}}
"""
    tables = content(text).printed
    for name, expected in (("by_column", ["s/a", "s/b", "s/b", "s/a"]), ("by_row", ["s/b", "s/b"])):
        cells = printed.cells_of(tables, name)
        others = [printed.baseline_of(tables[name], cells, cell) for cell in cells]
        assert [other and other.run for other in others] == expected


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        ("quantity: accuracy\n", "quantity: acuracy\n", "Input should be 'accuracy'"),
        ('"90.0"', "9o.0", "String should match"),
        ("[0.5, lost]", "[0.5, lost, 3, 4]", "4M"),
        ("cells: {all: [iid/one, 1]}", "cells: {}", "at least 1 item"),
        ("noniid/two", "noniid/tow", "no run 'noniid/tow'; expected SETTING/METHOD of this file"),
        ("baseline: FedAvg", "baseline: Whole", "'Whole' is neither a column nor a row of block 'IID'"),
        ("quantity: relative_cost", "quantity: bytes_to_target", "`targets` must name the blocks: IID"),
        ("blocks: figure1", "blocks: figure3", "no table 'figure3' that has blocks of its own"),
    ],
)
def test_mistakes_in_a_table(old: str, new: str, problem: str) -> None:
    """The words of pydantic, or of what no single key tells."""
    names = (["iid", "noniid"], ["one", "two"])
    assert list(printed.mistakes(content().printed, *names)) == []
    try:
        found = [text for _, text in printed.mistakes(content(PAPER.replace(old, new, 1)).printed, *names)]
    except ValidationError as error:
        found = str(error).splitlines()[1:3]
    assert any(problem in text for text in found), found


# Figures, read back from the axes.


def drawn(name: str, runs: list[RunRecord], text: str = PAPER) -> list[Axes]:
    return list(figure.compose(printed_report.panels_of_paper(content(text), name, runs)).axes)


def figure_of(x: str, blocks: str, quantity: str = "accuracy", more: str = "") -> str:
    axes = f"axes: {{x: {x}, x_label: x, y_label: y}}"
    return f'f: {{title: A, quantity: {quantity}, unit: "%", {axes}, {more} blocks: {{{blocks}}}}}'


def points_of(axes: Axes, label: str) -> list[list[float]]:
    """Of the lines with this label, without rounding noise."""
    lines = [line for line in axes.get_lines() if line.get_label() == label]
    return sorted([round(float(x), 9), round(float(y), 9)] for line in lines for x, y in line.get_xydata())


def test_curves_are_means_over_the_rounds_that_all_seeds_have() -> None:
    """0.2 and 0.4 are 30 %, 0.5 and 0.7 are 60 %; round 2 is tested by one seed only, a third seed is not tested yet.
    FedHM is not run. In round 1 seeds move 5 and 7.5 parameters up, in three rounds 15 and 22.5."""
    runs = [ran("iid/one", 0, 0.2, 0.3, 0.5), ran("iid/one", 1, 0.4, None, 0.7, protocol_up_bytes=30)]
    (alone, *_) = drawn("figure1", runs[:1])
    assert points_of(alone, "FedAvg") == [[1, 20], [2, 30], [3, 50]] and not alone.collections
    runs.append(ran("iid/one", 2, None, None, None))
    first, second = drawn("figure1", runs)
    assert points_of(first, "FedAvg") == [[1, 30], [3, 60]] == points_of(second, "FedAvg")
    assert points_of(drawn("figure2", runs)[0], "FedAvg") == [[6.25, 30], [18.75, 60]]
    assert (first.get_title(), first.get_xlabel(), first.get_ylabel()) == ("IID", "Communication round", "Top-1 (%)")
    [band] = first.collections
    assert {round(y, 6) for x, y in band.get_paths()[0].vertices if x == 1} == {20, 40}
    assert [text.get_text() for text in first.figure.legends[0].get_texts()] == ["FedAvg"]
    for name, some in (("figure1", []), ("table1", runs)):
        assert printed_report.panels_of_paper(content(), name, some) == []


def test_curves_by_kernel_and_over_a_setting() -> None:
    """Kernels had 4 and 2 clients on the average of (5, 1) and (3, 3). Of local epochs 1, 5 and 10 the last is not run;
    what the paper prints are crosses."""
    layers = [{"clients_of_kernel": counts, "clients_per_kernel": [0, 3, 5]} for counts in ([5, 1], [3, 3])]
    records = [record(number, {}, method={"kernels": {"a": layer}}) for number, layer in enumerate(layers, 1)]
    text = figure_of("kernel", "A: {layer a: [s/one, a]}", "clients_per_kernel")
    [axes] = drawn("f", [made(GridRun("final", "s", "one", None, 0), records=records)], text)
    assert points_of(axes, "layer a") == [[1, 4], [2, 2]]
    block = "A: {FedAvg: {cells: {5: [s/two, 1, 45], 1: [s/one, 1, 65], 10: [s/three, 1, 30]}}}"
    [axes] = drawn("f", [ran("s/one", 0, 0.6), ran("s/two", 0, 0.4)], figure_of("row", block))
    assert points_of(axes, "FedAvg") == [[1, 60], [5, 40]]
    assert points_of(axes, "paper") == [[1, 65], [5, 45], [10, 30]]


def test_rows_that_are_words_are_ticks_without_the_baseline() -> None:
    """From 0.9: to 0.8 it drops 10, to 0.85 it drops 5."""
    runs = [ran(f"s/{name}", 0, share) for name, share in {"full": 0.9, "one": 0.8, "two": 0.85}.items()]
    block = """A: {Full: {cells: {full: [s/full, 1]}}, OrthDrop: {run: s/one, cells: {few: [1, 12], many: [1, lost]}},
                   PriSM: {cells: {few: [s/two, 1, 3], many: [s/other, 1]}}}"""
    [axes] = drawn("f", runs, figure_of("row", block, "accuracy_drop", "baseline: Full,"))
    assert points_of(axes, "OrthDrop") == [[0, 10], [1, 10]] and points_of(axes, "PriSM") == [[0, 5]]
    assert points_of(axes, "paper") == [[0, 3], [0, 12]]
    assert [tick.get_text() for tick in axes.get_xticklabels()] == ["few", "many"]
    assert {text.get_text() for text in axes.figure.legends[0].get_texts()} == {"OrthDrop", "PriSM", "paper"}


def test_scatter_of_accuracy_by_cost_and_by_size() -> None:
    """One moves 60 bytes a round, the other 30: half. Its net has 385 parameters."""
    size = [{"name": "1", "params": 385}]
    runs = [ran("s/one", 0, 0.9), ran("s/two", 0, 0.8, protocol_down_bytes=10, nets=size)]
    block = "A: {FedAvg: {cells: {accuracy: [s/one, 1]}}, Hermes: {cells: {accuracy: [s/two, 1, 85.7]}}}"
    [axes] = drawn("f", runs, figure_of("relative_cost", block, more="baseline: FedAvg,"))
    assert points_of(axes, "FedAvg") == [[1, 90]] and points_of(axes, "Hermes") == [[0.5, 80]]
    assert points_of(axes, "paper") == [[0.5, 85.7]]
    assert points_of(drawn("f", runs, figure_of("params", block))[0], "Hermes") == [[385, 80]]
