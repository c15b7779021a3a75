"""What a terminal of 80 columns shows of runs: tables and commands keep to it, with six tiers and long names, too."""

import shlex
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from launched import unfolded
from small_runs import small_config

from fedmpi.report.table_text import text_lines
from fedmpi.report.terminal import folded, wrapped
from fedmpi.running.forecast import forecast
from fedmpi.store.units import size
from fedmpi.studies import comparison
from fedmpi.studies.comparison import Row
from fedmpi.studies.slurm import status
from fedmpi.studies.slurm.status import Status

COLUMNS = 80
SIX = [f"the_tier_of_capacity_0.{number}" for number in range(6)]


def widest(text: str) -> str:
    return max(text.splitlines(), key=len)


def test_a_table_that_is_too_wide_stands_below_its_names() -> None:
    heads, lines = ("run", "a", "b"), [("x" * 78, "1", "22"), ("x" * 78, "3", "4"), ("y", "5", "6")]
    assert text_lines(heads, lines, 1) == ["run", "  a   b", "x" * 78, "  1  22", "  3   4", "y", "  5   6"]
    assert text_lines(heads, lines[2:], 1, rule="-") == ["run  a  b", "---------", "y    5  6"]


def test_a_plan() -> None:
    rank_ratios = "method.rank_ratio=[1,0.9,0.75,0.5,0.25,0.125]"
    plan = forecast(small_config("method.name=fedhm", rank_ratios, "clients.count=60", "rounds=100"), 99)
    large = {"params": 21_328_292, "activation_bytes": 123_456_789, "down_bytes": 85_310_000, "up_bytes": 85_310_000}
    long = [replace(tier, name=name, **large) for tier, name in zip(plan.tiers, SIX, strict=True)]
    for tiers in (plan.tiers, tuple(long)):
        text = replace(plan, tiers=tiers).text("text")
        assert len(widest(text)) <= COLUMNS, widest(text)
        assert all(tier.name in text and size(tier.activation_bytes) in text for tier in tiers)
    assert plan.warnings


def test_a_comparison(capsys: pytest.CaptureFixture[str]) -> None:
    costs = {"params": 111_173_962, "macs": 123_993_536, "bytes_to_target": 148e9, "macs_to_target": 423.4e12}
    scored = {"accuracy": 0.93214, "accuracy_std": 0.1045, "seeds": 3, "seeds_at_target": 2, "rounds_to_target": 112.5}
    rows = [Row(method, tier, **scored, **costs) for method in ("fdnnc_bfirst_delta", "fedhm") for tier in SIX]
    failed = Row("fedhm", "seed 12", "unfinished after 10 of 30 rounds")
    caption = comparison.what_is_shown({"fedhm": [0, 1, 2], "fedavg": [0]}, 0.9, 0.5, ["train.lr=0.1"] * 9)
    for of in (rows[:4], [replace(row, tier=str(place)) for place, row in enumerate(rows)]):
        comparison.print_table([*of, failed], caption, sys.stdout)
        shown = capsys.readouterr().out
        assert len(widest(shown)) <= COLUMNS, widest(shown)
        assert "112.5 (2 of 3)" in shown and failed.status in shown


@pytest.mark.parametrize("branch_of", ["", "fedhm_digits-seed0@1000"])
def test_a_status(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path, branch_of: str
) -> None:
    names = [f"fedhm-resnet18-tinyimagenet-seed{seed}-20261123-154816" for seed in range(3)]
    long = Status(tmp_path, "interrupted", "1234567_12", 12, 1000, 1000, 0.9123, 7384.0, (5, 3), 36_000.0)
    runs = [replace(long, folder=tmp_path / name, branch_of=branch_of).line(tmp_path) for name in names]
    monkeypatch.setattr(status, "_lines", lambda folder: runs)
    status.print_status([tmp_path])
    shown = capsys.readouterr().out
    assert len(widest(shown)) <= COLUMNS, widest(shown)
    assert all(name in shown for name in names) and "10:00:00" in shown


@pytest.mark.parametrize("folder", ["runs/a", "a folder/it's", "x" * 100])
def test_a_command_is_one_for_a_shell(folder: str) -> None:
    """Only a word that is longer than a line alone stands out."""
    words = ["mpirun", "-n", "12", "python", "-m", "fedmpi.main", "--run-dir", f"/{folder}", "--resume", "[a, b]"] * 2
    text = shlex.join(["printf", "%s\\n", *words])
    lines = folded(text).splitlines()
    said = subprocess.run(["sh", "-c", folded(text)], capture_output=True, text=True, check=True).stdout
    assert unfolded(folded(text)) == text and said.splitlines() == words
    assert all(len(line) <= COLUMNS or (len(folder) > COLUMNS and line.strip().startswith("/x")) for line in lines)
    assert folded("to continue: x") == "to continue: x"


def test_a_number_stays_with_its_unit() -> None:
    for before in range(60, 80):
        first, *rest = wrapped(f"{'x' * before} 12.50 MB 7 % /{'y' * 90}")
        assert not first.endswith(("12.50", " 7")) and len(first) <= COLUMNS
        assert all(line.startswith("  ") for line in rest)
