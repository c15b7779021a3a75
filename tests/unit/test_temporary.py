"""Temporaries of several processes at once, of dead ones, and of those who plant links."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from fedmpi.disk import temporary

ROOT = Path(__file__).parents[2]
TEXT = "".join(f"{name}:\n{'To be or not to be, that is a question. ' * 40}\n\n" for name in ("First", "Second"))
HOLD = """
import sys, time
from pathlib import Path
from fedmpi.disk import temporary
with temporary.own_file(Path(sys.argv[1]) / "set.h5"), temporary.own_folder(Path(sys.argv[1]), "preparing"):
    print("ready", flush=True)
    sys.stdin.read()
"""


def start(*argv: object) -> subprocess.Popen[str]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    pipe = subprocess.PIPE
    command = [sys.executable, *map(str, argv)]
    return subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True, env=environment)


def make_both(folder: Path) -> None:
    with temporary.own_file(folder / "set.h5"), temporary.own_folder(folder, "preparing"):
        pass


def test_what_a_living_process_has_stays_and_what_a_dead_one_left_goes(tmp_path: Path) -> None:
    other = start("-c", HOLD, tmp_path)
    try:
        assert other.stdout is not None and other.stdout.readline() == "ready\n"
        held = sorted(tmp_path.iterdir())
        assert len(held) == 2
        make_both(tmp_path)
        assert sorted(tmp_path.iterdir()) == held
    finally:
        other.send_signal(signal.SIGKILL)
        other.communicate()
    assert sorted(tmp_path.iterdir()) == held
    make_both(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_only_temporaries_of_that_name_are_removed(tmp_path: Path) -> None:
    host = temporary._host()
    names = [f".set.h5.{host}.0123.partial", f".other.{host}.{'0' * 16}.partial", f"set.h5.{host}.{'0' * 16}.partial"]
    foreign = f".set.h5.another-host.{'0' * 16}.partial"  # young, and perhaps its lock cannot be seen from here
    (tmp_path / f".set.h5.{host}.{'a' * 16}.partial").symlink_to(tmp_path / names[0])
    os.mkfifo(tmp_path / f".set.h5.{host}.{'b' * 16}.partial")
    left = tmp_path / f".set.h5.{host}.{'c' * 16}.partial"
    for name in (*names, foreign, left.name):
        (tmp_path / name).touch()
    with temporary.own_file(tmp_path / "set.h5") as own:
        assert not left.exists() and own.is_file() and own.stat().st_mode & 0o777 == 0o666 & ~_umask()
    assert {*names, foreign} <= {path.name for path in tmp_path.iterdir()}
    os.utime(tmp_path / foreign, (0, 0))
    temporary.remove_leftovers(tmp_path, "set.h5")
    assert not (tmp_path / foreign).exists()


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def test_a_temporary_taken_for_left_over_before_its_lock_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another process may look between its making and its lock."""
    flock, removed = temporary.fcntl.flock, list[Path]()

    def remove_first(handle: int, how: int) -> None:
        if not removed:
            removed.extend(path for path in tmp_path.iterdir())
            removed[0].unlink()
        flock(handle, how)

    monkeypatch.setattr(temporary.fcntl, "flock", remove_first)
    with temporary.own_file(tmp_path / "set.h5") as own:
        assert own.is_file() and own not in removed


def test_a_lock_is_one_processs_and_follows_no_link(tmp_path: Path) -> None:
    path = tmp_path / "a.lock"
    with temporary.locked(path), pytest.raises(BlockingIOError), temporary.locked(path):
        pass
    assert not path.exists()
    path.symlink_to(tmp_path / "victim")
    with pytest.raises(OSError), temporary.locked(path):
        pass
    assert not (tmp_path / "victim").exists()
    path.unlink()
    os.mkfifo(path)
    with pytest.raises(OSError, match="a named pipe"), temporary.locked(path):
        pass
    assert path.is_fifo()


def test_several_prepare_into_one_new_folder_at_once(tmp_path: Path) -> None:
    """Each has a temporary of its own, the last rename counts, nothing else stays."""
    (tmp_path / "input.txt").write_text(TEXT)
    words = ("prepare", "shakespeare", "--from", tmp_path / "input.txt", "--data-dir", tmp_path / "d")
    command = ["-m", "fedmpi.data", *words]
    processes = [start(*command) for _ in range(4)]
    ended = []
    try:
        ended = [process.communicate(timeout=300) for process in processes]
    finally:
        for process in processes:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            process.wait()
    assert [process.returncode for process in processes] == [0] * 4, ended
    assert [path.name for path in (tmp_path / "d").iterdir()] == ["shakespeare.fedmpi.h5"]


@pytest.mark.parametrize("steps", ["together", "in turn"])
def test_saves_that_overlap_do_not_meet(tmp_path: Path, steps: str) -> None:
    """Without luck: two writers of the same file, one within the other."""
    target = tmp_path / "new" / "set.h5"
    with temporary.own_file(target) as one, temporary.own_file(target) as other:
        assert one != other
        for path, text in ((one, "one"), (other, "other")):
            path.write_text(text)
        for path in (one, other) if steps == "together" else (other, one):
            path.replace(target)
    assert target.read_text() == ("other" if steps == "together" else "one")
    assert list(target.parent.iterdir()) == [target]
