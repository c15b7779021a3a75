"""`python -m fedmpi.verify`: every fact has a function, the recorded verdicts hold, and a changed net is noticed."""

from __future__ import annotations

import math
import re
import shutil
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path

import pytest

from fedmpi.models import resnet
from fedmpi.papers import PAPERS, Cell, Run, Verdict, parse, read
from fedmpi.verify import nets
from fedmpi.verify.__main__ import claims_of, main
from fedmpi.verify.claims import Checks, Claim, Ours, Sample, check, claims, evaluate, is_checked


def checks_of(paper: str) -> Checks:
    return import_module(f"fedmpi.verify.{paper}").CHECKS


@pytest.fixture
def nothing_built() -> Iterator[None]:
    """Nets are built anew, and again after the test."""
    forget()
    yield
    forget()


def forget() -> None:
    nets.forget()
    for paper in PAPERS:
        for function in vars(import_module(f"fedmpi.verify.{paper}")).values():
            getattr(function, "cache_clear", lambda: None)()


# The record.


@pytest.mark.parametrize("paper", PAPERS)
def test_every_fact_has_a_function_and_every_function_a_fact(paper: str) -> None:
    record, checks = read(paper), checks_of(paper)
    assert {fact.id for fact in record.facts} == set(checks.facts)
    computed = {name for name, table in record.tables.items() if table.quantity == "computed"}
    assert computed <= set(checks.cells)
    for name in checks.cells:
        assert any(is_checked(record.tables[name], cell) for cell in record.tables[name].cells)
    keys = {claim.key: claim for claim in claims_of(paper)}
    assert len(keys) == len(claims_of(paper))
    assert all(keys[key].verdict != "equal" for key in checks.readings)


