"""`jobs/bench.py gpu`: its dry run, a section that fails, and how results of pytest are read."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest
from fast import fast
from golden_file import Told

from fedmpi.studies.bench import gpu, gpu_runs
from fedmpi.studies.bench.sections import DRY, Measuring


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
        "one": ("First", [*program, "print('lost'); raise ValueError('what was wrong')"], 600.0),
        "two": ("Second", [*program, "import time; time.sleep(6000)"], 1.0),
        "three": ("Third", [*program, "print('| a table |')"], 600.0),
    }
    assert gpu.written(tmp_path / "out.md", "the command", asked, is_dry=True) == 1
    told((tmp_path / "out.md").read_text())


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
