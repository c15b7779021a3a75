"""`jobs/measure_pruned.py`: what it refuses. What it measures is in `tests/contract/test_hermes.py`."""

from dataclasses import replace
from pathlib import Path

import pytest
from small_runs import run_all, small_config

from fedmpi.config import yaml_text
from fedmpi.mpi.serial import SerialComm
from fedmpi.store import checkpoint
from fedmpi.store.run_dir import RunDir
from fedmpi.studies.bench import pruned


def test_only_a_hermes_run_with_a_checkpoint(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for method, told in (("fedavg", "is a run of fedavg; only Hermes"), ("hermes", "has no whole checkpoint")):
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
