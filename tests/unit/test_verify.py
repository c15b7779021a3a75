"""`python -m fedmpi.verify`: every fact has a function, the recorded verdicts hold, and a changed net is noticed."""

import math
import re
import shutil
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from types import ModuleType

import pytest
from fast import fast
from golden_file import Told

from fedmpi.models.nets import classic, cnn, lstm, resnet
from fedmpi.papers import PAPERS, Cell, Fact, Run, Verdict, parse, read
from fedmpi.verify import __main__ as command
from fedmpi.verify import nets
from fedmpi.verify.__main__ import claims_of, main
from fedmpi.verify.claims import Checks, Claim, Ours, Sample, check, claims, evaluate, is_checked


def checks_of(paper: str) -> Checks:
    return import_module(f"fedmpi.verify.paper_{paper}").CHECKS


@pytest.fixture
def nothing_built() -> Iterator[None]:
    """Nets are built anew, and again after the test."""
    forget()
    yield
    forget()


def forget() -> None:
    nets.setting.cache_clear()
    nets._PARAMS.clear()
    nets._SKELETONS.clear()
    for paper in PAPERS:
        for function in vars(import_module(f"fedmpi.verify.paper_{paper}")).values():
            getattr(function, "cache_clear", lambda: None)()


@pytest.mark.parametrize("paper", PAPERS)
def test_every_fact_has_a_function_and_every_function_a_fact(paper: str) -> None:
    record, checks = read(paper), checks_of(paper)
    assert {name for name, fact in record.facts.items() if not fact.unchecked} == set(checks.facts)
    computed = {name for name, table in record.tables.items() if table.quantity == "computed"}
    assert computed <= set(checks.cells)
    for name in checks.cells:
        assert any(cell.printed for cell in record.tables[name].cells)
        assert all(is_checked(record.tables[name], cell) for cell in record.tables[name].cells if cell.printed)
    keys = {claim.fact.name: claim for claim in claims_of(paper)}
    assert len(keys) == len(claims_of(paper))
    assert all(keys[key].fact.verdict != "equal" for key in checks.readings)


