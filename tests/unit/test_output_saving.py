"""Saves that fail or take long, one function at a time; test_surroundings.py has whole runs."""

import errno
import os
import re
from pathlib import Path
from unittest.mock import Mock

import pytest
from data_fixtures import refusal
from golden_file import Told

from fedmpi.errors import RunDirError
from fedmpi.report.events import Events
from fedmpi.report.observer import Observers, Started
from fedmpi.report.records import Records
from fedmpi.store import files, memory
from fedmpi.store.memory import MemoryStore
from fedmpi.store.run_dir import RunDir


@pytest.mark.parametrize(("name", "stage"), [("ENOSPC", "fsync"), ("EACCES", "replace")])
def test_what_the_system_said_and_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, stage: str
) -> None:
    """One line, the old file as it was, no temporary file left."""
    number = getattr(errno, name)
    path = tmp_path / "x"
    files.write_atomic(path, b"old")
    monkeypatch.setattr(files.os, stage, Mock(side_effect=OSError(number, os.strerror(number))))
    with pytest.raises(RunDirError) as caught:
        files.write_text(path, "n" * 2000)
    text = caught.value.text()
    assert text.startswith(f"{path}: cannot be written: {os.strerror(number)}; ") and "\n" not in text
    assert text.endswith(files._ADVICE[number])
    assert bool(re.search(r"; \S+ [kMGT]?B free; ", text)) == (name == "ENOSPC")
    assert path.read_text() == "old" and [found.name for found in tmp_path.iterdir()] == ["x"]


def test_records_are_never_made_anew(run_dir: RunDir, tmp_path: Path, told: Told) -> None:
    records = Records(run_dir, resume_after=None)
    records.round_done({"round": 1})
    run_dir.records_path.rename(tmp_path / "elsewhere")
    told(refusal(records.round_done, {"round": 2}))
    assert not run_dir.records_path.exists()


def test_tensorboard_is_given_up_with_one_line(run_dir: RunDir, capsys: pytest.CaptureFixture[str]) -> None:
    observers = Observers({"TensorBoard": Events})
    observers.call("run_started", Started({}, run_dir.path, 0))
    observers.call("round_done", {"round": 1, "loss": 1.0})
    run_dir.path.rename(run_dir.path.with_name("elsewhere"))
    for number in (2, 3):
        observers.call("round_done", {"round": number, "loss": 1.0})
    errors = capsys.readouterr().err
    assert errors.count("the observer TensorBoard ") == 1 and "No such file" in errors


def test_temporaries_of_dead_writers_go(run_dir: RunDir) -> None:
    """Wherever they lie; and nothing else: not even one of a job's config, which may be written just now."""
    version = MemoryStore(run_dir).put(7, 1, {})
    stay = [run_dir.config_path, run_dir.checkpoint_path(1), run_dir.memory_path(7, *version), run_dir.path / ".mine"]
    go = [path.with_name(f".{path.name}.0123456789abcdef.tmp") for path in (*stay[:3], run_dir.records_path)]
    stay += [run_dir.path / ".mine.tmp", run_dir.path / ".submitted.yaml.0123456789abcdef.tmp"]
    for path in (*stay, *go):
        path.touch()
    run_dir.clear_temporaries()
    assert all(path.exists() for path in stay) and not any(path.exists() for path in go)


def test_a_memory_of_another_node_is_waited_for(
    run_dir: RunDir, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its folder is listed for a file system that remembers that the file was missing."""
    store = MemoryStore(run_dir)
    version = store.put(7, 1, {})
    folder = run_dir.memory_path(7, *version).parent
    folder.rename(tmp_path / "elsewhere")
    listed: list[Path] = []
    monkeypatch.setattr(memory.os, "listdir", listed.append)
    monkeypatch.setattr(memory.time, "sleep", lambda _: (tmp_path / "elsewhere").rename(folder))
    assert store.get(7, version) == {} and listed == [folder.parent, folder]
