"""`.ci/sandbox` shows a command a new machine, and tells which files it leaves behind."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """A clone with data beside it, both below the folder for temporary files."""
    folder = tmp_path / "clone"
    (folder / ".ci").mkdir(parents=True)
    shutil.copy(ROOT / ".ci" / "sandbox", folder / ".ci")
    (tmp_path / "shared").mkdir()
    (tmp_path / "shared" / "data").write_text("digits")
    return folder


def sandboxed(clone: Path, script: str, **environment: str) -> subprocess.CompletedProcess[str]:
    command = ["bash", str(clone / ".ci" / "sandbox"), "bash", "-c", script]
    environ = {**os.environ, **environment}
    return subprocess.run(command, capture_output=True, text=True, timeout=600, env=environ, cwd=clone)


def without_mounts(folder: Path) -> dict[str, str]:
    """An environment in which nobody may mount."""
    (folder / "bin").mkdir()
    (folder / "bin" / "unshare").write_text("#!/bin/sh\nexit 1\n")
    (folder / "bin" / "unshare").chmod(0o755)
    return {"PATH": f"{folder}/bin:{os.environ['PATH']}"}


def can_mount() -> bool:
    words = ["unshare", "--mount", "mount", "-t", "tmpfs", "tmpfs", "/mnt"]
    return subprocess.run(words, capture_output=True, check=False, timeout=600).returncode == 0


needs_mounts = pytest.mark.skipif(not can_mount(), reason="no file system may be mounted here")
both = pytest.mark.parametrize("mounts", [pytest.param(True, marks=needs_mounts), False], ids=["mounts", "no mounts"])


@both
def test_home_and_temporary_folder_are_new(clone: Path, tmp_path: Path, mounts: bool) -> None:
    """And gone afterwards; the command's exit code is the sandbox's, and one line says what cannot be kept."""
    environment = {} if mounts else without_mounts(tmp_path)
    script = 'ls -A "$HOME"; made=$(mktemp); echo "$made"; echo "$HOME $XDG_CACHE_HOME"; rm "$made"; exit 7'
    done = sandboxed(clone, script, XDG_CACHE_HOME="/before", **environment)
    made, home = done.stdout.splitlines()
    assert done.returncode == 7 and not Path(made).exists()
    assert home == f"{Path(made).parent}/home "
    assert done.stderr.count("\n") == (0 if mounts else 1)


@needs_mounts
def test_earlier_temporary_files_are_not_seen(clone: Path, tmp_path: Path) -> None:
    (tmp_path / "earlier").touch()
    assert sandboxed(clone, f"test ! -e {tmp_path}/earlier").returncode == 0


@both
def test_files_that_are_left_are_an_error(clone: Path, tmp_path: Path, mounts: bool) -> None:
    """Files that pytest keeps, and empty folders, are none."""
    environment = {} if mounts else without_mounts(tmp_path)
    kept = 'mkdir -p "$TMPDIR/pytest-of-me/x" "$TMPDIR/empty"; touch "$TMPDIR/pytest-of-me/x/y"'
    assert sandboxed(clone, kept, **environment).returncode == 0
    left = f'{kept}; mkdir "$HOME/.cache"; touch "$HOME/.cache/fonts"; ln -s a "$TMPDIR/b"'
    done = sandboxed(clone, left, **environment)
    said = {f"in the temporary folder: {name}" for name in ("b", "home/.cache/fonts")}
    assert done.returncode == 1 and set(done.stderr.splitlines()[-2:]) == said


@needs_mounts
def test_nothing_else_can_be_written(clone: Path) -> None:
    """Every other mount is for reading only; the data beside the clone can be seen all the same."""
    done = sandboxed(clone, "cat ../shared/data /proc/self/mountinfo; touch made; touch ../shared/no")
    data, *lines = done.stdout.replace("digits", "digits\n", 1).splitlines()
    options = {words[4]: words[5].split(",") for words in map(str.split, lines)}
    writable = {place for place, found in options.items() if "rw" in found and not place.startswith("/proc")}
    assert data == "digits" and writable == {"/tmp", "/var/tmp", "/dev/shm", str(clone)}
    assert (clone / "made").exists() and "Read-only file system" in done.stderr and done.returncode == 1


@needs_mounts
def test_shared_memory_is_new_as_well(clone: Path) -> None:
    done = sandboxed(clone, "ls -A /dev/shm; touch /dev/shm/segment")
    assert (done.stdout, done.returncode) == ("", 1) and done.stderr.splitlines()[-1] == "/dev/shm/segment"