@pytest.mark.parametrize("paper", fast("fdnnc", "hermes", of=PAPERS))
def test_all_is_as_recorded(paper: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([paper]) == 0, capsys.readouterr().out
    out = capsys.readouterr().out
    assert "all as recorded" in out and "!!" not in out
    if paper == "prism":  # 9 outputs of each of 4 stages' 4 convs at r = c N: 25.555 G by hand in methods.md 5.8
        assert any(line.split()[-5:] == ["25.5", "G", "25.555055", "G", "slip"] for line in out.splitlines())


def test_what_is_not_checked_is_said(capsys: pytest.CaptureFixture[str], told: Told) -> None:
    assert main(["hermes"]) == 0
    lines = capsys.readouterr().out.splitlines()
    (at,) = [number for number, line in enumerate(lines) if "32.22 TB" in line]
    assert re.search(r"32\.22 TB +-  slip, not checked$", lines[at])
    told(lines[at + 2])
    told(lines[-1])


def test_ours_of_what_is_not_printed() -> None:
    """AlexNet: 2,469,696 of 61,100,840 parameters are in convs; 278,033 samples of 900 devices; bars of Figure 4b."""
    wanted = ("fc_share", "samples_femnist", "saved_macs_cifar100_noniid")
    claimed = [*claims_of("fdnnc"), *claims_of("fedhm")]
    ours = {claim.fact.name: claim.ours() for claim in claimed if claim.fact.name in wanted}
    assert ours["fc_share"] == pytest.approx(1 - 2_469_696 / 61_100_840)
    assert ours["samples_femnist"] == pytest.approx(308.9256, abs=1e-4)
    assert ours["saved_macs_cifar100_noniid"] == pytest.approx(1162.47 * 69 / (558.20 * 80))


def test_sizes_in_row_labels_are_facts() -> None:
    """Of Tables 2, 3, 7 and 8: 18 (17) of the methods' rows for each data set, 5 + 1 of Table 7, 8 of Table 8."""
    found = {claim.fact.name: claim for claim in claims_of("fedhm") if re.fullmatch(r".+ [\d.]+M", claim.fact.name)}
    columns = {"Split-Mix", "HeteroFL", "HeteroFL-V2", "HeteroFL-V3", "FedAvg", "FedHM"}
    columns |= {"Low Rank Model", "Width Slimming Model"}
    tiny = {key.rpartition(" ")[0].removeprefix("Tiny-ImageNet ") for key in found if key.startswith("Tiny")}
    assert tiny == columns
    assert (
        found["CIFAR-100 FedHM 3.27M"].fact.verdict == "slip" and found["CIFAR-100 FedHM 4.99M"].fact.verdict == "equal"
    )
    assert found["CIFAR-10 Low Rank Model 1.24M"].fact.where == "Table 7, Table 8, Figure 8"
    assert len(found) == 3 * (18 + 8) + 3 + 2


@pytest.mark.usefixtures("nothing_built")
def test_another_width_is_noticed(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(resnet, "STEM_WIDTH", 66)
    assert main(["prism"]) == 1
    out = capsys.readouterr().out
    assert "NOT as recorded" in out and "!! recorded as equal, " in out


@pytest.mark.usefixtures("nothing_built")
@pytest.mark.parametrize(
    ("paper", "module", "name", "other"),
    [
        ("hermes", cnn, "PLANS", {**cnn.PLANS, "lenet5": cnn.Plan((6, 16), (120, 85), 32)}),
        ("hermes", cnn, "PLANS", {**cnn.PLANS, "cnn_hermes": cnn.Plan((10, 20), (513,), 28)}),
        ("prism", cnn, "PLANS", {**cnn.PLANS, "cnn_femnist": cnn.Plan((33, 64), (), 4, same=True)}),
        ("fdnnc", classic, "HIDDEN", 4095),
        ("hermes", classic, "VGG16_STAGES", (*classic.VGG16_STAGES[:4], (512, 512, 511))),
        ("prism", lstm, "HIDDEN", 255),
    ],
)
def test_another_width_of_any_net_is_noticed(
    paper: str, module: ModuleType, name: str, other: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only the tables that the small nets are in: those of ResNets take longer."""
    tables = ("Table 3", "Table 4", "Table 5", "Table 6", "section I")
    quick = [claim for claim in claims_of(paper) if claim.fact.where in tables]
    monkeypatch.setattr(command, "claims_of", lambda name: quick)
    assert main([paper]) == 0
    forget()
    monkeypatch.setattr(module, name, other)
    assert main([paper]) == 1


@pytest.mark.usefixtures("nothing_built")
@pytest.mark.parametrize(
    ("file", "old", "new"),
    [
        ("hermes/base.yaml", "target_share: 0.3", "target_share: 0.31"),
        ("hermes/base.yaml", "count: 400", "count: 401"),
        ("hermes/base.yaml", "name: mlp_har", "name: mlp_har, hidden: [1024, 500]"),
        ("fdnnc/table3.yaml", "count: 200", "count: 199"),
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


def judged(
    printed: str,
    ours: Ours,
    verdict: Verdict = "equal",
    unit: str = "M",
    reading: Callable[[], float] | None = None,
    expected: str = "",
    within: float | None = None,
) -> str:
    said = {"printed": printed, "unit": unit, "verdict": verdict, "why": "why", "ours": expected, "within": within}
    return check(Claim(Fact.model_construct(name="key", **said), lambda: ours, reading)).problem


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
    for verdict in ("slip", "not_reproduced"):
        said = judged(printed, ours, verdict, unit)
        assert said.startswith(f"recorded as {verdict}, but" if agrees else "recorded without `ours`")


def test_a_reading_must_give_what_is_printed(told: Told) -> None:
    assert not judged("12.33", 12.36e6, "slip", reading=lambda: 9 * 1.37e6, expected="12.36")
    said = judged("12.33", 12.36e6, "slip", reading=lambda: 9 * 1.36e6, expected="12.36")
    told(said)


@pytest.mark.parametrize(
    ("ours", "expected", "is_as_recorded"),
    [
        *[(ours, "12.35844", True) for ours in (12.358440e6, 12.358441e6)],
        *[(ours, "12.35844", False) for ours in (12.35845e6, 12.36e6, float("nan"))],
        ((Sample({"m": 2}, 8),), "m*4", True),
        ((Sample({"m": 2}, 9),), "m*4", False),
    ],
)
def test_ours_must_be_what_it_was(ours: Ours, expected: str, is_as_recorded: bool) -> None:
    for verdict in ("slip", "not_reproduced"):
        said = judged("12.33" if isinstance(ours, float) else "m*2", ours, verdict, expected=expected)
        assert said.endswith(f": {expected}") != is_as_recorded == (said == "")


def test_a_difference_has_a_limit() -> None:
    """Relative to ours: 100 and 91 differ by 9 %, 109.1 and 100 by 9.1 % of 100."""
    assert not judged("91", 100e6, "not_reproduced", expected="100", within=0.09)
    assert judged("109.1", 100e6, "not_reproduced", expected="100", within=0.09).startswith("recorded as within 0.09")
    assert judged("90.9", 100e6, "slip", expected="100", within=0.09).startswith("recorded as within 0.09")


@pytest.mark.parametrize("formula", ["__import__('os')", "m.n", "m*q", "m*2.5", "m-n", "-m", "(m, n)", "m if n else m"])
def test_a_formula_is_arithmetic_only(formula: str, told: Told) -> None:
    with told.by(ValueError):
        evaluate(formula, {"m": 1, "n": 2})


def test_a_net_that_a_run_no_longer_has_has_no_size() -> None:
    run = Run(config="fedhm/table3.yaml@cifar10_iid_heterofl")
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
    assert (claim.fact.name, claim.fact.where, claim.fact.printed) == ("D A 1.10M", "A 1, B 2", "1.10")
    assert check(claim).ours == "no common value" and check(claim).problem
    sizes["y"] = sizes["x"]
    assert not check(claim).problem
