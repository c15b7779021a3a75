"""The papers' values: what is on record against a few of the papers' own lines, and that the runs exist."""

import re
import subprocess
import sys
from collections import Counter
from functools import cache
from pathlib import Path

import pytest

from fedmpi import methods, papers
from fedmpi.config.address import CONFIGS
from fedmpi.config.load import load
from fedmpi.papers import Cell, PapersError, Run, parse
from fedmpi.running.start import method_context

TINY = """
source: a test
tables:
  table1:
    title: A table
    quantity: accuracy
    blocks:
      IID:
        A: {run: x/a, set: [rounds=2], cells: {1.10M: [1, 93.40], 2M: [0.5, lost, "method.q=[1]"], 3M: {run: x/b}}}
        B: {slip: another table's, cells: {1.10M: {net: clients, paper: 7, std: 0.3}}}
  figure2:
    title: A figure
    quantity: accuracy_drop
    baseline: Full
    kind: curves
    axes: {x: round, y: accuracy_drop}
    blocks:
      IID: {Full: {run: x/a}, Half: {run: x/b, net: 0.5}}
facts:
  size: {where: Table 1, what: a size, printed: 1.10, unit: M}
"""


def test_the_form() -> None:
    paper = parse("tiny", TINY, "tiny.yaml")
    table, figure = paper.tables.values()
    run, other = (Run(config="x/a", overrides=("rounds=2", *more)) for more in ((), ("method.q=[1]",)))
    assert table.cells == (
        Cell(block="IID", column="A", row="1.10M", run=run, net="1", paper="93.40"),
        Cell(block="IID", column="A", row="2M", run=other, net="0.5", paper="lost"),
        Cell(block="IID", column="A", row="3M", run=Run(config="x/b")),
        Cell(block="IID", column="B", row="1.10M", net="clients", paper="7", std=0.3, slip="another table's"),
    )
    assert [cell.paper for cell in table.cells] == [93.4, None, None, 7.0]
    assert [cell.verdict for cell in table.cells] == ["equal", "equal", "equal", "slip"]
    assert table.runs == (run, other, Run(config="x/b"))
    assert table.axes is None
    assert [(cell.column, cell.row, cell.net) for cell in figure.cells] == [("Full", "", ""), ("Half", "", "0.5")]
    assert (paper.name, table.name, paper.facts["size"].name, paper.facts["size"].printed) == (
        "tiny",
        "table1",
        "size",
        "1.10",
    )
    assert paper.cell("table1/IID/B/1.10M").printed == "7"
    with pytest.raises(KeyError):
        paper.cell("table1/IID/B/2M")


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        ("quantity: accuracy\n", "quantity: acuracy\n", "tables.table1.quantity: Input should be"),
        ("title: A table", "titel: A table", "tables.table1.titel: Extra inputs"),
        ("93.40", "93.4o", "tables.table1: IID / A / 1.10M: paper: String should match"),
        ("93.40", "nan", ", got 'nan'"),
        ("paper: 7", "printed: 7", "IID / B / 1.10M: printed: Extra inputs"),
        ("paper: 7", "paper: [7]", "IID / B / 1.10M: paper: Input should be a valid string, got ['7']"),
        ("std: 0.3", "std: inf", "IID / B / 1.10M: std: Input should be a finite number, got 'inf'"),
        ("set: [rounds=2]", "set: rounds=2", "IID.A.set: Input should be a valid list, got 'rounds=2'"),
        ('"method.q=[1]"', "switched", "IID.A.cells.2M.set.0: String should match pattern '=', got 'switched'"),
        ("{slip: another", "{set: [rounds=3], slip: another", "IID / B / 1.10M: run.config: String should have"),
        ("{run: x/b, net: 0.5}", "", "tables.figure2.blocks.IID.Half: Input should be"),
        ("{Full: {run: x/a}, Half: {run: x/b, net: 0.5}}", "", "tables.figure2.blocks.IID: Input should be"),
        (
            "    blocks:\n      IID: {Full: {run: x/a}, Half: {run: x/b, net: 0.5}}\n",
            "",
            "figure2.blocks: Field required",
        ),
        ("cells: {1.10M: {net: clients, paper: 7, std: 0.3}}", "cells: {}", "IID.B.cells: Dictionary should have"),
        ("title: A table", "title: A table\n    scale: 0", "tables.table1.scale: Input should be greater than 0"),
        ("title: A table", "title: A table\n    scale: nan", "tables.table1.scale: Input should be a finite number"),
        ("title: A table", "title: A table\n    targets: {IID: 91}", "tables.table1.targets.IID: Input should be less"),
        ("title: A table", "cells: []\n    title: A table", "tables.table1.cells: Extra inputs"),
        ("source: a test", "source: a test\nsauce: a test", "sauce: Extra inputs"),
        ("  figure2:", "  none:\n  figure2:", "tables.none: Input should be"),
        (
            "  size: {",
            "  size: 3\n  other: {",
            "facts.size: Input should be a valid dictionary or instance of Fact, got",
        ),
        ("  figure2:", "  figure2: {}\n  figure2:", "line 12: figure2 given twice"),
        ("source: a test", "[source]: a test", "line 2: a key must be text"),
        ("[1, 93.40]", "[1]", "cells.1.10M: a cell is [net, value, override ...] or a mapping, got ['1']"),
        ("[1, 93.40]", "93.40", "cells.1.10M: a cell is"),
        ("2M: [", "1.10M: [", "line 9: 1.10M given twice"),
        ("    axes: {x: round, y: accuracy_drop}\n", "", "`axes` belong to"),
        (", y: accuracy_drop", ", y: accuracy", "axes.y is accuracy, but quantity is accuracy_drop"),
        ("baseline: Full", "baseline: Whole", "baseline 'Whole' is"),
        ("quantity: accuracy\n", "quantity: bytes_to_target\n", "`targets` must name the blocks: IID"),
        ("unit: M}", "unit: M, verdict: slip}", "facts.size: `why` belongs to"),
        ("unit: M}", "unit: M, why: so}", "`why` belongs to"),
        ("unit: M}", "unit: M, verdict: slip, why: so}", "facts.size: `ours` belongs to"),
        ("unit: M}", "unit: M, ours: 1.2}", "facts.size: `ours` belongs to"),
        ("unit: M}", "unit: M, verdict: slip, why: so, ours: 1.2, unchecked: so}", "facts.size: `ours` belongs to"),
        ("[1, 93.40]", "{net: 1, paper: 93.40, ours: 9}", "IID / A / 1.10M: `ours` belongs to a slip"),
        ("paper: 7,", "paper: 7, ours: x,", "IID / B / 1.10M: ours: String should match"),
        (
            "source: a test",
            "source: a test\nsize_slips: {D A 1M: {ours: x, why: so}}",
            "size_slips.D A 1M.ours: String sh",
        ),
        ("source: a test", "", "source: Field required"),
        ("blocks:\n      IID:", "blocks: [\n      IID:", "while parsing"),
        (TINY, "- a list", "expected a mapping (source, tables, facts), got ['a list']"),
        (TINY, "", "expected a mapping (source, tables, facts), got nothing"),
        (TINY, "source: a test", "tables: Field required"),
    ],
)
def test_a_malformed_file_is_refused_in_words(old: str, new: str, problem: str) -> None:
    assert old in TINY
    with pytest.raises(PapersError) as error:
        parse("tiny", TINY.replace(old, new, 1), "tiny.yaml")
    assert error.value.text().startswith("tiny.yaml: ") and problem in error.value.text()


