"""The run directory: names, refusals, and the lock that keeps a second run out."""

import errno
import json
import os
import socket
import time
from pathlib import Path

import pytest
from golden_file import Told

from fedmpi.errors import RunDirError
from fedmpi.store import lock
from fedmpi.store.lock import RunLock
from fedmpi.store.run_dir import RunDir


def test_new_never_takes_an_existing_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("time.strftime", lambda _: "20260102-030405")
    names = [RunDir.new(tmp_path / "runs", "fedhm/digits x").path.name for _ in range(3)]
    first = "fedhm_digits_x-20260102-030405"
    assert names == [first, f"{first}-2", f"{first}-3"]


def test_a_run_is_continued_only_when_asked(tmp_path: Path, told: Told) -> None:
    run = RunDir.open_for(tmp_path / "deep" / "run", resume=False)
    assert not run.holds_run()
    RunDir.open_for(run.path, resume=False)
    for path in (run.config_path, run.records_path, run.checkpoint_path(3)):
        path.write_text("")
        with told.by(RunDirError):
            RunDir.open_for(run.path, resume=False)
        assert RunDir.open_for(run.path, resume=True) == run
        path.unlink()


def test_what_cannot_be_a_run_directory_is_refused(tmp_path: Path, told: Told) -> None:
    occupied = tmp_path / "file"
    occupied.write_text("")
    with told.by(RunDirError):
        RunDir.open_for(occupied, resume=False)
    with told.by(RunDirError):
        RunDir.open_for(occupied / "run", resume=False)
    (tmp_path / "circle").symlink_to("circle")
    for name in ("x" * 300, "circle", "circle/run"):
        for resume in (False, True):
            with pytest.raises(RunDirError, match="cannot be written") as caught:
                RunDir.open_for(tmp_path / name, resume=resume)
            assert "\n" not in caught.value.text()
    with pytest.raises(RunDirError, match="cannot be written"):
        RunDir.open_for("/proc/run", resume=False)  # not writable for root either
    with pytest.raises(RunDirError, match="cannot be written"):
        RunDir.new("/proc", "run")


def test_checkpoints_are_found_newest_first_and_nothing_else(tmp_path: Path) -> None:
    run = RunDir.open_for(tmp_path, resume=False)
    for name in ("round-000009.h5", "round-1000000.h5", ".round-000010.h5.tmp", "round-x.h5", "round-000003.h5.bak"):
        (run.checkpoints_dir / name).touch()
    assert [number for number, _ in run.checkpoints()] == [1_000_000, 9]
    assert run.checkpoint_path(1_000_000).name == "round-1000000.h5"


def _left_by(tmp_path: Path, *, age_s: float = 0, **changes: object) -> None:
    note = {"host": "elsewhere", "pid": os.getpid(), "started_s": 1.0, **changes}
    (tmp_path / ".lock").write_text(json.dumps(note))
    os.utime(tmp_path / ".lock", (time.time() - age_s,) * 2)


STALE = {
    "pid given to another process": {"host": socket.gethostname()},
    "dead pid": {"host": socket.gethostname(), "pid": 2**22 + 1},
    "silent for long": {"age_s": 2 * lock.STALE_AFTER_S},
    "no pid at all": {"host": socket.gethostname(), "pid": 2**80},
}


@pytest.mark.parametrize("has_locks", [True, False])
@pytest.mark.parametrize("note", STALE.values(), ids=STALE)
def test_stale_notes_are_taken_over(note: dict[str, object], tmp_path: Path, monkeypatch, has_locks: bool) -> None:
    """A line says so where another host held it."""
    if not has_locks:
        monkeypatch.setattr(lock.fcntl, "flock", no_locks)
    _left_by(tmp_path, **note)
    lines: list[str] = []
    with RunLock(RunDir(tmp_path), warn=lines.append):
        assert ["elsewhere" in line for line in lines] == [True] * ("host" not in note)


@pytest.mark.parametrize("age_s", [0, lock.STALE_AFTER_S / 2])
def test_without_locks_a_run_on_another_host_is_believed_to_live(age_s: float, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(lock.fcntl, "flock", no_locks)
    _left_by(tmp_path, age_s=age_s)
    with pytest.raises(RunDirError, match="on elsewhere.*if that run is gone, delete"), RunLock(RunDir(tmp_path)):
        pass


def no_locks(*_: object) -> None:
    raise OSError(errno.ENOLCK, "No locks available")


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="this system has no /proc")
def test_a_folder_that_the_kernel_keeps_for_itself(told: Told) -> None:
    """Nothing was there that could be gone."""
    for path in ("/proc/run", "/proc/no/such/run"):
        with told.by(RunDirError) as caught:
            RunDir.open_for(path, resume=False)
        assert "gone" not in caught.value.text() and caught.value.where == path