@pytest.mark.parametrize("paper", PAPERS)
def test_all_is_as_recorded(paper: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([paper]) == 0, capsys.readouterr().out
    out = capsys.readouterr().out
    assert "all as recorded" in out and "!!" not in out
    if paper == "prism":  # 9 outputs of each of 4 stages' 4 convs at r = c N: 25.555 G by hand in methods.md 5.8
        assert any(line.split()[-5:] == ["25.5", "G", "25.555", "G", "slip"] for line in out.splitlines())


def test_sizes_in_row_labels_are_facts() -> None:
    """Of Tables 2, 3, 7 and 8: 18 (17) of the methods' rows for each data set, 5 + 1 of Table 7, 8 of Table 8."""
    found = {claim.key: claim for claim in claims_of("fedhm") if re.fullmatch(r".+ [\d.]+M", claim.key)}
    assert {key.rpartition(" ")[0] for key in found if key.startswith("Tiny")} == {
        f"Tiny-ImageNet {column}" for column in
        ("Split-Mix", "HeteroFL", "HeteroFL-V2", "HeteroFL-V3", "FedAvg", "FedHM", "Low Rank Model",
         "Width Slimming Model")
    }  # fmt: skip
    assert found["CIFAR-100 FedHM 3.27M"].verdict == "slip" and found["CIFAR-100 FedHM 4.99M"].verdict == "equal"
    assert found["CIFAR-10 Low Rank Model 1.24M"].where == "Table 7, Table 8, Figure 8"
    assert len(found) == 3 * (18 + 8) + 3 + 2


# What changes is noticed.


@pytest.mark.usefixtures("nothing_built")
def test_another_width_is_noticed(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(resnet, "STEM_WIDTH", 66)
    assert main(["prism"]) == 1
    out = capsys.readouterr().out
    assert "NOT as recorded" in out and "!! recorded as equal, but ours is another" in out


@pytest.mark.usefixtures("nothing_built")
@pytest.mark.parametrize(
    ("file", "old", "new"),
    [
        ("hermes/base_hermes.yaml", "target_share: 0.3", "target_share: 0.31"),
        ("hermes/base_cifar10.yaml", "count: 400", "count: 401"),
        ("hermes/base_har.yaml", "name: mlp_har", "name: mlp_har, hidden: [1024, 500]"),
        ("fdnnc/base_cifar10.yaml", "count: 200", "count: 199"),
    ],
)
def test_another_value_in_a_config_is_noticed(
    file: str, old: str, new: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    paper = file.partition("/")[0]
    shutil.copytree(nets.CONFIGS / paper, tmp_path / paper)
    changed = (tmp_path / file).read_text(encoding="utf-8")
    assert old in changed
    (tmp_path / file).write_text(changed.replace(old, new, 1), encoding="utf-8")
    monkeypatch.setattr(nets, "CONFIGS", tmp_path)
    assert main([paper]) == 1


def test_mistakes_of_a_user(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert main(["fedavg"]) == 2
    assert capsys.readouterr().err == "command line: no paper 'fedavg'; allowed: fedhm, prism, hermes, fdnnc\n"
    forget()
    monkeypatch.setattr(nets, "CONFIGS", tmp_path / "absent")
    assert main(["fdnnc"]) == 2
    assert capsys.readouterr().err.endswith("absent: not found; run python -m fedmpi.verify out of the repository\n")
    forget()


# How a claim is judged.


def judged(
    printed: str, ours: Ours, verdict: Verdict = "equal", unit: str = "M", reading: Callable[[], float] | None = None
) -> str:
    return check(Claim("key", "Table 0", "a size", printed, unit, verdict, "why", lambda: ours, reading)).problem


@pytest.mark.parametrize(
    ("printed", "unit", "ours", "agrees"),
    [
        ("3.28", "M", 3_277_220.0, True),
        ("3.27", "M", 3_277_220.0, False),
        ("3.27722", "M", 3_277_220.0, True),
        ("3", "M", 3_277_220.0, True),
        (".5", "M", 501_000.0, True),
        ("0.50", "M", 506_000.0, False),
        ("55.6", "%", 0.55632, True),
        (">93", "%", 0.9301, True),
        (">93", "%", 0.93, False),
        ("2", "", float("nan"), False),
        ("m*(n+1)", "", (Sample({"m": 2, "n": 3}, 8), Sample({"m": 1, "n": 1}, 2)), True),
        ("m*(n+1)", "", (Sample({"m": 2, "n": 3}, 8), Sample({"m": 1, "n": 1}, 3)), False),
        ("m*n**2/2", "", (Sample({"m": 3, "n": 3}, 13.5),), True),
    ],
)
def test_equal_is_to_the_printed_digits(printed: str, unit: str, ours: Ours, agrees: bool) -> None:
    assert bool(judged(printed, ours, unit=unit)) != agrees
    assert bool(judged(printed, ours, "slip", unit)) == agrees
    assert bool(judged(printed, ours, "not_reproduced", unit)) == agrees


def test_a_reading_must_give_what_is_printed() -> None:
    assert not judged("12.33", 12.36e6, "slip", reading=lambda: 9 * 1.37e6)
    assert judged("12.33", 12.36e6, "slip", reading=lambda: 9 * 1.36e6) == "recorded as: why; but that gives 12.2400"


@pytest.mark.parametrize("formula", ["__import__('os')", "m.n", "m*q", "m*2.5", "m-n", "-m", "(m, n)", "m if n else m"])
def test_a_formula_is_arithmetic_only(formula: str) -> None:
    with pytest.raises(ValueError, match="is no formula of m, n"):
        evaluate(formula, {"m": 1, "n": 2})


def test_a_net_that_a_run_no_longer_has_has_no_size() -> None:
    run = Run(config="fedhm/table3_cifar10_iid_heterofl")
    sizes = [nets.params_of_cell(Cell(block="", column="", run=run, net=net)) for net in ("0.35", "0.36")]
    assert sizes[0] == 1_373_160 and math.isnan(sizes[1])  # methods.md 3.6


def test_runs_of_a_row_must_have_the_same_size() -> None:
    """Two tables print 1.10M for the same data and column; the runs behind them have nets of other sizes."""
    blocks = "{D IID: {A: {run: RUN, cells: {1.10M (x2): [1, 9]}}}}"
    table = f"{{title: T, quantity: accuracy, rows: params, blocks: {blocks}}}"
    text = f"source: S\ntables:\n  a1: {table.replace('RUN', 'x')}\n  b2: {table.replace('RUN', 'y')}\n"
    sizes = {"x": 1_100_000.0, "y": 1_100_001.0}

    def params(cell: Cell) -> float:
        assert cell.run is not None
        return sizes[cell.run.config]

    (claim,) = claims(parse("tiny", text, "tiny"), Checks(), params)
    assert (claim.key, claim.where, claim.printed) == ("D A 1.10M", "A 1, B 2", "1.10")
    assert check(claim).ours == "no common value" and check(claim).problem
    sizes["y"] = sizes["x"]
    assert not check(claim).problem
