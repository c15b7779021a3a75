"""The run directory and its lock: races, file systems without locks, notes that are none, names, refusals."""

import errno
import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import pytest
from data_fixtures import refusal
from golden_file import Told

from fedmpi.errors import RunDirError
from fedmpi.store import lock
from fedmpi.store.lock import RunLock
from fedmpi.store.run_dir import RunDir

HOLDS = """
import sys
from pathlib import Path
from fedmpi.store.lock import RunLock
from fedmpi.store.run_dir import RunDir
with RunLock(RunDir(Path(sys.argv[1]))):
    print("holds", flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def other(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """Another process, which holds the run directory until its stdin is closed."""
    environ = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    command = [sys.executable, "-c", HOLDS, str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environ) as process:
        assert process.stdout.readline() == "holds\n"
        yield process
        process.stdin.close()


def no_locks(*_: object) -> None:
    """Takes the place of `flock` on a file system without locks."""
    raise OSError(errno.ENOLCK, "No locks available")


NOTE = {"host": socket.gethostname(), "pid": 2**22 + 1, "started_s": 1.0}


def test_one_of_three_starts_wins(tmp_path: Path) -> None:
    """25 races for what the last run left behind; the others are told."""
    start = threading.Barrier(3)
    end = threading.Barrier(3)

    def contend(_: int) -> str:
        start.wait(600)
        try:
            with RunLock(RunDir(tmp_path)):
                end.wait(600)
                return "won"
        except RunDirError as error:
            end.wait(600)
            return error.text()

    with ThreadPoolExecutor(3) as threads:
        for _ in range(25):
            (tmp_path / ".lock").write_text(json.dumps(NOTE))
            said = [*threads.map(contend, range(3))]
            assert said.count("won") == 1 and sum("in use by " in line for line in said) == 2, said


def test_who_holds_it_is_named_and_once_dead_taken_over_from(tmp_path: Path, other: subprocess.Popen[str]) -> None:
    refusal = f"is in use by pid {other.pid} on {socket.gethostname()}"
    with pytest.raises(RunDirError, match=refusal), RunLock(RunDir(tmp_path)):
        pass
    other.kill()
    os.waitid(os.P_PID, other.pid, os.WEXITED | os.WNOWAIT)  # it has ended, and its parent has not asked yet
    assert not lock.is_held(RunDir(tmp_path), 60)
    with RunLock(RunDir(tmp_path)):
        pass


NOT_NOTES = {
    "torn": b'{"host": "a", "pi',
    "binary": bytes(range(256)) * 4,
    "a list": b"[1, 2]",
    "other keys": b'{"a": 1}',
    "pid of a group": json.dumps({**NOTE, "pid": -1}).encode(),
}


@pytest.mark.parametrize("note", NOT_NOTES.values(), ids=NOT_NOTES)
def test_what_is_no_note_holds_nothing(tmp_path: Path, note: bytes) -> None:
    """It is as if nobody had been there."""
    (tmp_path / ".lock").write_bytes(note)
    assert not lock.is_held(RunDir(tmp_path), 60)
    with RunLock(RunDir(tmp_path)):
        assert lock.is_held(RunDir(tmp_path), 60)
        assert json.loads((tmp_path / ".lock").read_text())["pid"] == os.getpid()
    assert (tmp_path / ".lock").read_bytes() == b""


def test_without_the_kernels_lock_the_note_decides(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, other: subprocess.Popen[str]
) -> None:
    monkeypatch.setattr(lock.fcntl, "flock", no_locks)
    with pytest.raises(RunDirError, match=f"in use by pid {other.pid}"), RunLock(RunDir(tmp_path)):
        pass
    other.communicate()
    with RunLock(RunDir(tmp_path)):
        pass


def test_the_kernels_lock_survives(tmp_path: Path, told: Told) -> None:
    """To open and close the file, as `open_run` in an observer does, must not give it up: the note alone would be
    left."""
    with RunLock(RunDir(tmp_path)) as held:
        assert lock.is_held(RunDir(tmp_path), 60)
        os.pwrite(held._handle, b" " * 4096, 0)
        with told.by(RunDirError), RunLock(RunDir(tmp_path)):
            pass


def test_a_long_round_has_a_heartbeat(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """At most one a second, however often it is called."""
    now_s = [0.0]
    monkeypatch.setattr(lock, "time", SimpleNamespace(monotonic=lambda: now_s[0], time=time.time))
    with RunLock(RunDir(tmp_path)) as held:
        for now_s[0], is_fresh in ((0.9, False), (1.1, True)):
            os.utime(tmp_path / ".lock", (0, 0))
            held.beat()
            assert (time.time() - (tmp_path / ".lock").stat().st_mtime < 60) == is_fresh


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
        told(refusal(RunDir.open_for, run.path, resume=False))
        assert RunDir.open_for(run.path, resume=True).path == run.path
        path.unlink()


def test_what_cannot_be_a_run_directory_is_refused(tmp_path: Path, told: Told) -> None:
    occupied = tmp_path / "file"
    occupied.write_text("")
    told(refusal(RunDir.open_for, occupied, resume=False))
    told(refusal(RunDir.open_for, occupied / "run", resume=False))
    (tmp_path / "circle").symlink_to("circle")
    for name in ("x" * 300, "circle", "circle/run"):
        for resume in (False, True):
            assert "cannot be written" in refusal(RunDir.open_for, tmp_path / name, resume=resume)
    assert "takes no new files" in refusal(RunDir.new, "/proc", "run")


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
    if not has_locks:
        monkeypatch.setattr(lock.fcntl, "flock", no_locks)
    _left_by(tmp_path, **note)
    with RunLock(RunDir(tmp_path)):
        pass


def test_without_locks_a_run_on_another_host_is_believed_to_live(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(lock.fcntl, "flock", no_locks)
    _left_by(tmp_path, age_s=lock.STALE_AFTER_S / 2)
    with pytest.raises(RunDirError, match="on elsewhere.*if that run is gone, delete"), RunLock(RunDir(tmp_path)):
        pass
