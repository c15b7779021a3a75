"""Whether somebody looks at our output as it comes.

Under `mpirun` (Open MPI 5's prterun, tried) rank 0 has a pseudo terminal as stdout whatever the
launcher's own stdout is, a log file included: `isatty` answers yes, and a live line would fill
the log with escape codes. So there the launcher's stdout decides. It is found as the first
ancestor whose stdout is not ours, so that wrapper scripts between launcher and rank do no harm.
On another node the ancestor is a daemon without a terminal, and the answer is no.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TextIO

_LAUNCHED = ("OMPI_COMM_WORLD_SIZE", "PMIX_RANK", "PMI_RANK", "SLURM_STEP_ID")
_TERMINALS = ("/dev/pts/", "/dev/tty", "/dev/console")
_DUMB = ("dumb", "unknown")
DEFAULT_COLUMNS = 80


def columns_of_terminal(stream: TextIO, environ: Mapping[str, str] = os.environ, proc: Path = Path("/proc")) -> int:
    """The width of the terminal that `stream` ends in, in columns; 0 if in none that can update a line."""
    if environ.get("TERM") in _DUMB:
        return 0
    try:
        if not stream.isatty():
            return 0
        ours = os.readlink(proc / "self" / "fd" / str(stream.fileno()))
    except (OSError, ValueError):
        return 0 if _is_launched(environ) else DEFAULT_COLUMNS
    device = _launchers_stdout(ours, proc) if _is_launched(environ) else Path(ours)
    if device is None or not str(device).startswith(_TERMINALS):
        return 0
    return _columns(device)


def _is_launched(environ: Mapping[str, str]) -> bool:
    return any(name in environ for name in _LAUNCHED)


def _launchers_stdout(ours: str, proc: Path) -> Path | None:
    """What the first ancestor whose stdout is not `ours` writes to; None if that cannot be seen."""
    pid = os.getppid()
    while pid > 1:
        try:
            target = os.readlink(proc / str(pid) / "fd" / "1")
            if target != ours:
                return Path(target)
            pid = int((proc / str(pid) / "stat").read_text().rpartition(")")[2].split()[1])
        except (OSError, ValueError, IndexError):
            return None
    return None


def _columns(device: Path) -> int:
    try:
        handle = os.open(device, os.O_RDONLY | os.O_NOCTTY)
    except OSError:
        return DEFAULT_COLUMNS
    try:
        return os.get_terminal_size(handle).columns or DEFAULT_COLUMNS
    except OSError:
        return DEFAULT_COLUMNS
    finally:
        os.close(handle)
