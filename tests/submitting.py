"""`jobs/submit.py` in this process, with a config of its own and without the squeue of this machine."""

from __future__ import annotations

from pathlib import Path

import pytest
from small_runs import small_config

from fedmpi.config import yaml_text
from fedmpi.studies.slurm import queue as slurm_queue
from fedmpi.studies.slurm import submit

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture(autouse=True)
def no_squeue(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever is installed here."""
    which = slurm_queue.shutil.which
    monkeypatch.setattr(slurm_queue.shutil, "which", lambda name: None if name == "squeue" else which(name))


@pytest.fixture(name="config")
def config_file(tmp_path: Path) -> Path:
    path = tmp_path / "mine.yaml"
    path.write_text(yaml_text.dump(small_config("method.name=fedavg").to_dict()))
    return path


def called(capsys: pytest.CaptureFixture[str], *words: str | Path) -> tuple[int, str, str]:
    code = submit.main([str(word) for word in words])
    return (code, *capsys.readouterr())
