"""What a terminal of 80 columns shows of runs: tables and commands keep to it, with six tiers and long names, too."""

from dataclasses import replace
from pathlib import Path

import pytest
from data_fixtures import refusal
from small_runs import small_config

from fedmpi import __main__ as command
from fedmpi.command.manners import describe_failure
from fedmpi.errors import DivergenceError, RoundError
from fedmpi.export.command import _rows
from fedmpi.mpi.communicator import SerialComm
from fedmpi.report.observer import Observers
from fedmpi.report.table_text import text_lines
from fedmpi.report.terminal import filled, folded, warn
from fedmpi.results import show
from fedmpi.running.forecast import forecast
from fedmpi.store.checkpoint import load_newest_intact
from fedmpi.store.run_dir import RunDir
from fedmpi.store.units import size

COLUMNS = 80
SIX = [f"the_tier_of_capacity_0.{number}" for number in range(6)]


def widest(text: str) -> str:
    return max(text.splitlines(), key=len)


def test_texts_that_are_too_wide() -> None:
    """A table stands below its names, and a command that makes a line too long has its own."""
    heads, lines = ("run", "a", "b"), [("x" * 78, "1", "22"), ("y", "5", "6")]
    assert text_lines(heads, lines, 1) == ["run", "  a   b", "x" * 78, "  1  22", "y", "  5   6"]
    assert text_lines(heads, lines[1:], 1, rule="-") == ["run  a  b", "---------", "y    5  6"]
    prose = "to continue in a new run from the last state, with a lower learning rate"
    assert folded(f"{prose}: python -m fedmpi.main") == f"{prose}:\n  python -m fedmpi.main"
    assert folded("to continue: x") == "to continue: x"


def test_a_plan() -> None:
    rank_ratios = "method.rank_ratio=[1,0.9,0.75,0.5,0.25,0.125]"
    plan = forecast(small_config("method.name=fedhm", rank_ratios, "clients.count=60", "rounds=100"), 99)
    large = {"params": 21_328_292, "activation_bytes": 123_456_789, "down_bytes": 85_310_000, "up_bytes": 85_310_000}
    long = [replace(tier, name=name, **large) for tier, name in zip(plan.tiers, SIX, strict=True)]
    for tiers in (plan.tiers, tuple(long)):
        text = str(replace(plan, tiers=tiers))
        assert len(widest(text)) <= COLUMNS, widest(text)
        assert all(tier.name in text and size(tier.down_bytes) in text for tier in tiers)
    assert plan.warnings


def test_the_table_of_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    names = [f"fedhm-resnet18-tinyimagenet-seed{seed}-20261123-154816" for seed in range(3)]
    long = ["interrupted", "1234567_12", "12", "5, 3", "1000/1000", "91.23 %"]
    monkeypatch.setattr(show, "runs_below", lambda folder: [RunDir(folder / name) for name in names])
    monkeypatch.setattr(show, "_status", lambda run: [run.name, *long])
    show.print_status([tmp_path])
    shown = capsys.readouterr().out
    assert len(widest(shown)) <= COLUMNS, widest(shown)
    assert all(name in shown for name in names) and "91.23 %" in shown


@pytest.mark.parametrize("name", command.COMMANDS)
def test_the_help_of_a_command(name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("COLUMNS", str(COLUMNS))
    monkeypatch.setattr("sys.argv", ["fedmpi"])
    with pytest.raises(SystemExit) as caught:
        command.main([name, "--help"])
    shown = capsys.readouterr().out
    assert caught.value.code == 0 and shown.startswith(f"usage: fedmpi {name} ")
    assert len(widest(shown)) <= COLUMNS, widest(shown)
    assert len(widest(command.overview())) <= COLUMNS


def test_a_text_of_paragraphs() -> None:
    """Paragraphs are filled, lines of a table stay apart."""
    words, table = " ".join(["word"] * 40), "  --tier NAME  the net\n  --check      " + " ".join(["all"] * 30)
    lines = filled(f"{words}\n{words}\n\n{table}").splitlines()
    assert len(widest("\n".join(lines))) <= COLUMNS
    place = lines.index("")
    assert " ".join(lines[:place]) == f"{words} {words}" and lines[place + 1] == "  --tier NAME  the net"
    assert lines[place + 2].startswith("  --check") and lines[place + 3].startswith("      all")


def test_the_end_of_a_run_that_diverged() -> None:
    error = RoundError("round 100, client 100000, stage local_training")
    error.__cause__ = DivergenceError("training diverged: " + "a parameter left its bound; " * 6)
    text = describe_failure(error, SerialComm())
    assert len(widest(text)) <= COLUMNS and "DivergenceError" in text


def test_the_end_of_a_run_by_an_error_of_the_user_s_code() -> None:
    """Its lines stay lines; the place in the code is no wider than its path."""
    error = RoundError("round 100, client 100000, stage local_training")
    try:
        raise ValueError(f"{20 * 'word '}end\n  {20 * 'more '}end")
    except ValueError as cause:
        error.__cause__ = cause
    lines = describe_failure(error, SerialComm()).splitlines()
    assert all(len(line) <= COLUMNS or line.strip().startswith(f"at {__file__}") for line in lines), lines
    assert lines[1].startswith("  cause: ValueError: word ") and "      more more " in "\n".join(lines)


def test_warnings(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Of a run, and before there is one; of an observer that raises, and of a checkpoint that is skipped."""

    class Fails:
        def run_started(self, value: object) -> None:
            raise ValueError(30 * "word ")

    Observers({"fails:Fails": Fails}).call("run_started", 1)
    (run := RunDir(Path("run"))).checkpoints_dir.mkdir(parents=True)
    run.checkpoint_path(1).write_text("no checkpoint")
    assert str(run.checkpoints_dir) in refusal(load_newest_intact, run, warn)
    shown = capsys.readouterr().err
    assert shown.count("warning: ") == 2 and "called no more" in shown and str(run.checkpoint_path(1)) in shown
    assert len(widest(shown)) <= COLUMNS, widest(shown)


def test_what_is_said_of_an_export() -> None:
    first, *rest = _rows(f"  latency    {'12.3 ms (11.1 to 14.2); ' * 8}").splitlines()
    assert rest and len(first) <= COLUMNS
    assert all(len(line) <= COLUMNS and line.startswith(" " * 13) and line[13] != " " for line in rest)
