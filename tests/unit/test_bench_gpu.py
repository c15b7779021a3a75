"""`jobs/bench.py gpu`: its dry run, a section that fails, and how results of pytest are read."""

from __future__ import annotations

import math
import re
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from fast import fast
from golden_file import Told

from fedmpi.studies.bench import gpu, gpu_runs, gpu_steps
from fedmpi.studies.bench.sections import DRY, Measuring, SectionError


@pytest.mark.parametrize("names", fast(["machine", "copies"], of=[["machine", "copies"], list(gpu.SECTIONS)]))
def test_a_dry_run_writes_its_sections_without_numbers(
    tmp_path: Path, names: list[str], capfd: pytest.CaptureFixture
) -> None:
    out = tmp_path / "gpu.md"
    code = gpu.main(["gpu", "--dry-run", "--only", ",".join(names), "--out", str(out)])
    assert code == 0, out.read_text()
    text, printed = out.read_text(), capfd.readouterr().out
    head, *sections = re.split(r"^## ", text, flags=re.MULTILINE)
    assert "no GPU" in head and [section.partition("\n")[0] for section in sections] == [
        gpu.SECTIONS[name].title for name in names
    ]
    for name, section in zip(names, sections, strict=True):
        assert section.rstrip().endswith(f"\nTime: {DRY}."), section
        rows = [line for line in section.splitlines() if line.startswith("| ") and "---" not in line][1:]
        assert all(row.endswith(f" {DRY} |") for row in rows), section
        assert name == "machine" or section.count(DRY) > 1
        assert section.rstrip() in printed


def test_a_section_that_fails_says_so_and_the_next_goes_on(tmp_path: Path, told: Told) -> None:
    """One ends with an error, one is not through in time, one is."""
    program = [sys.executable, "-c"]
    asked = {
        "one": ("First", [*program, "print('| a row |'); raise ValueError('what was wrong')"], 600.0),
        "two": ("Second", [*program, "import time; time.sleep(6000)"], 1.0),
        "three": ("Third", [*program, "print('| a table |')"], 600.0),
    }
    assert gpu.written(tmp_path / "out.md", "the command", asked, is_dry=True) == 1
    told((tmp_path / "out.md").read_text())


def _dry() -> Measuring:
    return gpu._measuring(gpu._arguments(["gpu", "--dry-run"]))


def test_a_section_of_bits_that_differ_fails(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture) -> None:
    digests = iter(["one", "two"])
    monkeypatch.setattr(gpu_runs, "_digest", lambda *_: (next(digests), ""))
    assert gpu._measured(gpu_runs.bits, _dry()) == 1
    said = capsys.readouterr()
    assert "`one` |" in said.out and "`two` |" in said.out and said.err == "the digests differ\n"


def test_a_run_that_fails_says_why(capfd: pytest.CaptureFixture) -> None:
    with pytest.raises(SectionError, match="1 rank.*exit code 1"):
        gpu_runs.bits(_dry().but("train.lr=1e9"))
    assert "cause: DivergenceError" in capfd.readouterr().err


def test_a_broken_import_fails_the_section_of_tests(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "tests" / "gpu").mkdir(parents=True)
    (tmp_path / "tests" / "gpu" / "test_one.py").write_text("import no_such_module")
    monkeypatch.setattr(gpu_runs, "CONFIGS", tmp_path / "configs")
    with pytest.raises(SectionError) as caught:
        gpu_runs.tests(_dry())
    line = next(line for line in caught.value.lines if "tests.gpu.test_one" in line)
    assert "ModuleNotFoundError" in line and "no_such_module" in line


def test_nothing_is_recorded_after_a_recording_that_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    first = [gpu_steps.OTHER_BITS, "", "no room"]
    answers = iter(first)
    monkeypatch.setattr(gpu_steps, "replay_steps", lambda *_: [next(answers)])
    monkeypatch.setattr(gpu_steps, "initial_values", lambda *_: None)
    data = SimpleNamespace(device=torch.device("cuda"), train_y=[0])
    replays = gpu_steps.Replays(lambda action: action)
    *found, last = [replays.begin(SimpleNamespace(data=data, net=None), tier) for tier in "abcd"]
    assert found == first and "rank ratio c " in last


def test_each_solver_is_a_row() -> None:
    rows = [line.split("|")[1].strip() for line in gpu_steps.factorization(_dry())[2:]]
    assert rows == ["gram", "exact", "auto"]


def test_the_limits_add_up_to_what_the_help_says() -> None:
    minutes = math.ceil(sum(section.limit_s for section in gpu.SECTIONS.values()) / 60)
    assert f"within {minutes} minutes" in (gpu.__doc__ or "")


def test_the_file_has_the_whole_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu, "_printed", lambda *_: ([], [], ""))
    words = ["gpu", "method.rank_ratio=[1,0.5]", "--dry-run", "--only", "speed,bits", "--out", str(tmp_path / "a.md")]
    assert gpu.main(words) == 0
    command = "python jobs/bench.py gpu 'method.rank_ratio=[1,0.5]' --dry-run --only bits,speed"
    assert (tmp_path / "a.md").read_text().splitlines()[2] == f"    {command}"


def test_numbers_are_shown_where_they_are_measured() -> None:
    assert Measuring((), is_dry=False).shown(1234.56, "{:,.1f} MB") == "1,234.6 MB"
    assert Measuring((), is_dry=True).shown(1234.56, "{:,.1f} MB") == DRY


OUTCOMES = """<testsuites><testsuite>
<testcase classname="a.b" name="one"/>
<testcase classname="a.b" name="two"><failure message="assert 1 == 2&#10;more">a trace</failure></testcase>
<testcase classname="a.b" name="three"><skipped type="pytest.skip" message="no GPU"/></testcase>
<testcase classname="a.c" name="four"><error message="at setup"/></testcase>
</testsuite></testsuites>"""


def test_outcomes_of_tests(tmp_path: Path) -> None:
    report = tmp_path / "report.xml"
    report.write_text(OUTCOMES)
    assert list(gpu_runs._outcomes(report)) == [
        ("passed", "a.b::one", ""),
        ("failed", "a.b::two", "assert 1 == 2"),
        ("skipped", "a.b::three", "no GPU"),
        ("failed", "a.c::four", "at setup"),
    ]
