"""Saves that fail or take long, one function at a time; test_surroundings.py has whole runs."""

import errno
import os
import re
from pathlib import Path
from types import SimpleNamespace

import failing_disk
import pytest
from golden_file import Told
from hand_clock import HandClock

from fedmpi.disk.plain import temporary_name
from fedmpi.errors import RunDirError
from fedmpi.report.events import Events
from fedmpi.report.observer import Started
from fedmpi.report.records import Records, read_records
from fedmpi.running.observers import Observed, Observers
from fedmpi.store import files
from fedmpi.store.memory import MemoryStore
from fedmpi.store.run_dir import RunDir
from fedmpi.store.saving import Saving


@pytest.mark.parametrize("name", sorted(errno.errorcode[number] for number in files._ADVICE))
def test_what_the_system_said_and_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """One line, the old file as it was, no temporary file left."""
    number = getattr(errno, name)
    path = tmp_path / "x"
    files.write_atomic(path, b"o", memoryview(b"ld"))
    failing_disk.fail(monkeypatch, number, lambda path: True)
    with pytest.raises(RunDirError) as caught:
        files.write_text(path, "n" * 2000)
    text = caught.value.text()
    assert text.startswith(f"{path}: cannot be written: {os.strerror(number)}; ") and "\n" not in text
    assert text.endswith(files._ADVICE[number])
    is_full = number in (errno.ENOSPC, errno.EDQUOT)
    assert bool(re.search(r"; needs 2\.00 kB, \S+ [kMGT]?B free; ", text)) == is_full
    assert path.read_text() == "old" and [found.name for found in tmp_path.iterdir()] == ["x"]


def test_records_that_a_full_disk_tore_are_written_whole_later(tmp_path: Path, told: Told) -> None:
    """A real full disk takes the beginning of a line; lines come later, in their order, each once."""
    with failing_disk.small_disk(tmp_path / "disk", "1m") as disk:
        run_dir = RunDir.open_for(disk / "run", resume=False)
        records = Records(run_dir, resume_after=None)
        records.round_done({"round": 1})
        filler = failing_disk.fill(disk)
        for number in (2, 3):
            with told.by(RunDirError):
                records.round_done({"round": number, "text": "x" * 10000})
        torn = run_dir.records_path.stat().st_size
        assert torn > len('{"round": 1}\n') and [record["round"] for record in read_records(run_dir)] == [1]
        filler.unlink()
        records.round_done({"round": 4})
        assert [record["round"] for record in read_records(run_dir)] == [1, 2, 3, 4]
        assert run_dir.records_path.read_text().count("\n") == 4


def test_records_are_never_made_anew(run_dir: RunDir, tmp_path: Path, told: Told) -> None:
    """Nor longer than they are, with zeros, where somebody has emptied the file."""
    records = Records(run_dir, resume_after=None)
    records.round_done({"round": 1})
    run_dir.records_path.rename(tmp_path / "elsewhere")
    with told.by(RunDirError):
        records.round_done({"round": 2})
    assert not run_dir.records_path.exists()
    run_dir.records_path.write_text("")
    records.round_done({"round": 3})
    assert [record["round"] for record in read_records(run_dir)] == [2, 3]
    assert "\0" not in run_dir.records_path.read_text()


def test_tensorboard_is_given_up_with_one_line(run_dir: RunDir) -> None:
    lines: list[str] = []
    observers = Observers([Observed(Events, "no more events")], lines.append)
    observers.call("run_started", Started({}, run_dir.path, 0))
    observers.call("round_done", {"round": 1, "loss": 1.0})
    run_dir.tensorboard_dir.rename(run_dir.path / "elsewhere")
    for number in (2, 3):
        observers.call("round_done", {"round": number, "loss": 1.0})
    assert len(lines) == 1 and "no more events: " in lines[0] and "No such file" in lines[0]


def fails() -> None:
    raise OSError(errno.EIO, "Input/output error", "somewhere")


