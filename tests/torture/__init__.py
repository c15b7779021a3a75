"""Long versions of the hardest tests: fuzzed configs and files, random combinations, ranks killed at random moments.

Each program is run from the folder of the project:

    python -m tests.torture.fuzz_configs    mutated configs: one clear line, no traceback, no hang
    python -m tests.torture.fuzz_files      damaged files: refused in one line, in bounded memory
    python -m tests.torture.random_runs     random combinations: the same bits on any ranks
    python -m tests.torture.kill_ranks      killed and stopped ranks: the same bytes as a quiet run
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def program(name: str) -> list[str]:
    """The words that start a program of this package as a process of its own; it needs `findable`."""
    return [sys.executable, "-m", f"tests.torture.{name}"]


def findable() -> dict[str, str]:
    """The variable with which such a process finds this package from any folder."""
    return {"PYTHONPATH": os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])}