def test_a_file_of_ones_own(tmp_path: Path) -> None:
    (tmp_path / "own.yaml").write_text(TINY)
    assert papers.read_file(tmp_path / "own.yaml").name == "own"
    with pytest.raises(PapersError, match="cannot be read"):
        papers.read_file(tmp_path / "other.yaml")
    with pytest.raises(PapersError, match="no 'own'; allowed: fedhm, prism, hermes, fdnnc"):
        papers.read("own")


def test_reading_loads_nothing_heavy() -> None:
    code = (
        "import sys; from fedmpi import papers; [papers.read(name) for name in papers.PAPERS]; "
        "assert not {'torch', 'numpy', 'h5py'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_every_table_and_figure_of_the_papers_is_there() -> None:
    there = {paper: " ".join(sorted(papers.read(paper).tables)) for paper in papers.PAPERS}
    prism = "figure1 figure10 figure4 figure5 figure6 figure7 figure8 figure9"
    hermes = "figure10 figure11 figure2 figure6 figure7 figure8 figure9 section2_2 section5_5a section5_5b"
    assert there == {
        "fedhm": "figure2 figure3 figure4a figure4b figure7 figure8 table2 table3 table7 table8",
        "prism": f"{prism} section4_1 table1 table10 table11 table2 table3",
        "hermes": f"{hermes} table2a table2b table3",
        "fdnnc": "figure5 figure5g figure6 figure6g table3 table4",
    }


@pytest.mark.parametrize("name", ["table2", "table3"])
def test_fedhms_large_tables(name: str) -> None:
    """methods.md 2.12: six blocks of Split-Mix 4 rows, HeteroFL 4, V2 3, V3 2, FedAvg 1, FedHM 4. Rows 3 and 4 of the
    Non-IID blocks of both CIFARs are lost in the text: 2 + 2 + 1 + 0 + 0 + 2 values each."""
    table = papers.read("fedhm").tables[name]
    counts = Counter((cell.block, cell.column) for cell in table.cells)
    assert list(counts.values()) == [4, 4, 3, 2, 1, 4] * 6
    lost = Counter(cell.block for cell in table.cells if cell.lost)
    assert lost == {"CIFAR-10 Non-IID": 7, "CIFAR-100 Non-IID": 7}
    assert all(bool(cell.printed) != cell.lost for cell in table.cells)


VALUES = [
    ("fedhm", "table2/CIFAR-10 IID/Split-Mix/12.33M", "90.34", "table2.yaml@cifar10_iid_splitmix", "3.15"),
    ("fedhm", "table2/Tiny-ImageNet Non-IID/FedHM/3.33M", "51.75", "table2.yaml@tinyimagenet_noniid_fedhm", "0.125"),
    ("fedhm", "table3/CIFAR-10 IID/FedHM/11.17M", "93.46", "table3.yaml@cifar10_iid_fedhm", "1"),
    ("fedhm", "table3/CIFAR-100 Non-IID/HeteroFL-V3/3.42M", "60.06", "table3.yaml@cifar100_noniid_heterofl_v3", "0.4"),
    ("fedhm", "table3/CIFAR-10 IID/Split-Mix/1.37M", "88.30", "table3.yaml@cifar10_iid_splitmix", "0.35"),
    ("fedhm", "table7/CIFAR-10 Non-IID/FedHM-V2/1.24M", "91.25", "table7.yaml@cifar10_noniid_fedhm_v2", "0.125"),
    ("fedhm", "table8/Tiny-ImageNet IID/Low Rank Model/5.04M", "57.27", "table8.yaml@tinyimagenet_iid_lowrank", "0.25"),
    ("fedhm", "table8/CIFAR-100 IID/Width Slimming Model/3.42M", "63.07", "table3.yaml@cifar100_iid_fedavg", "1"),
    ("prism", "table2/CIFAR-10/PriSM/non-i.i.d (0.1)", "82.58", "table2.yaml@cifar10_alpha01_prism", "server"),
    ("prism", "table11/time/sub-model/0.6", "23.53", "table11.yaml@cifar10_iid_prism", "local_training"),
    ("hermes", "table2a/IC-EMNIST/Accuracy/0.5", "91.35", "figure7.yaml@femnist_natural_hermes", "clients"),
    ("hermes", "section5_5b/HAR/Per-FedAvg/HAR", "3.48", "figure7.yaml@har_natural_perfedavg", "clients"),
    ("hermes", "figure9/IC-CIFAR10/balance rate 0.5/20", "83.67", "figure9.yaml@cifar10_noniid_hermes", "clients"),
    ("fdnnc", "table3/SWITCH-HALF/50%/B-ACC", "0.6444", "table3.yaml@cifar10_iid_switch_half", "big"),
    ("fdnnc", "table4/BOTH-FULL/100%/S-ACC", "0.8946", "table4.yaml@femnist_natural_both_full", "small"),
]


@pytest.mark.parametrize(("paper", "place", "printed", "config", "net"), VALUES)
def test_values_as_the_papers_print_them(paper: str, place: str, printed: str, config: str, net: str) -> None:
    cell = papers.read(paper).cell(place)
    assert cell.run is not None
    assert (cell.printed, cell.run.config, cell.net) == (printed, f"{paper}/{config}", net)


def test_known_slips_of_accuracies_are_marked() -> None:
    """methods.md 2.11."""
    tables = papers.read("fedhm").tables
    marked = {(name, cell.block, cell.column) for name, table in tables.items() for cell in table.cells if cell.slip}
    of_tiny = {(name, "Tiny-ImageNet IID", "FedAvg") for name in ("table2", "table3")}
    of_cifar = {("table7", f"CIFAR-10 {split}", "FedHM") for split in ("IID", "Non-IID")}
    assert marked == {*of_cifar, *of_tiny, ("table8", "Tiny-ImageNet IID", "Width Slimming Model")}
    place = ("CIFAR-10 IID", "FedHM")
    dynamic, repeated = (
        {cell.row: cell.printed for cell in tables[name].cells if (cell.block, cell.column) == place}
        for name in ("table2", "table7")
    )
    assert dynamic == repeated


def test_a_text_says_no_number_of_ours() -> None:
    """Ours is in `ours`, where it is checked; what the words of a slip repeat is printed somewhere in the paper."""
    for paper in map(papers.read, papers.PAPERS):
        cells = [cell for table in paper.tables.values() for cell in table.cells]
        slips = list(paper.size_slips.values())
        said = [(part.why, part.ours) for part in [*paper.facts.values(), *slips]]
        for why, ours in [*said, *((cell.slip or cell.not_reproduced, cell.ours) for cell in cells)]:
            decimals = [number for number in re.findall(r"\d+\.\d+", why) if ours.startswith(number)]
            assert not decimals, why


@pytest.mark.parametrize("paper", papers.PAPERS)
def test_every_run_loads_and_tests_the_nets_that_its_cells_name(paper: str) -> None:
    uses = [(table, cell) for table in papers.read(paper).tables.values() for cell in table.cells if cell.run]
    for run in dict.fromkeys(cell.run for _, cell in uses):
        loaded = load(CONFIGS / run.config, run.overrides)
        own = _names_of_its_own(loaded.method.name)
        names = own if own is not None else {f"{tier:g}" for tier in loaded.method.tiers}
        assert {cell.net for table, cell in uses if cell.run == run and _names_a_net(table)} <= names | {"clients"}, run


def _names_a_net(table: papers.Table) -> bool:
    return table.quantity in ("accuracy", "accuracy_drop", "bytes_to_target", "macs_to_target")


@cache
def _names_of_its_own(method: str) -> set[str] | None:
    """What a method calls its tested nets where these are not its tiers; it does so on any data."""
    config = load(str(CONFIGS / f"{method}_digits.yaml"), ["model.name=mlp", "model.hidden=[16,16]"])
    built = methods.create(method_context(config, config.data.info()))
    names = {net.name for net in built.tested()}
    return None if names == {f"{tier:g}" for tier in config.method.tiers} else names
