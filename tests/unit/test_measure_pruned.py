"""`jobs/measure_pruned.py`: what it refuses. What it measures is in `tests/contract/test_hermes.py`."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from small_runs import small_config

from fedmpi.config import yaml_text
from fedmpi.output import RunDir

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "jobs"))  # scripts, and no package

import measure_pruned  # noqa: E402


@pytest.mark.parametrize(
    ("given", "told"),
    [
        (["--clients", "a"], "--clients: expected different client numbers >= 0, as 0,3, got 'a'"),
        (["--clients", "1,01"], "got '1,01'"),
        (["--clients", "-1"], "got '-1'"),
        (["--clients", "0", "--all"], "--all: not allowed with argument --clients"),
        (["--batch", "1e3"], "--batch: expected a whole number from 1 to 65536, got '1e3'"),
        (["--batch", "65537"], "got '65537'"),
        (["--times", "0"], "--times: expected a whole number from 1 to 1000000, got '0'"),
        (["--bogus"], "unrecognized arguments: --bogus"),
        ([], "no such file"),
    ],
)
def test_mistakes_are_one_line_and_code_2(
    given: list[str], told: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert measure_pruned.main([str(tmp_path), *given]) == 2
    assert_one_line(capsys, told)


def test_a_run_must_be_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert measure_pruned.main([]) == 2
    assert_one_line(capsys, "required: run_dir")


def test_only_a_hermes_run_with_a_checkpoint(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for method, told in (("fedavg", "is a run of fedavg; only Hermes"), ("hermes", "has no intact checkpoint")):
        config = small_config(f"method.name={method}")
        RunDir(tmp_path).config_path.write_text(yaml_text.dump(config.to_dict()))
        assert measure_pruned.main([str(tmp_path)]) == 2
        assert_one_line(capsys, told)


def assert_one_line(capsys: pytest.CaptureFixture[str], told: str) -> None:
    printed = capsys.readouterr()
    assert printed.out == "" and told in printed.err and len(printed.err.splitlines()) == 1