def test_stop_and_warn(tmp_path: Path, told: Told) -> None:
    lines: list[str] = []
    with pytest.raises(RunDirError, match=f"^{tmp_path}: cannot be written: Input/output error; the disk"):
        Saving("stop", tmp_path, say=lines.append, warn=lines.append).attempt(1, fails, must_hold=False)
    saving = Saving("warn", tmp_path, say=lines.append, warn=lines.append)
    assert saving.attempt(1, lambda: None, must_hold=True) and not lines
    assert not saving.attempt(2, fails, must_hold=False)
    assert len(lines) == 1
    told(lines[0])
    with pytest.raises(RunDirError):
        saving.attempt(3, fails, must_hold=True)
    assert [note["round"] for note in saving.take_errors()] == [2] and not saving.take_errors()
    assert saving.attempt(4, lambda: None, must_hold=False)
    told("\n".join(lines[1:]))


@pytest.mark.parametrize(
    ("saving_s", "round_s", "is_said"), [(2.0, 9.0, True), (2.0, 11.0, False), (0.9, 1.0, False), (1.1, 1.2, True)]
)
def test_slow_saves_are_said_once(tmp_path: Path, saving_s: float, round_s: float, is_said: bool, told: Told) -> None:
    """More than a fifth of the last five rounds, and more than a second of each; one slow save is not enough."""
    lines: list[str] = []
    saving = Saving("stop", tmp_path, say=lines.append, warn=lines.append)
    saving.took(saving_s, round_s)
    assert not lines
    for _ in range(10):
        saving.took(saving_s, round_s)
    assert len(lines) == is_said
    if is_said:
        told(lines[0])
        assert "output.checkpoint_every" in lines[0]


def test_temporaries_of_dead_writers_go(run_dir: RunDir) -> None:
    """Wherever they lie; and nothing else."""
    version = MemoryStore(run_dir).put(7, 1, {})
    stay = [run_dir.config_path, run_dir.checkpoint_path(1), run_dir.memory_path(7, *version), run_dir.path / ".mine"]
    stay += [run_dir.path / ".mine.tmp", run_dir.path / ".mine.0123456789abcdef.tmp"]
    go = [path.with_name(temporary_name(path.name)) for path in (*stay[:3], run_dir.records_path)]
    for path in (*stay, *go):
        path.touch()
    run_dir.clear_temporaries()
    assert all(path.exists() for path in stay) and not any(path.exists() for path in go)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> HandClock:
    """By which `files` waits."""
    clock = HandClock()
    monkeypatch.setattr(files, "time", SimpleNamespace(monotonic=clock, sleep=clock.sleep))
    return clock


def test_a_file_of_another_node_is_waited_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], clock: HandClock
) -> None:
    """It comes with its folder, 1.2 s after the first look: a line says so; what is there at once, or never comes, has
    none.
    """
    path = tmp_path / "memory" / "7" / "1.h5"

    def come() -> None:
        path.parent.mkdir(parents=True)
        path.touch()

    began_s = clock()
    clock.later[began_s + 1.2] = come
    files.wait_until_visible(path)
    waited_s = clock() - began_s
    assert path.exists() and 1.2 <= waited_s < 1.8  # pauses double up to 0.5 s
    assert f"{path}\n" in (line := capsys.readouterr().err) and f"{waited_s:.1f} s" in line
    files.wait_until_visible(path)
    files.wait_until_visible(tmp_path / "never", patience_s=0.25)
    assert clock() - began_s == pytest.approx(waited_s + 0.25) and capsys.readouterr().err == ""


def test_the_folder_is_listed_for_a_file_system_that_remembers(tmp_path: Path, monkeypatch) -> None:
    """One that says that the file is missing until somebody lists its folder."""
    monkeypatch.setattr("os.listdir", lambda folder: (tmp_path / "x").touch() if folder == tmp_path else None)
    files.wait_until_visible(tmp_path / "x", patience_s=5)
    assert (tmp_path / "x").exists()


def test_a_memory_of_another_node_is_waited_for(run_dir: RunDir, tmp_path: Path, clock: HandClock) -> None:
    store = MemoryStore(run_dir)
    version = store.put(7, 1, {})
    path = run_dir.memory_path(7, *version)
    path.rename(tmp_path / "under way")
    clock.later[clock() + 0.3] = lambda: (tmp_path / "under way").rename(path)
    assert store.get(7, version) == {}
