"""`jobs/measure_pruned.py`: what it refuses. What it measures is in `tests/contract/test_hermes.py`."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from small_runs import run_all, small_config

from fedmpi.config import yaml_text
from fedmpi.mpi.serial import SerialComm
from fedmpi.store import checkpoint
from fedmpi.store.run_dir import RunDir
from fedmpi.studies.bench import pruned


@pytest.mark.parametrize(
    ("given", "told"),
    [
        (["--clients", "a"], "--clients: expected different whole numbers >= 0, as 0,1,2, got 'a'"),
        (["--clients", "1,01"], "got '1,01'"),
        (["--clients", "-1"], "got '-1'"),
        (["--clients", "0", "--all"], "--all: not allowed with argument --clients"),
        (["--batch", "1e3"], "--batch: expected a whole number >= 1 and <= 65536, got '1e3'"),
        (["--batch", "65537"], "got '65537'"),
        (["--times", "0"], "--times: expected a whole number >= 1 and <= 1000000, got '0'"),
        (["--bogus"], "unrecognized arguments: --bogus"),
        ([], "no such file"),
    ],
)
def test_mistakes_are_one_line_and_code_2(
    given: list[str], told: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert pruned.main([str(tmp_path), *given]) == 2
    assert_one_line(capsys, told)


def test_a_run_must_be_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert pruned.main([]) == 2
    assert_one_line(capsys, "required: run_dir")


def test_only_a_hermes_run_with_a_checkpoint(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for method, told in (("fedavg", "is a run of fedavg; only Hermes"), ("hermes", "has no intact checkpoint")):
        config = small_config(f"method.name={method}")
        RunDir(tmp_path).config_path.write_text(yaml_text.dump(config.to_dict()))
        assert pruned.main([str(tmp_path)]) == 2
        assert_one_line(capsys, told)


def test_other_data_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The masks were made on other examples than those that statistics would be taken of here."""
    run_all(small_config("method.name=hermes", "rounds=1"), SerialComm(), tmp_path)
    snapshot = checkpoint.load(RunDir(tmp_path).checkpoint_path(1))
    checkpoint.save(RunDir(tmp_path), replace(snapshot, data_digest="0" * 32))
    capsys.readouterr()
    assert pruned.main([str(tmp_path)]) == 2
    assert_one_line(capsys, "other data")


def assert_one_line(capsys: pytest.CaptureFixture[str], told: str) -> None:
    printed = capsys.readouterr()
    assert printed.out == "" and told in printed.err and len(printed.err.splitlines()) == 1
