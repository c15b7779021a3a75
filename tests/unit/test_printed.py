"""What papers print beside our runs' numbers: quantities, tables and figures by hand, and mistakes in a file."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from grids import made

from fedmpi.config import yaml_text
from fedmpi.config.yaml_text import Tree
from fedmpi.errors import ConfigError
from fedmpi.results import frame, grid_report, printed
from fedmpi.results.archive import RunRecord
from fedmpi.results.figure import Line
from fedmpi.results.grid_file import Grid, GridRun, Measure, grid_of
from fedmpi.results.printed import Table

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
  baseline: one
  blocks:
    IID:
      FedAvg: {cells: {all: [iid/one, 1]}}
      FedHM: {run: iid/two, cells: {all: [1, 0.5]}}
figure1:
  title: Accuracy by round
  quantity: accuracy
  unit: "%"
  x: rounds
  blocks:
    IID: {FedAvg: [iid/one, 1], FedHM: [iid/two, 0.5]}
    Non-IID: {FedAvg: [iid/one, 1]}
figure2:
  {title: B, quantity: accuracy, unit: "%", x: uploaded_parameters, blocks: figure1}
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
    tables = {name: Table.model_validate(value) for name, value in yaml_text.parse(text).value.items()}
    return SimpleNamespace(printed=tables, source="nobody, nowhere")


def test_numbers_by_hand() -> None:
    """FedAvg's best are 0.6 and 0.8: 70 and sqrt(2 x 100) = 14.14, 20 below the paper's 90. Nobody has run the last."""
    runs = [ran("iid/one", 0, 0.6, 0.5, 0.4), ran("iid/one", 1, 0.1, None, 0.8)]
    runs.append(ran("iid/two", 0, {"1": 0.9, "0.25": 0.8}, 0.95))
    table = grid_report.paper_table(content(), "table1", runs)
    lost = "the paper's text has lost this value"
    assert table.lines == [
        ("IID", "FedAvg", "11M", "90.0", "70.00 (14.14)", "-20.00", "0,1", "3", ""),
        ("IID", "FedHM", "11M", "91.25", "95.00", "+3.75", "0", "2", "the paper's slip: it is another"),
        ("IID", "FedHM", "4M", "lost", "-", "-", "-", "2", f"{lost}; 0 of 1 seeds have this number"),
        ("Non-IID", "FedHM", "11M", "80.5", "-", "-", "-", "-", ""),
    ]
    markdown = table.markdown()
    assert "- nobody, nowhere" in markdown and "in %, best round" in markdown


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
    assert points("accuracy", "1", "bytes")[1] == (3, 180, 0.5)
    assert points("train_loss", "")[1] == (2, 2, 0.5)


def test_a_target_of_the_block_in_the_unit_of_the_paper() -> None:
    """60 bytes until 0.5 of one seed, in units of 4 bytes: 15; the other seed never comes to it."""
    column = "{FedAvg: {cells: {x: [s/one, 1, 15]}}}"
    text = f"cost: {{title: t, quantity: bytes_to_target, scale: 4, targets: {{A: 0.5}}, blocks: {{A: {column}}}}}"
    runs = [ran("s/one", 0, 0.6, 0.6), ran("s/one", 1, 0.4, 0.4)]
    [line] = grid_report.paper_table(content(text), "cost", runs).lines
    assert line[4:] == ("15", "+0", "0", "2", "1 of 2 seeds have this number")


def test_a_comparison_is_with_the_same_seed() -> None:
    """30 bytes a round over 60: 0.5; 90 % less 80 % are 10 points. Seed 1 has no baseline."""
    runs = [ran("iid/one", 0, 0.9, 0.9), *(ran("iid/two", seed, 0.8, 0.8, protocol_down_bytes=10) for seed in (0, 1))]
    own, fedhm = grid_report.paper_table(content(), "table2", runs).lines
    assert own[4] == "1.0" and fedhm[4:7] == ("0.5", "+0.0", "0")
    drop = PAPER.replace("relative_cost", "accuracy_drop").replace("title: Cost", 'title: Cost\n  unit: "%"')
    own, fedhm = grid_report.paper_table(content(drop), "table2", runs).lines
    assert own[4] == "0.0" and fedhm[4:7] == ("10.0", "+9.5", "0")


def test_the_runs_that_the_chosen_cells_and_their_baselines_need() -> None:
    """Words stand whole: `m` is in no cell, and `iid` is nothing of Non-IID."""
    tables = content().printed
    assert printed.runs(tables, "fedhm 11m") == ["iid/two", "noniid/two"]
    assert printed.runs(tables, "table1 iid fedhm") == ["iid/two"] and printed.runs(tables, "m") == []
    assert printed.runs(tables, "table2 fedhm") == ["iid/one", "iid/two"]
    assert printed.runs(tables) == ["iid/one", "iid/two", "noniid/two"]


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        ("quantity: accuracy\n", "quantity: acuracy\n", "Input should be 'accuracy'"),
        ('"90.0"', "9o.0", "String should match"),
        ("[0.5, lost]", "[0.5, lost, 3, 4]", "4M"),
        ("cells: {all: [iid/one, 1]}", "cells: {}", "at least 1 item"),
        ("noniid/two", "noniid/tow", "table1.blocks  'tow' cannot stand here. Did you mean 'two'?"),
        ("baseline: one", "baseline: Whole", "table2.baseline  'Whole' cannot stand here. Allowed: one, two"),
        ("quantity: relative_cost", "quantity: bytes_to_target", "table2.targets  'IID' cannot stand here."),
        ("blocks: figure1", "blocks: figure3", "figure2.blocks  'figure3' cannot stand here. Did you mean 'figure1'?"),
    ],
)
def test_mistakes_in_a_table(old: str, new: str, problem: str) -> None:
    with pytest.raises(ConfigError) as caught:
        whole(PAPER.replace(old, new, 1))
    assert problem in caught.value.text() and whole(PAPER).printed.keys() == content().printed.keys()


def whole(tables: str) -> Grid:
    """The grid file with these tables."""
    head = yaml_text.parse("{title: A paper, seeds: [0], settings: {iid: {}, noniid: {}}, methods: {one: {}, two: {}}}")
    document = {**head.value, "printed": yaml_text.parse(tables).value}
    return grid_of(Path("paper.yaml"), Tree.of(document, "paper.yaml"))


# Figures, read back from the panels.


def points_of(line: Line) -> list[list[float]]:
    """Without rounding noise."""
    return [[round(x, 9), round(y, 9)] for x, y in zip(line.x, line.y, strict=True)]


def test_curves_are_means_over_the_rounds_that_all_seeds_have() -> None:
    """0.2 and 0.4 are 0.3, 0.5 and 0.7 are 0.6; round 2 is tested by one seed only, a third seed is not tested yet.
    FedHM is not run. In round 1 seeds move 5 and 7.5 parameters up, in three rounds 15 and 22.5."""
    runs = [ran("iid/one", 0, 0.2, 0.3, 0.5), ran("iid/one", 1, 0.4, None, 0.7, protocol_up_bytes=30)]
    (alone, *_) = grid_report.panels_of_paper(content(), "figure1", runs[:1])
    assert points_of(alone.lines[0]) == [[1, 0.2], [2, 0.3], [3, 0.5]] and not alone.lines[0].low
    runs.append(ran("iid/one", 2, None, None, None))
    first, second = grid_report.panels_of_paper(content(), "figure1", runs)
    assert points_of(first.lines[0]) == [[1, 0.3], [3, 0.6]] == points_of(second.lines[0])
    assert (first.title, first.x, first.label) == ("IID", "rounds", "accuracy") and [*first.lines] == [0]
    assert (first.lines[0].label, first.lines[0].low[0], first.lines[0].high[0]) == ("FedAvg", 0.2, 0.4)
    [uploaded, _] = grid_report.panels_of_paper(content(), "figure2", runs)
    assert points_of(uploaded.lines[0]) == [[6.25, 0.3], [18.75, 0.6]]
    for name, some in (("figure1", []), ("table1", runs)):
        assert grid_report.panels_of_paper(content(), name, some) == []


def test_curves_by_kernel() -> None:
    """Kernels had 4 and 2 clients on the average of (5, 1) and (3, 3)."""
    layers = [{"clients_of_kernel": counts, "clients_per_kernel": [0, 3, 5]} for counts in ([5, 1], [3, 3])]
    records = [record(number, {}, method={"kernels": {"a": layer}}) for number, layer in enumerate(layers, 1)]
    text = "f: {title: A, quantity: clients_per_kernel, x: kernel, blocks: {A: {layer a: [s/one, a]}}}"
    run = made(GridRun("final", "s", "one", None, 0), records=records)
    [panel] = grid_report.panels_of_paper(content(text), "f", [run])
    assert points_of(panel.lines[0]) == [[1, 4], [2, 2]]
