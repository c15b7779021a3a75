"""Temporaries of several processes at once, of dead ones, and of those who plant links."""

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
import sys
from pathlib import Path
from fedmpi.disk import temporary
with temporary.own_folder(Path(sys.argv[1]), "preparing"):
    print("ready", flush=True)
    sys.stdin.read()
"""


def start(*argv: object) -> subprocess.Popen[str]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    pipe = subprocess.PIPE
    command = [sys.executable, *map(str, argv)]
    return subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True, env=environment)


def test_what_a_living_process_has_stays_and_what_a_dead_one_left_goes(tmp_path: Path) -> None:
    other = start("-c", HOLD, tmp_path)
    try:
        assert other.stdout is not None and other.stdout.readline() == "ready\n"
        (held,) = tmp_path.iterdir()
        (held / "half").touch()
        with temporary.own_folder(tmp_path, "preparing") as own:
            assert {*tmp_path.iterdir()} == {held, own}
    finally:
        other.send_signal(signal.SIGKILL)
        other.communicate()
    assert [*tmp_path.iterdir()] == [held]
    with temporary.own_folder(tmp_path, "preparing") as own:
        assert [*tmp_path.iterdir()] == [own]


def test_only_folders_for_that_purpose_are_removed(tmp_path: Path) -> None:
    host = temporary._host()
    names = [f".set.h5.{host}.0123.partial", f".other.{host}.{'0' * 16}.partial", f"set.h5.{host}.{'0' * 16}.partial"]
    foreign = f".set.h5.another-host.{'0' * 16}.partial"  # young, and perhaps its lock cannot be seen from here
    left = tmp_path / f".set.h5.{host}.{'c' * 16}.partial"
    for name in (*names, foreign, left.name):
        (tmp_path / name).mkdir()
    link, pipe = (tmp_path / f".set.h5.{host}.{digit * 16}.partial" for digit in "ab")
    link.symlink_to(tmp_path / names[0])
    os.mkfifo(pipe)
    with temporary.own_folder(tmp_path, "set.h5") as own:
        assert not left.exists() and own.stat().st_mode & 0o777 == 0o700
    assert {*names, foreign, link.name, pipe.name} == {path.name for path in tmp_path.iterdir()}
    os.utime(tmp_path / foreign, (0, 0))
    temporary.remove_leftovers(tmp_path, "set.h5")
    assert not (tmp_path / foreign).exists()


def test_a_folder_taken_for_left_over_before_its_lock_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another process may look between its making and its lock."""
    flock, removed = temporary.fcntl.flock, list[Path]()

    def remove_first(handle: int, how: int) -> None:
        if not removed:
            removed.extend(tmp_path.iterdir())
            removed[0].rmdir()
        flock(handle, how)

    monkeypatch.setattr(temporary.fcntl, "flock", remove_first)
    with temporary.own_folder(tmp_path, "set.h5") as own:
        assert own.is_dir() and own not in removed


def test_a_lock_is_one_processs_and_follows_no_link(tmp_path: Path) -> None:
    path = tmp_path / "a.lock"
    with temporary.locked(path), pytest.raises(BlockingIOError), temporary.locked(path):
        pass
    assert not path.exists()
    path.symlink_to(tmp_path / "victim")
    with pytest.raises(OSError, match="symbolic link|Too many levels"), temporary.locked(path):
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
